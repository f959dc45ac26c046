# SPDX-License-Identifier: Apache-2.0
"""TFLite files: fields of the schema with other values, tensors and operators taken from elsewhere, bytes changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as fb

from tests.frontend_tflite.build import packed
from tests.frontend_tflite.cases import CASES
from tests.frontend_tflite.test_tflite_integers import MODELS, lstm
from tests.frontend_tflite.test_tflite_operators import built
from tests.fuzz.case import Files, Mutations
from tests.fuzz.mutate_bytes import FLOATS, STRINGS, changed_bytes, integer, odds, pick, shorter

Generator = np.random.Generator


@lru_cache(maxsize=2)
def bases(everything: bool) -> Sequence[bytes]:
    """A model of each operator (one in three unless `everything`), real and quantised."""
    integers = [data for name, (data, _) in MODELS.items() if not name.startswith(("ADD", "SUB", "MUL"))]
    found = [*(built(case)[0] for case in CASES), *integers, lstm(0, 12, 0.0)[0]]
    return found if everything else found[::3]


def _parts(model: Any) -> list[Any]:
    """All tables of a model."""
    found, stack = [], [model]
    while stack:
        current = stack.pop()
        found.append(current)
        for value in vars(current).values():
            items = value if isinstance(value, list) else [value]
            stack += [v for v in items if hasattr(v, "Pack")]
    return found


def _other(rng: Generator, value: Any, parts: Sequence[Any]) -> Any:
    """A value in the place of another one of its kind."""
    match value:
        case bool():
            return not value
        case int():
            return integer(rng, value, -(1 << 31), (1 << 31) - 1)
        case float():
            return pick(rng, FLOATS)
        case bytes() | str():
            return pick(rng, STRINGS)
        case np.ndarray() | list():
            return _other_list(rng, value)
    kin = [p for p in parts if type(p) is type(value)]
    return pick(rng, [None, *kin])


def _other_list(rng: Generator, value: Any) -> Any:
    items = list(value)
    at = int(rng.integers(len(items))) if items else 0
    match int(rng.integers(4)):
        case 0 if items:
            del items[at]
        case 1 if items:
            items.insert(at, items[int(rng.integers(len(items)))])
        case 2:
            return None
        case _ if items and not hasattr(items[at], "Pack"):
            kind = float if isinstance(items[at], (float, np.floating)) else int
            items[at] = _other(rng, kind(items[at]), ())
    return np.array(items, value.dtype) if _fits(items, value) else items


def _fits(items: Sequence[Any], value: Any) -> bool:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        return False
    ends = np.iinfo(value.dtype) if value.dtype.kind in "iu" else np.finfo(value.dtype)
    return all(np.isnan(v) or np.isinf(v) or ends.min <= v <= ends.max for v in items)


def _changed(rng: Generator, model: Any) -> None:
    parts = _parts(model)
    part = pick(rng, [p for p in parts if vars(p)])
    name = pick(rng, sorted(vars(part)))
    value = getattr(part, name)
    setattr(part, name, _other(rng, int(rng.integers(6)) if value is None else value, parts))


def mutated(bases: Sequence[bytes], seed: int, without: frozenset[int]) -> bytes:
    """A mutated model, or its bytes where it can no longer be written."""
    mutations = Mutations(seed, without)
    rng = mutations.base()
    data = pick(rng, bases)
    as_bytes = odds(rng, 0.4)
    for step in mutations.each():
        made = None if as_bytes else _rewritten(step, data)
        data = changed_bytes(step, data) if made is None else made
    return data


def _rewritten(rng: Generator, data: bytes) -> bytes | None:
    try:
        model = fb.ModelT.InitFromObj(fb.Model.GetRootAs(data, 0))
        _changed(rng, model)
        return packed(model)
    except Exception:  # whatever the generated code makes of values that do not fit
        return None


def smaller(data: bytes) -> Iterator[bytes]:
    """Fewer bytes."""
    return shorter(data)


def model_files(data: bytes) -> Files:
    return {"model.tflite": data}
