# SPDX-License-Identifier: Apache-2.0
"""Random attention layers of ONNX and of com.microsoft: their attributes, and which inputs they have.

layer = draw_layer(rng)
layer.feeds(rng, {"batch": 1, "steps": 3, "past": 2})     # an array for each input
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tests.fuzz.mutate_bytes import odds, pick

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Sizes = Mapping[str, int]
#: Extents: a number, or the name of a size. A text such as "past+steps" is a sum of sizes.
Extent = "int | str"
Fill = Callable[[Generator, Sizes, "tuple[int, ...]"], Array]
MICROSOFT: Final = "com.microsoft"


@dataclass(frozen=True)
class Operand:
    """An input of a layer: its extents, and what draws its elements."""

    extents: tuple[int | str, ...]
    fill: Fill


@dataclass
class Layer:
    """One operator.

    operands      None for inputs that are not given
    has_past      for layers whose sequences have lengths of their own, whether there are earlier tokens; else None
    """

    op: str
    domain: str
    version: int
    operands: Sequence[Operand | None]
    attributes: dict[str, Any]
    outputs: int
    has_past: bool | None = None

    def feeds(self, rng: Generator, sizes: Sizes) -> dict[str, Array]:
        """An array for each input that is given, by name."""
        found = {}
        for k, operand in enumerate(self.operands):
            if operand is not None:
                shape = tuple(extent_of(e, sizes) for e in operand.extents)
                found[f"i{k}"] = operand.fill(rng, sizes, shape)
        return found


def extent_of(extent: int | str, sizes: Sizes) -> int:
    """The value of an extent."""
    return extent if isinstance(extent, int) else sum(sizes[name] for name in extent.split("+"))


def _floats(rng: Generator, sizes: Sizes, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def _flags(rng: Generator, sizes: Sizes, shape: tuple[int, ...]) -> Array:
    """Masks of int32, of whose rows none is empty."""
    made = rng.integers(0, 2, shape).astype(np.int32)
    if made.size:
        made[..., int(rng.integers(shape[-1]))] = 1
    return made


def _bools(rng: Generator, sizes: Sizes, shape: tuple[int, ...]) -> Array:
    """Masks of bools, some with a row without any true element."""
    made = _flags(rng, sizes, shape).astype(bool)
    if made.size and odds(rng, 0.3):
        made[..., int(rng.integers(shape[-2])), :] = False
    return made


def _angles(function: Callable[..., Array]) -> Fill:
    """Fill rows with the values of a function at the angles of positions."""

    def fill(rng: Generator, sizes: Sizes, shape: tuple[int, ...]) -> Array:
        angles = np.arange(shape[0])[:, None] / 3.0 ** np.arange(1, shape[1] + 1)
        return function(angles).astype(np.float32)

    return fill


def _operand(*extents: int | str, fill: Fill = _floats) -> Operand:
    return Operand(extents, fill)


def _broadcast(rng: Generator, *extents: int | str) -> tuple[int | str, ...]:
    """Extents, of which some are 1."""
    return tuple(1 if odds(rng, 0.4) else e for e in extents)


# --- com.microsoft


def _attention(rng: Generator) -> Layer:
    heads, size = int(rng.integers(1, 4)), pick(rng, (1, 2, 4, 8))
    width, other = heads * size, heads * pick(rng, (1, 3, size))
    has_past = odds(rng, 0.4)
    inner, total = int(rng.integers(1, 9)), "past+steps" if has_past else "steps"
    widths = [width, width, width if has_past else other]
    attributes: dict[str, Any] = {"num_heads": heads}
    if widths[2] != width or odds(rng, 0.3):
        attributes["qkv_hidden_sizes"] = widths
    attributes |= _common(rng)
    masks = (
        _operand("batch", total, fill=_flags),
        _operand("batch", "steps", total, fill=_flags),
        _operand("batch", fill=lambda rng, sizes, shape: _ends(rng, extent_of(total, sizes), shape)),
        Operand(("batch+batch",), lambda rng, sizes, shape: _ends_and_starts(rng, extent_of(total, sizes), shape)),
    )
    operands = [
        _operand("batch", "steps", inner),
        _operand(inner, sum(widths)),
        _operand(sum(widths)) if odds(rng, 0.7) else None,
        pick(rng, masks) if odds(rng, 0.5) else None,
        _operand(2, "batch", heads, "past", size) if has_past else None,
        Operand((*_broadcast(rng, "batch", heads), "steps", total), _floats)
        if not has_past and odds(rng, 0.4)
        else None,
    ]
    return Layer("Attention", MICROSOFT, 1, operands, attributes, 2 if has_past else 1)


def _ends(rng: Generator, total: int, shape: tuple[int, ...]) -> Array:
    return rng.integers(1, total + 1, shape).astype(np.int32)


def _ends_and_starts(rng: Generator, total: int, shape: tuple[int, ...]) -> Array:
    ends = _ends(rng, total, (shape[0] // 2,))
    return np.concatenate([ends, rng.integers(0, ends).astype(np.int32)])


def _common(rng: Generator) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if odds(rng, 0.4):
        made["unidirectional"] = 1
    if odds(rng, 0.3):
        made["scale"] = pick(rng, (0.25, 1.0, 1.7))
    if odds(rng, 0.3):
        made["mask_filter_value"] = pick(rng, (-2.0, -1e4, -3.4e38))
    return made


def _multi_head_attention(rng: Generator) -> Layer:
    heads, size = int(rng.integers(1, 4)), pick(rng, (1, 2, 4, 8))
    form = pick(rng, ("separate", "separate", "cross"))
    has_past = form == "separate" and odds(rng, 0.5)
    value_size, width = size if has_past or form == "cross" else pick(rng, (size, 3)), heads * size
    keys = "steps" if has_past else "keys"
    total = "past+steps" if has_past else keys
    query, key, value = {
        "separate": (
            _operand("batch", "steps", width),
            _operand("batch", keys, width),
            _operand("batch", keys, heads * value_size),
        ),
        "cross": (
            _operand("batch", "steps", width),
            _operand("batch", heads, "keys", size),
            _operand("batch", heads, "keys", value_size),
        ),
    }[form]
    masks = (
        _operand("batch", total, fill=_flags),
        _operand("batch", "steps", total, fill=_flags),
        Operand(("batch",), lambda rng, sizes, shape: rng.integers(1, extent_of(total, sizes) + 1, shape).astype("i")),
    )
    operands = [
        query,
        key,
        value,
        _operand(heads * (2 * size + value_size)) if odds(rng, 0.4) else None,
        pick(rng, masks) if odds(rng, 0.4) else None,
        Operand((*_broadcast(rng, "batch", heads), "steps", total), _floats) if odds(rng, 0.3) else None,
        *((_operand("batch", heads, "past", n) for n in (size, value_size)) if has_past else ()),
    ]
    attributes = {"num_heads": heads, **_common(rng)}
    return Layer("MultiHeadAttention", MICROSOFT, 1, operands, attributes, 3 if has_past else 1)


def _rotary_caches(size: int, most: int, rng: Generator, multiple: int = 1) -> tuple[Operand, Operand]:
    half = size // 2 if odds(rng, 0.7) else max(size // 4, multiple)
    return Operand((most, half), _angles(np.cos)), Operand((most, half), _angles(np.sin))


def _group_query_attention(rng: Generator) -> Layer:
    key_heads, group, size = int(rng.integers(1, 4)), int(rng.integers(1, 4)), pick(rng, (8, 16, 32))
    heads, form = key_heads * group, pick(rng, ("none", "none", "grown", "grown", "buffer"))
    length = {"none": None, "grown": "past", "buffer": "past+steps+room"}[form]
    total = "steps" if length is None else "past+steps"
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": key_heads, **_grouped_attributes(rng)}
    rotary: tuple[Operand | None, Operand | None] = None, None
    positions = None
    if odds(rng, 0.5):
        size = max(size, 16)
        rotary = _rotary_caches(size, 32, rng, multiple=8)
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2))}
        if odds(rng, 0.3):
            positions = Operand(("batch", "steps"), lambda rng, sizes, shape: rng.integers(0, 16, shape))
    new = [_operand("batch", "steps", n * size) for n in (heads, key_heads, key_heads)]
    packed = [_operand("batch", "steps", (heads + 2 * key_heads) * size), None, None]
    operands = [
        *(packed if odds(rng, 0.3) else new),
        *[None if length is None else _operand("batch", key_heads, length, size)] * 2,
        Operand(("batch",), _last_positions(total)),
        Operand((), lambda rng, sizes, shape: np.array(extent_of(total, sizes), np.int32)),
        *rotary,
        positions,
        _operand(*_broadcast(rng, "batch", heads), "steps", total) if odds(rng, 0.25) else None,
        _operand(heads) if odds(rng, 0.15) and "smooth_softmax" not in attributes else None,
    ]
    outputs = 4 if "qk_output" in attributes else 3
    return Layer("GroupQueryAttention", MICROSOFT, 1, operands, attributes, outputs, length is not None)


def _grouped_attributes(rng: Generator) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if odds(rng, 0.3):
        made["scale"] = pick(rng, (0.2, 1.0))
    if odds(rng, 0.3):
        made["softcap"] = pick(rng, (0.5, 2.0, 30.0))
    if odds(rng, 0.2):
        made["causal"] = 0
    elif odds(rng, 0.3):
        made["local_window_size"] = int(rng.integers(1, 6))
    if odds(rng, 0.2):
        made["smooth_softmax"] = 1
    if odds(rng, 0.2):
        made["qk_output"] = 2
    return made


def _last_positions(total: str) -> Fill:
    """Fill a vector with the last positions of sequences, of which one has the length `total`. ONNX Runtime takes
    several sequences of several new tokens without a past only.
    """

    def fill(rng: Generator, sizes: Sizes, shape: tuple[int, ...]) -> Array:
        most = extent_of(total, sizes)
        made = np.full(shape, most - 1, np.int32)
        if shape[0] > 1 and (sizes["steps"] == 1 or total == "steps"):
            made[:] = rng.integers(0, most, shape)
            made[int(rng.integers(shape[0]))] = most - 1
        return made

    return fill


def _rotary_of_microsoft(rng: Generator) -> Layer:
    heads, size = int(rng.integers(1, 4)), pick(rng, (2, 4, 8, 16))
    cosines, sines = _rotary_caches(size, 24, rng)
    is_partial = 2 * int(cosines.extents[1]) < size
    attributes: dict[str, Any] = {"interleaved": int(rng.integers(2))}
    if is_partial:
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * int(cosines.extents[1])}
    elif odds(rng, 0.5):
        attributes["num_heads"] = heads
    x = _operand("batch", heads, "steps", size) if odds(rng, 0.5) else _operand("batch", "steps", heads * size)
    places = (
        Operand((1,), lambda rng, sizes, shape: rng.integers(0, 24 - sizes["steps"], shape)),
        Operand(("batch", "steps"), lambda rng, sizes, shape: rng.integers(0, 24, shape)),
    )
    operands = [x, pick(rng, places), cosines, sines]
    return Layer("RotaryEmbedding", MICROSOFT, 1, operands, attributes, 1)


# --- ai.onnx


def _standard_attention(rng: Generator) -> Layer:
    key_heads, group = int(rng.integers(1, 4)), pick(rng, (1, 1, 2, 3))
    heads, size, value_size = key_heads * group, pick(rng, (1, 2, 4, 8)), pick(rng, (1, 4, 5))
    has_past = odds(rng, 0.4)
    keys = "steps" if has_past else pick(rng, ("steps", "keys"))
    total = f"past+{keys}" if has_past else keys
    attributes: dict[str, Any] = {}
    if odds(rng, 0.5):
        query = _operand("batch", heads, "steps", size)
        key, value = (_operand("batch", key_heads, keys, n) for n in (size, value_size))
    else:
        attributes |= {"q_num_heads": heads, "kv_num_heads": key_heads}
        query = _operand("batch", "steps", heads * size)
        key, value = (_operand("batch", keys, key_heads * n) for n in (size, value_size))
    if odds(rng, 0.4):
        attributes["is_causal"] = 1
    if odds(rng, 0.3):
        attributes["scale"] = pick(rng, (0.3, 1.5))
    if odds(rng, 0.3):
        attributes["softcap"] = pick(rng, (0.5, 3.0))
    mask = None
    if odds(rng, 0.5):
        rank = int(rng.integers(2, 5))
        extents = (*_broadcast(rng, "batch", heads)[4 - rank :], "steps", total)
        mask = Operand(extents, pick(rng, (_floats, _bools)))
    caches = [_operand("batch", key_heads, "past", n) if has_past else None for n in (size, value_size)]
    outputs = 3 if has_past else 1
    if odds(rng, 0.3):
        attributes["qk_matmul_output_mode"], outputs = int(rng.integers(4)), 4
    operands: list[Operand | None] = [query, key, value, mask, *caches]
    version = pick(rng, (23, 24, 25))
    if version == 25:
        attributes |= {f"{side}_window_size": int(rng.integers(4)) for side in ("left", "right") if odds(rng, 0.5)}
    if version > 23 and not has_past and odds(rng, 0.3):
        operands.append(Operand(("batch",), lambda rng, sizes, shape: rng.integers(1, sizes[keys] + 1, shape)))
    return Layer("Attention", "", version, operands, attributes, outputs)


def _standard_rotary(rng: Generator) -> Layer:
    heads, size = int(rng.integers(1, 4)), pick(rng, (2, 4, 8, 16))
    cosines, sines = _rotary_caches(size, 24, rng)
    half = int(cosines.extents[1])
    attributes: dict[str, Any] = {"interleaved": int(rng.integers(2))}
    if 2 * half < size:
        attributes["rotary_embedding_dim"] = 2 * half
    is_flat = odds(rng, 0.5)
    x = _operand("batch", "steps", heads * size) if is_flat else _operand("batch", heads, "steps", size)
    if is_flat:
        attributes["num_heads"] = heads
    if odds(rng, 0.5):
        places = Operand(("batch", "steps"), lambda rng, sizes, shape: rng.integers(0, 24, shape))
        operands = [x, cosines, sines, places]
    else:
        operands = [x, *(Operand(("batch", "steps", half), _floats) for _ in range(2))]
    return Layer("RotaryEmbedding", "", 23, operands, attributes, 1)


DRAWN: Final = (
    *(_attention, _multi_head_attention, _multi_head_attention),
    *(_group_query_attention,) * 4,
    *(_standard_attention,) * 3,
    *(_rotary_of_microsoft, _standard_rotary),
)


def draw_layer(rng: Generator) -> Layer:
    """Draw an operator, its attributes, and which inputs it has."""
    layer: Layer = pick(rng, DRAWN)(rng)
    return layer
