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

from aotc.ir import (
    Attrs,
    AxisMap,
    OpPattern,
    PrecisionTreatment,
    QuantizationTreatment,
    TensorType,
    Type,
    Types,
    declare_arguments,
    require,
)
from aotc.relay.op.contraction_accumulator_types import cast_tensor, widen_narrow_float_array, widen_narrow_float_tensor
from aotc.relay.op.elementwise_op_constructors import (
    choose,
    dispatch_scalar_or_array,
    every,
    greater,
    intrinsic_for_scalars_and_arrays,
    lesser,
)
from aotc.relay.op.opdef import Array, Index, OpDef, Sample, Samples, Scalar, reference_from_element_function
from aotc.relay.op.operator_definition import (
    DATA_LAYOUT_BY_RANK,
    FLOAT_KIND,
    may_be_equal_dims,
    random_array,
    random_samples_from_rows,
    require_float_tensor,
    require_known_name,
    require_tensor_type,
)
from aotc.relay.op.resize_sampling import cubic_kernel_pieces_at_distance
from aotc.tir import Tensor, te

GRID_SAMPLE_METHODS: Final = ("nearest", "bilinear", "bicubic")
GRID_PADDING_MODES: Final = ("zeros", "border", "reflection")
#: Parameter of Keys' cubic convolution kernel in PyTorch and ONNX.
CUBIC_KERNEL_PARAMETER: Final = -0.75


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


def _infer_grid_sample_type(a: GridSampleAttrs, types: Types) -> Type:
    data, grid = map(require_float_tensor, types)
    n = data.rank - 2
    require("grid.rank", n in (2, 3) and grid.rank == data.rank, lambda: f"data {data} and grid {grid}: rank 4 or 5")
    require(
        "layout",
        a.layout == DATA_LAYOUT_BY_RANK[n],
        lambda: f"layout must be {DATA_LAYOUT_BY_RANK[n]}, got {a.layout!r}",
    )
    require_known_name("grid.method", "method", a.method, GRID_SAMPLE_METHODS)
    require_known_name("grid.padding", "padding", a.padding_mode, GRID_PADDING_MODES)
    require(
        "grid.batch", may_be_equal_dims(data.shape[0], grid.shape[0]), lambda: f"batches of {data} and {grid} differ"
    )
    require("grid.axes", may_be_equal_dims(grid.shape[1], n), lambda: f"the grid must hold {n} coordinates, got {grid}")
    require("grid.empty", 0 not in data.shape[2:], lambda: f"nothing to sample in {data}")
    return TensorType((*data.shape[:2], *grid.shape[2:]), data.dtype)


def _grid_sample_axis_map(_: Any, types: Types) -> AxisMap:
    rank = require_tensor_type(types[0]).rank
    return AxisMap(((0, 1, *(None,) * (rank - 2)), (0, None, *range(2, rank))))


# --- coordinates: for numpy arrays and for expressions


_floor, _abs, _fmod = map(intrinsic_for_scalars_and_arrays, ("floor", "abs", "fmod"))
_rint = dispatch_scalar_or_array(intrinsic_for_scalars_and_arrays("round_even"), np.rint)


def _clip_to_element_index(x: Any, extent: int) -> Any:
    return lesser(greater(x.astype("int64"), 0), extent - 1)


def _grid_to_element_coordinate(a: GridSampleAttrs, grid_coordinate: Any, extent: int) -> Any:
    """Convert grid positions, from -1 to 1 along an axis, to positions in units of its `extent`
    elements.
    """
    if a.align_corners:
        return (grid_coordinate + 1.0) * ((extent - 1) / 2)
    return ((grid_coordinate + 1.0) * float(extent) - 1.0) * 0.5


def _apply_padding_mode(a: GridSampleAttrs, coordinate: Any, extent: int) -> Any:
    """Move a position into the data by the padding mode (border or reflection); unchanged for
    zeros.
    """
    if a.padding_mode == "reflection":
        low, high = (0.0, extent - 1.0) if a.align_corners else (-0.5, extent - 0.5)
        width = high - low
        if width == 0:
            return coordinate * 0.0
        t = _fmod(_abs(coordinate - low), 2 * width)
        coordinate = choose(t > width, 2 * width - t, t) + low
    if a.padding_mode == "zeros":
        return coordinate
    return lesser(greater(coordinate, 0.0), extent - 1.0)


def _taps_and_weights_along_axis(a: GridSampleAttrs, coordinate: Any, extent: int) -> list[tuple[Any, Any]]:
    """Return (position, weight) for each element that contributes to a sample along one axis."""
    if a.method == "nearest":
        return [(_apply_padding_mode(a, _rint(coordinate), extent), None)]
    if a.method == "bilinear":
        coordinate = _apply_padding_mode(a, coordinate, extent)
        low = _floor(coordinate)
        f = coordinate - low
        return [(low, 1.0 - f), (low + 1.0, f)]
    low = _floor(coordinate)
    f = coordinate - low
    distances = (
        cubic_kernel_pieces_at_distance(f + 1.0, CUBIC_KERNEL_PARAMETER)[1],
        cubic_kernel_pieces_at_distance(f, CUBIC_KERNEL_PARAMETER)[0],
        cubic_kernel_pieces_at_distance(1.0 - f, CUBIC_KERNEL_PARAMETER)[0],
        cubic_kernel_pieces_at_distance(2.0 - f, CUBIC_KERNEL_PARAMETER)[1],
    )
    return [(_apply_padding_mode(a, low + float(k - 1), extent), w) for k, w in enumerate(distances)]


def _sample_coordinate_along_axis(
    a: GridSampleAttrs, spatial_axis: int, output_index: Sequence[Any], data: Any, grid: Any
) -> Any:
    """Return the sampled position along spatial axis `spatial_axis` for the output element
    `output_index` = (image, *position), scalars or arrays.
    """
    image, *place = output_index
    where = (image, len(data.shape) - 3 - spatial_axis, *place)
    return _grid_to_element_coordinate(a, grid[where].astype("float32"), data.shape[spatial_axis + 2])


def _interpolate_at_position(
    a: GridSampleAttrs, image: Any, channel: Any, coordinates: Sequence[Any], data: Any
) -> Any:
    """Return the value of a channel of an image at `coordinates` between its elements: the weighted
    sum of neighboring elements by the operator's method.

    Takes scalar expressions of a tensor program, or numpy arrays.
    """
    space = data.shape[2:]
    taps = [_taps_and_weights_along_axis(a, x, extent) for x, extent in zip(coordinates, space, strict=True)]
    return reduce(
        add, (_weighted_tap_value(a, data, (image, channel), combination) for combination in itertools.product(*taps))
    )


def _weighted_tap_value(
    a: GridSampleAttrs, data: Any, image_and_channel: tuple[Any, Any], taps: Sequence[tuple[Any, Any]]
) -> Any:
    pairs = list(zip((p for p, _ in taps), data.shape[2:], strict=True))
    where = (*image_and_channel, *(_clip_to_element_index(p, e) for p, e in pairs))
    value = data[where]
    if a.padding_mode == "zeros":
        value = choose(every(*(s for p, e in pairs for s in (p >= 0.0, p <= e - 1.0))), value, 0.0)
    for _, weight in taps:
        value = value if weight is None else value * weight.astype(data.dtype)
    return value


def _grid_sample_element(a: GridSampleAttrs, i: Index, data: Array, grid: Array) -> Any:
    image, channel, *place = i
    at = [_sample_coordinate_along_axis(a, k, (image, *place), data, grid) for k in range(len(place))]
    return _interpolate_at_position(a, image, channel, at, widen_narrow_float_array(data))


def _compute_grid_sample(a: GridSampleAttrs, data: Tensor, grid: Tensor) -> Tensor:
    x, positions = widen_narrow_float_tensor(data), cast_tensor(grid, "float32")
    shape = (data.shape[0], *grid.shape[2:])

    def compute_coordinates_along_axis(spatial_axis: int) -> Tensor:
        return te.compute(
            shape,
            lambda *i: _sample_coordinate_along_axis(a, spatial_axis, i, x, positions),
            "position",
            materialize=True,
        )

    axes = [compute_coordinates_along_axis(k) for k in range(data.rank - 2)]

    def interpolate_output_element(image: Scalar, channel: Scalar, *place: Scalar) -> Any:
        where = (image, *place)
        return _interpolate_at_position(a, image, channel, [p[where] for p in axes], x)

    return cast_tensor(
        te.compute((*data.shape[:2], *grid.shape[2:]), interpolate_output_element, "grid_sample"), data.dtype
    )


def _grid_sample_test_samples() -> Samples:
    for method, padding, corners in itertools.product(GRID_SAMPLE_METHODS, GRID_PADDING_MODES, (True, False)):
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
    args=declare_arguments("data", "grid"),
    infer=_infer_grid_sample_type,
    reference=reference_from_element_function(_infer_grid_sample_type, _grid_sample_element),
    pattern=OpPattern.INJECTIVE,
    axes=_grid_sample_axis_map,
    compute=_compute_grid_sample,
    precision=PrecisionTreatment.NEVER,
    samples=_grid_sample_test_samples,
)


# --- image.affine_grid


class AffineGridAttrs(Attrs):
    """Grid of sampling positions (N, 2, OH, OW) from affine maps `data` (N, 2, 3); `target_shape`
    is (OH, OW).

    The maps are applied to (x, y, 1) for x and y from -1 to 1, ends included; x is the first
    result.
    """

    target_shape: tuple[int, ...]


def _infer_affine_grid_type(a: AffineGridAttrs, types: Types) -> Type:
    data = require_float_tensor(types[0])
    fits = data.rank == 3 and all(map(may_be_equal_dims, data.shape[1:], (2, 3)))
    require("affine_grid.data", fits, lambda: f"data must have the shape (N, 2, 3), got {data}")
    sizes = len(a.target_shape) == 2 and min(a.target_shape) > 1
    require("affine_grid.size", sizes, f"target_shape must be two extents of at least 2, got {a.target_shape}")
    return TensorType((data.shape[0], 2, *a.target_shape), data.dtype)


def _affine_grid_element(a: AffineGridAttrs, i: Index, data: Any) -> Any:
    image, axis, *at = i
    y, x = (k.astype(data.dtype) * (2 / (n - 1)) - 1.0 for k, n in zip(at, a.target_shape, strict=True))
    return data[image, axis, 0] * x + data[image, axis, 1] * y + data[image, axis, 2]


def _compute_affine_grid(a: AffineGridAttrs, data: Tensor) -> Tensor:
    work = widen_narrow_float_tensor(data)
    shape = (data.shape[0], 2, *a.target_shape)
    return cast_tensor(te.compute(shape, lambda *i: _affine_grid_element(a, i, work), "affine_grid"), data.dtype)


affine_grid = OpDef(
    name="image.affine_grid",
    attrs=AffineGridAttrs,
    infer=_infer_affine_grid_type,
    reference=reference_from_element_function(
        _infer_affine_grid_type, lambda a, i, data: _affine_grid_element(a, i, widen_narrow_float_array(data))
    ),
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((0, None, None, None),)),
    compute=_compute_affine_grid,
    precision=PrecisionTreatment.NEVER,
    quantized=QuantizationTreatment.REFUSE,
    samples=random_samples_from_rows(
        AffineGridAttrs, [(((3, 2, 3),), {"target_shape": (4, 3)}, dtype) for dtype in FLOAT_KIND.examples]
    ),
)
