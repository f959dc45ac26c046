# SPDX-License-Identifier: Apache-2.0
"""STRIDED_SLICE with all combinations of masks has the results of numpy's indexing and of LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert

_MASKS = ("beginMask", "endMask", "ellipsisMask", "newAxisMask", "shrinkAxisMask")


def model_of(shape: tuple[int, ...], dtype: str, items: list[Any], **options: Any) -> bytes:
    """A slice by items of (begin, end, stride)."""
    model = Builder()
    scale = {"scale": 0.1, "zero": 3} if dtype == "int8" else {}
    x, y = model.tensor(shape, dtype, **scale), model.tensor((), dtype, **scale)
    numbers = [model.tensor((len(items),), "int32", [item[k] for item in items]) for k in range(3)]
    model.op("STRIDED_SLICE", [x, *numbers], [y], "StridedSliceOptions", version=8, **options)
    return model.data([x], [y])


def item_of(rng: np.random.Generator, kind: str, size: int, offset: bool) -> tuple[Any, dict[str, int], Any]:
    """An item for an axis of `size` elements: its numbers, its bits, and what numpy calls it."""
    bits = {name: int(rng.random() < 0.3) for name in _MASKS}
    # where masks overlap, those in front take precedence
    order = ("ellipsisMask", "newAxisMask", "shrinkAxisMask")
    bits |= {name: int(name == kind) for name in order[: order.index(kind) + 1]}
    bits["shrinkAxisMask"] &= int(kind != order[2] or rng.random() < 0.4)
    step = int(rng.choice([1, 1, 2, 3] if offset else [1, 1, 2, -1, -2]))
    begin, end = (int(v) for v in rng.integers(-size - 1, size + 2, 2))
    if kind in order[:2]:
        return (begin, end, step), bits, {order[0]: ..., order[1]: None}[kind]
    if bits["shrinkAxisMask"]:
        begin = int(rng.integers(-size, size))
        bits["beginMask"] &= int(begin == 0)
        return (begin, end, 1), bits, begin
    if offset:
        begin = int(rng.integers(0, size)) - size * int(rng.integers(2))
        start = 0 if bits["beginMask"] else begin % size
        end = int(rng.integers(0, size - start + 1))
        return (begin, end, step), bits, slice(start, None if bits["endMask"] else start + end, step)
    first, last = (None if bits[name] else v for name, v in (("beginMask", begin), ("endMask", end)))
    return (begin, end, step), bits, slice(first, last, step)


def drawn(rng: np.random.Generator) -> tuple[tuple[int, ...], list[Any], dict[str, Any], tuple[Any, ...]]:
    """A shape, items with masks whose bits overlap, and the index of numpy that they stand for."""
    shape = tuple(int(d) for d in rng.integers(1, 6, rng.integers(1, 5)))
    options: dict[str, Any] = dict.fromkeys(_MASKS, 0) | {"offset": not rng.integers(4)}
    named = int(rng.integers(0, len(shape) + 1))
    kinds = ["shrinkAxisMask"] * named + ["newAxisMask"] * int(rng.integers(0, 6 - len(shape)))
    kinds = [str(k) for k in rng.permutation(kinds + ["ellipsisMask"] * int(rng.integers(2) or not kinds))]
    items, index, axis = [], [], 0
    for bit, kind in enumerate(kinds):
        numbers, bits, item = item_of(rng, kind, shape[axis] if axis < len(shape) else 1, options["offset"])
        axis += {"ellipsisMask": len(shape) - named, "newAxisMask": 0}.get(kind, 1)
        items.append(numbers)
        index.append(item)
        for name, value in bits.items():
            options[name] |= value << bit
    return shape, items, options, tuple(index)


def comparable(options: dict[str, Any], shape: tuple[int, ...], index: tuple[Any, ...]) -> bool:
    """Whether LiteRT computes what TensorFlow defines.

    It makes an ellipsis cover at least one axis. With an offset it adds the start of each axis to its end, even to one
    that a mask, an ellipsis or the lack of an item puts at the end of the axis, and reads beyond the tensor; new axes
    make it do so, too.
    """
    named = sum(item is not None and item is not ... for item in index)
    if options["offset"]:
        return named == len(shape) == len(index) and not options["endMask"]
    return named < len(shape) or ... not in index


@pytest.mark.parametrize("seed", range(40))
def test_masks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(10):
        shape, items, options, index = drawn(rng)
        dtype = "int8" if number % 2 else "float32"
        array = rng.permutation(np.prod(shape)).reshape(shape).astype(dtype)
        data = model_of(shape, dtype, items, **options)
        (actual,) = run_model(from_tflite(data), {"t0": array})
        wanted = array[index]
        assert actual.shape == wanted.shape, (shape, items, options)
        np.testing.assert_array_equal(actual, wanted, err_msg=str((shape, items, options)))
        if comparable(options, shape, index):
            np.testing.assert_array_equal(litert(data, [array], xnnpack=False)[0], wanted)


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ([(0, 0, 1)] * 2, {"ellipsisMask": 3}, "more than one ellipsis"),
        ([(0, 0, 1)] * 3, {}, "does not fit"),
        ([(0, 2, 0)], {}, "does not fit"),
        ([(4, 0, 1)], {"shrinkAxisMask": 1}, "index 4 is out of range for 4 elements"),
        ([(2, 3, -1)], {"shrinkAxisMask": 1}, "item 0 of a slice is the integer 2 with the stride -1"),
        ([(2, 3, 1)], {"shrinkAxisMask": 1, "beginMask": 1}, "or with its bit in begin_mask"),
        ([(2, 3, 1)], {"offset": True}, "3 elements from 2 by 1 .offset. leaves an axis of 4"),
        ([(2, -1, -1)], {"offset": True}, "leaves an axis of 4"),
    ],
)
def test_what_fits_no_axis_is_refused(items: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(AotcError, match=message):
        from_tflite(model_of((4, 5), "float32", items, **options))
