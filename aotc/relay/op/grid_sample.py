# SPDX-License-Identifier: Apache-2.0
"""image.grid_sample (sampling at the positions of a grid) and image.affine_grid (grids of affine
maps).

The grid has, for each output, a position from -1 to 1 along each spatial axis, the last axis first.
Coordinates are computed in float32; rounding to the nearest element rounds ties to even.

    grid_sample(x, grid, method="bilinear", padding_mode="border")   # x (N, C, H, W), grid (N, 2, OH, OW)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, OpPattern, Precision, Quantized, TensorType, Type, Types, args, require
from aotc.relay.op.contraction import convert, float_work, promoted
from aotc.relay.op.elementwise_table import choose, either, every, greater, intrinsic, lesser
from aotc.relay.op.opdef import Array, Index, OpDef, Sample, Samples, Scalar, of_formula
from aotc.relay.op.operator_definition import (
    DATA_LAYOUT,
    FLOAT,
    cases,
    float_tensor,
    may_equal,
    random_array,
    require_known,
    tensor,
)
from aotc.relay.op.resize_sampling import keys
from aotc.tir import Tensor, te

METHODS: Final = ("nearest", "bilinear", "bicubic")
PADDINGS: Final = ("zeros", "border", "reflection")
#: Parameter of Keys' cubic convolution kernel in PyTorch and ONNX.
ALPHA: Final = -0.75


class GridSampleAttrs(Attrs):
    """data (N, C, [D,] H, W) sampled at positions grid (N, 2 or 3, [OD,] OH, OW): (N, C, [OD,] OH,
    OW).

    With `align_corners`, positions -1 and 1 are the centers of the outermost elements, otherwise
    their outer edges.
    """

    method: str = "bilinear"
    layout: str = "NCHW"
    padding_mode: str = "zeros"
    align_corners: bool = True


def _infer(a: GridSampleAttrs, types: Types) -> Type:
    data, grid = map(float_tensor, types)
    n = data.rank - 2
    require("grid.rank", n in (2, 3) and grid.rank == data.rank, lambda: f"data {data} and grid {grid}: rank 4 or 5")
    require("layout", a.layout == DATA_LAYOUT[n], lambda: f"layout must be {DATA_LAYOUT[n]}, got {a.layout!r}")
    require_known("grid.method", "method", a.method, METHODS)
    require_known("grid.padding", "padding", a.padding_mode, PADDINGS)
    require("grid.batch", may_equal(data.shape[0], grid.shape[0]), lambda: f"batches of {data} and {grid} differ")
    require("grid.axes", may_equal(grid.shape[1], n), lambda: f"the grid must hold {n} coordinates, got {grid}")
    require("grid.empty", 0 not in data.shape[2:], lambda: f"nothing to sample in {data}")
    return TensorType((*data.shape[:2], *grid.shape[2:]), data.dtype)


def _axes(_: Any, types: Types) -> AxisMap:
    rank = tensor(types[0]).rank
    return AxisMap(((0, 1, *(None,) * (rank - 2)), (0, None, *range(2, rank))))


# --- coordinates: for numpy arrays and for expressions


_floor, _abs, _fmod = map(intrinsic, ("floor", "abs", "fmod"))
_rint = either(intrinsic("round_even"), np.rint)


def _index(x: Any, extent: int) -> Any:
    return lesser(greater(x.astype("int64"), 0), extent - 1)


def _unnormalized(a: GridSampleAttrs, g: Any, extent: int) -> Any:
    """Convert grid positions, from -1 to 1 along an axis, to positions in units of its `extent`
    elements.
    """
    if a.align_corners:
        return (g + 1.0) * ((extent - 1) / 2)
    return ((g + 1.0) * float(extent) - 1.0) * 0.5


def _padded(a: GridSampleAttrs, x: Any, extent: int) -> Any:
    """Move a position into the data by the padding mode (border or reflection); unchanged for
    zeros.
    """
    if a.padding_mode == "reflection":
        low, high = (0.0, extent - 1.0) if a.align_corners else (-0.5, extent - 0.5)
        width = high - low
        if width == 0:
            return x * 0.0
        t = _fmod(_abs(x - low), 2 * width)
        x = choose(t > width, 2 * width - t, t) + low
    if a.padding_mode == "zeros":
        return x
    return lesser(greater(x, 0.0), extent - 1.0)


def _taps(a: GridSampleAttrs, x: Any, extent: int) -> list[tuple[Any, Any]]:
    """Return (position, weight) for each element that contributes to a sample along one axis."""
    if a.method == "nearest":
        return [(_padded(a, _rint(x), extent), None)]
    if a.method == "bilinear":
        x = _padded(a, x, extent)
        low = _floor(x)
        f = x - low
        return [(low, 1.0 - f), (low + 1.0, f)]
    low = _floor(x)
    f = x - low
    distances = (keys(f + 1.0, ALPHA)[1], keys(f, ALPHA)[0], keys(1.0 - f, ALPHA)[0], keys(2.0 - f, ALPHA)[1])
    return [(_padded(a, low + float(k - 1), extent), w) for k, w in enumerate(distances)]


def _at(a: GridSampleAttrs, k: int, i: Sequence[Any], data: Any, grid: Any) -> Any:
    """Return the sampled position along spatial axis k for the output `i` = (image, *position),
    scalars or arrays.
    """
    image, *place = i
    where = (image, len(data.shape) - 3 - k, *place)
    return _unnormalized(a, grid[where].astype("float32"), data.shape[k + 2])


def _sampled(a: GridSampleAttrs, image: Any, channel: Any, at: Sequence[Any], data: Any) -> Any:
    """Return the interpolated value at a position, for scalars or arrays."""
    space = data.shape[2:]
    taps = [_taps(a, x, extent) for x, extent in zip(at, space, strict=True)]
    return reduce(add, (_tap(a, data, (image, channel), seen) for seen in itertools.product(*taps)))


def _tap(a: GridSampleAttrs, data: Any, first: tuple[Any, Any], seen: Sequence[tuple[Any, Any]]) -> Any:
    pairs = list(zip((p for p, _ in seen), data.shape[2:], strict=True))
    where = (*first, *(_index(p, e) for p, e in pairs))
    value = data[where]
    if a.padding_mode == "zeros":
        value = choose(every(*(s for p, e in pairs for s in (p >= 0.0, p <= e - 1.0))), value, 0.0)
    for _, weight in seen:
        value = value if weight is None else value * weight.astype(data.dtype)
    return value


def _element(a: GridSampleAttrs, i: Index, data: Array, grid: Array) -> Any:
    image, channel, *place = i
    at = [_at(a, k, (image, *place), data, grid) for k in range(len(place))]
    return _sampled(a, image, channel, at, float_work(data))


def _compute(a: GridSampleAttrs, data: Tensor, grid: Tensor) -> Tensor:
    x, positions = promoted(data), convert(grid, "float32")
    shape = (data.shape[0], *grid.shape[2:])

    def along(k: int) -> Tensor:
        return te.compute(shape, lambda *i: _at(a, k, i, x, positions), "position", materialize=True)

    axes = [along(k) for k in range(data.rank - 2)]

    def body(image: Scalar, channel: Scalar, *place: Scalar) -> Any:
        where = (image, *place)
        return _sampled(a, image, channel, [p[where] for p in axes], x)

    return convert(te.compute((*data.shape[:2], *grid.shape[2:]), body, "grid_sample"), data.dtype)


def _samples() -> Samples:
    for method, padding, corners in itertools.product(METHODS, PADDINGS, (True, False)):
        data = random_array((2, 2, 4, 5))
        grid = np.clip(random_array((2, 2, 3, 4), seed=1) * 0.8, -2.1, 2.1)
        a = GridSampleAttrs(method=method, padding_mode=padding, align_corners=corners)
        yield Sample(args=(data, grid), attrs=a)
    volume = random_array((1, 2, 2, 3, 4)), random_array((1, 3, 2, 2, 3), seed=1)
    yield Sample(args=volume, attrs=GridSampleAttrs(layout="NCDHW"))
    outside = np.full((1, 2, 1, 3), 9.0, np.float32)
    yield Sample(args=(random_array((1, 1, 2, 2)), outside), attrs=GridSampleAttrs(padding_mode="border"))


grid_sample = OpDef(
    name="image.grid_sample",
    attrs=GridSampleAttrs,
    args=args("data", "grid"),
    infer=_infer,
    reference=of_formula(_infer, _element),
    pattern=OpPattern.INJECTIVE,
    axes=_axes,
    compute=_compute,
    precision=Precision.NEVER,
    samples=_samples,
)


# --- image.affine_grid


class AffineGridAttrs(Attrs):
    """Grid of sampling positions (N, 2, OH, OW) from affine maps `data` (N, 2, 3); `target_shape`
    is (OH, OW).

    The maps are applied to (x, y, 1) for x and y from -1 to 1, ends included; x is the first
    result.
    """

    target_shape: tuple[int, ...]


def _affine_infer(a: AffineGridAttrs, types: Types) -> Type:
    data = float_tensor(types[0])
    fits = data.rank == 3 and all(map(may_equal, data.shape[1:], (2, 3)))
    require("affine_grid.data", fits, lambda: f"data must have the shape (N, 2, 3), got {data}")
    sizes = len(a.target_shape) == 2 and min(a.target_shape) > 1
    require("affine_grid.size", sizes, f"target_shape must be two extents of at least 2, got {a.target_shape}")
    return TensorType((data.shape[0], 2, *a.target_shape), data.dtype)


def _affine(a: AffineGridAttrs, i: Index, data: Any) -> Any:
    image, axis, *at = i
    y, x = (k.astype(data.dtype) * (2 / (n - 1)) - 1.0 for k, n in zip(at, a.target_shape, strict=True))
    return data[image, axis, 0] * x + data[image, axis, 1] * y + data[image, axis, 2]


def _affine_compute(a: AffineGridAttrs, data: Tensor) -> Tensor:
    work = promoted(data)
    shape = (data.shape[0], 2, *a.target_shape)
    return convert(te.compute(shape, lambda *i: _affine(a, i, work), "affine_grid"), data.dtype)


affine_grid = OpDef(
    name="image.affine_grid",
    attrs=AffineGridAttrs,
    infer=_affine_infer,
    reference=of_formula(_affine_infer, lambda a, i, data: _affine(a, i, float_work(data))),
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((0, None, None, None),)),
    compute=_affine_compute,
    precision=Precision.NEVER,
    quantized=Quantized.REFUSE,
    samples=cases(AffineGridAttrs, [(((3, 2, 3),), {"target_shape": (4, 3)}, dtype) for dtype in FLOAT.examples]),
)
