# SPDX-License-Identifier: Apache-2.0
"""Mutations of TFLite files: bits, ends, offsets, lengths of vectors and tables, and schema fields with other
values, versions and types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as fb

from tests.frontend_tflite.cases import CASES
from tests.frontend_tflite.model_builder import packed
from tests.frontend_tflite.test_tflite_integer_layers import MODELS, lstm
from tests.frontend_tflite.test_tflite_operators import built
from tests.fuzz.case import Files, Mutations
from tests.fuzz.mutate_bytes import FLOATS, STRINGS, changed_bytes, integer, pick, shorter

Generator = np.random.Generator


@cache
def bases(everything: bool) -> Sequence[bytes]:
    """A model of each operator, real and quantized, which takes no time for any number."""
    integers = [data for name, (data, _) in MODELS.items() if not name.startswith(("ADD", "SUB", "MUL"))]
    return [*(built(case)[0] for case in CASES), *integers, lstm(0, 12, 0.0)[0]]


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
    same_type = [p for p in parts if type(p) is type(value)]
    return pick(rng, [None, *same_type])


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


# --- ways to damage a model


def _bit(rng: Generator, data: bytes) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]


def _end(rng: Generator, data: bytes) -> bytes:
    return data[: int(rng.integers(len(data)))]


def _words(data: bytes) -> tuple[Any, Any]:
    """The words of a file, and the numbers of those that may be offsets: forward, and to a word within it."""
    words = np.frombuffer(data[: len(data) & ~3], "<u4").astype(np.int64)
    ends = np.arange(len(words)) * 4 + words
    return words, np.flatnonzero((words > 0) & (words % 4 == 0) & (ends < 4 * len(words)))


def _with_words(words: Any, data: bytes) -> bytes:
    return bytes(words.astype("<u4").tobytes()) + data[4 * len(words) :]


def _offset(rng: Generator, data: bytes) -> bytes:
    """An offset leads elsewhere, near or far."""
    words, offsets = _words(data)
    at = pick(rng, offsets)
    words[at] = integer(rng, int(words[at]), 0, (1 << 32) - 1)
    return _with_words(words, data)


def _length(rng: Generator, data: bytes) -> bytes:
    """What an offset leads to begins with another number: the length of a vector or string, the way to a vtable."""
    words, offsets = _words(data)
    at = pick(rng, offsets)
    at += words[at] // 4
    words[at] = integer(rng, int(words[at]), 0, (1 << 32) - 1)
    return _with_words(words, data)


def _swapped(rng: Generator, data: bytes) -> bytes:
    """Two offsets lead to each other's tables, vectors or strings."""
    words, offsets = _words(data)
    one, other = sorted((pick(rng, offsets), pick(rng, offsets)))
    found = words[other] + 4 * (other - one), words[one] - 4 * (other - one)
    words[one], words[other] = found[0], found[1] % (1 << 32)
    return _with_words(words, data)


def _version(rng: Generator, model: Any) -> None:
    holder = pick(rng, [model, *model.operatorCodes])
    holder.version = integer(rng, holder.version, -(1 << 31), (1 << 31) - 1)


def _type(rng: Generator, model: Any) -> None:
    """A tensor of another type, another operator, other options of one; few of them are known."""
    graph = model.subgraphs[0]
    kinds = (graph.tensors, "type", 20), (model.operatorCodes, "builtinCode", 220)
    holders, name, count = pick(rng, (*kinds, (graph.operators, "builtinOptionsType", 130)))
    setattr(pick(rng, holders), name, int(rng.integers(count)))


def _field(rng: Generator, model: Any) -> None:
    """Any field of any table has another value, or a table of its kind from elsewhere."""
    parts = _parts(model)
    part = pick(rng, [p for p in parts if vars(p)])
    name = pick(rng, sorted(vars(part)))
    value = getattr(part, name)
    setattr(part, name, _other(rng, int(rng.integers(6)) if value is None else value, parts))


def _rewritten(change: Callable[[Generator, Any], None]) -> Callable[[Generator, bytes], bytes]:
    def made(rng: Generator, data: bytes) -> bytes:
        model = fb.ModelT.InitFromObj(fb.Model.GetRootAs(data, 0))
        change(rng, model)
        return packed(model)

    return made


WAYS: Mapping[str, Callable[[Generator, bytes], bytes]] = {
    "bit": _bit, "end": _end, "bytes": changed_bytes, "offset": _offset, "length": _length, "swapped": _swapped,
    "version": _rewritten(_version), "type": _rewritten(_type), "field": _rewritten(_field),
}  # fmt: skip


def mutated(bases: Sequence[bytes], seed: int, without: frozenset[int]) -> bytes:
    """A model changed in one of the ways, once or several times; as bytes where that is no longer possible."""
    mutations = Mutations(seed, without)
    rng = mutations.base()
    data = pick(rng, bases)
    way = WAYS[pick(rng, tuple(WAYS))]
    for step in mutations.each():
        try:
            data = way(step, data)
        except Exception:  # whatever the generated code makes of damaged files and of values that do not fit
            data = changed_bytes(step, data)
    return data


def smaller(data: bytes) -> Iterator[bytes]:
    """Fewer bytes."""
    return shorter(data)


def model_files(data: bytes) -> Files:
    return {"model.tflite": data}
