# SPDX-License-Identifier: Apache-2.0
"""Source coordinates and filter weights of resize operators.

Input: the attributes of a resize and the data's extents. Output for each axis: source coordinates
as exact fractions, and the taps and weights of the filter. Formulas work on numpy arrays as well as
on scalar expressions.

    axis = axis_mappings_of_resize(2, attributes, (4, 4))[0]
    tap_indices_and_weights(attributes, axis)  # indices and weights, each (count, taps)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isinf, lcm
from typing import Any, Final

import numpy as np

from aotc.ir import (
    Attrs,
    Dim,
    SymDim,
    attribute_field,
    frozen,
    interval_of_dim,
    is_static,
    largest_size,
    maximum_of_dims,
    product_of_dims,
    require,
    require_static_shape,
    sign_bit_of_dim,
    sum_of_dims,
)
from aotc.ir.size_operands import MAX_DENOMINATOR
from aotc.relay.op.operator_definition import Array, Scalar, choose, greater, repeat_for_each_axis
from aotc.tir import as_expr

RESIZE_METHODS: Final = ("nearest_neighbor", "linear", "cubic")
COORDINATE_MODES: Final = (
    "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
RESIZE_ROUNDING_METHODS: Final = ("", "round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


class ResizeAttrs(Attrs):
    """Attributes of a resize.

    `size` and `scales` have one value per spatial axis; `roi` has all starts, then all ends, as
    fractions of the extents. `scale_fractions` and `roi_fractions` are the same numbers as pairs of a
    numerator and a positive denominator, which may be known at run time only.
    """

    size: tuple[int | SymDim, ...] | None = None
    roi: tuple[float, ...] | None = None
    layout: str = "NCHW"
    method: str = "linear"
    coordinate_transformation_mode: str = "half_pixel"
    rounding_method: str = attribute_field(default="round", parameter_default="")
    cubic_alpha: float = -0.5
    cubic_exclude: int = 0
    extrapolation_value: float = 0.0
    out_dtype: str = ""
    scales: tuple[float, ...] | None = None
    antialias: bool = False
    scale_fractions: tuple[tuple[int | SymDim, int | SymDim], ...] | None = None
    roi_fractions: tuple[tuple[int | SymDim, int | SymDim], ...] | None = None


# --- coordinates


def _approximate_as_fraction(value: float) -> Fraction:
    return Fraction(value).limit_denominator(MAX_DENOMINATOR) or Fraction(value)


def _coordinate_slope_and_offset(
    mode: str, input_extent: int, output_count: int, scale: Fraction, roi: tuple[Fraction, Fraction]
) -> tuple[Any, Any]:
    """Return (slope, offset) of the source coordinate of an output index, by ONNX's definitions.

    "length_resized" is the number of outputs, as in ONNX Runtime and torch. ONNX's reference
    evaluator uses the product of factor and extent, which need not be an integer.
    """
    resized, half = scale * input_extent, Fraction(1, 2)
    center = half / scale - half
    match mode:
        case "pytorch_half_pixel" if output_count <= 1:
            return 0, 0
        case "align_corners":
            return (Fraction(input_extent - 1, output_count - 1), 0) if output_count > 1 else (0, 0)
        case "tf_crop_and_resize":
            start, end = (part * (input_extent - 1) for part in roi)
            return ((end - start) / (output_count - 1), start) if output_count > 1 else (0, (start + end) / 2)
    offsets = {
        "half_pixel": center,
        "pytorch_half_pixel": center,
        "half_pixel_symmetric": center + Fraction(input_extent, 2) * (1 - Fraction(output_count) / resized),
        "asymmetric": 0,
        "tf_half_pixel_for_nn": half / scale,
    }
    return 1 / scale, offsets[mode]


@frozen
class AxisMapping:
    """Coordinate mapping of a spatial axis: output o samples coordinate (p * o + q) / r of `extent`
    elements. `scale` is the factor by which the axis grows, as a numerator and a denominator.
    """

    extent: Dim
    count: Dim
    p: Dim
    q: Dim
    r: Dim
    scale: tuple[Dim, Dim]

    @property
    def is_static(self) -> bool:
        """True if nothing is known at run time only."""
        return is_static((self.extent, self.count, self.p, self.q, self.r, *self.scale))

    @property
    def static_extents(self) -> tuple[int, int]:
        """The extents of the data and of the result; TypeError if they are known at run time only."""
        extent, count = require_static_shape((self.extent, self.count))
        return extent, count

    @property
    def is_identity_mapping(self) -> bool:
        return (self.extent, self.p, self.q) == (self.count, self.r, 0)

    def source_coordinate_numerator(self, output_index: Any) -> Any:
        return output_index * operand_of(self.p) + operand_of(self.q)

    def nearest_source_index(self, output_index: Any, rounding: str) -> Any:
        """Return the nearest source index of output o, not clamped to the axis, for numbers and
        expressions.
        """
        at = self.source_coordinate_numerator(output_index)
        if rounding in ("floor", "ceil"):
            return (at if rounding == "floor" else at + operand_of(self.r - 1)) // operand_of(self.r)
        return (at * 2 + operand_of(self.r - int(rounding == "round_prefer_floor"))) // operand_of(2 * self.r)

    def source_inside_data_conditions(self, output_index: Scalar) -> list[Scalar]:
        """Return the conditions for the coordinate of output o to be inside the data; empty if it
        always is.
        """
        conditions: list[Scalar] = []
        at, last = self.source_coordinate_numerator(output_index), product_of_dims((self.extent - 1, self.r))
        ends = (self.q, sum_of_dims((product_of_dims((self.count - 1, self.p)), self.q)))
        if any(interval_of_dim(end)[0] < 0 for end in ends):
            conditions.append(at >= 0)
        if any(interval_of_dim(end)[1] > interval_of_dim(last)[0] for end in ends):
            conditions.append(at <= operand_of(last))
        return conditions


def operand_of(dim: Dim) -> Any:
    """Return a dimension as an operand of arithmetic on scalar expressions and arrays."""
    return as_expr(dim) if isinstance(dim, SymDim) else dim


def sizes_of_each_axis(size: int | Sequence[Dim], spatial_rank: int) -> tuple[Dim, ...]:
    """Return the result's extent of each spatial axis; one size stands for all axes."""
    if isinstance(size, int) or not any(isinstance(d, SymDim) for d in size):
        return repeat_for_each_axis(size, spatial_rank)  # type: ignore[arg-type]
    require("resize.size", len(size) == spatial_rank, f"expected {spatial_rank} sizes, got {size}")
    return tuple(size)


def axis_mappings_of_resize(spatial_rank: int, a: ResizeAttrs, spatial_extents: Sequence[Dim]) -> list[AxisMapping]:
    """Return the coordinate mapping of each spatial axis."""
    sizes = sizes_of_each_axis(a.size or (), spatial_rank)
    rows = zip(spatial_extents, sizes, range(spatial_rank), strict=True)
    return [_axis_mapping(a, extent, count, k, spatial_rank) for extent, count, k in rows]


def _axis_mapping(a: ResizeAttrs, extent: Dim, count: Dim, k: int, spatial_rank: int) -> AxisMapping:
    scale: tuple[Dim, Dim] = (count, extent)
    if a.scale_fractions is not None:
        scale = a.scale_fractions[k]
    elif a.scales:
        scale = _approximate_as_fraction(a.scales[k]).as_integer_ratio()
    region: list[tuple[Dim, Dim]] = [(0, 1), (1, 1)]
    if a.roi_fractions is not None:
        region = [a.roi_fractions[k], a.roi_fractions[spatial_rank + k]]
    elif a.roi:
        region = [_approximate_as_fraction(a.roi[j]).as_integer_ratio() for j in (k, spatial_rank + k)]
    mode = a.coordinate_transformation_mode
    if not is_static((extent, count, *scale, *region[0], *region[1])):
        mapping = AxisMapping(extent, count, *_run_time_mapping(mode, extent, count, scale, region), scale)
        _require_coordinates_in_64_bits(mapping)
        return mapping
    known_extent, known_count = require_static_shape((extent, count))
    start, end, factor = (Fraction(*require_static_shape(pair)) for pair in (*region, scale))
    slope, offset = map(Fraction, _coordinate_slope_and_offset(mode, known_extent, known_count, factor, (start, end)))
    r = lcm(slope.denominator, offset.denominator)
    p, q = int(slope * r), int(offset * r)
    reach = 2 * max(abs(q), abs((known_count - 1) * p + q), r)
    require("resize.reach", reach < 1 << 62, "the sampled coordinates do not fit in 64 bits")
    return AxisMapping(extent, count, p, q, r, factor.as_integer_ratio())


def _require_coordinates_in_64_bits(axis: AxisMapping) -> None:
    last = sum_of_dims((product_of_dims((axis.count - 1, axis.p)), axis.q))
    reach = 2 * max(abs(end) for dim in (axis.q, last, axis.r) for end in interval_of_dim(dim))
    # nothing is known of sizes that have no bounds yet
    fits = isinf(reach) or reach < 1 << 62
    require("resize.reach", fits, "the sampled coordinates do not fit in 64 bits")


def _run_time_mapping(
    mode: str, extent: Dim, count: Dim, scale: tuple[Dim, Dim], region: Sequence[tuple[Dim, Dim]]
) -> tuple[Dim, Dim, Dim]:
    """Return p, q and r of an axis whose sizes are known at run time only: the definitions of
    `_coordinate_slope_and_offset` with a common denominator, for counts of at least 1.
    """
    numerator, denominator = scale
    steps = maximum_of_dims((count - 1, 1))
    is_single = sign_bit_of_dim(count - 2)  # 1 for one output
    if mode == "align_corners":
        return extent - 1, 0, steps
    if mode == "asymmetric":
        return denominator, 0, numerator
    if mode == "tf_half_pixel_for_nn":
        return 2 * denominator, denominator, 2 * numerator
    if mode == "tf_crop_and_resize":
        (start, start_unit), (end, end_unit) = region
        first, last = product_of_dims((start, end_unit)), product_of_dims((end, start_unit))
        offset = sum_of_dims((product_of_dims((2, first, count - 1)), product_of_dims((is_single, first + last))))
        r = product_of_dims((2, start_unit, end_unit, steps))
        return product_of_dims((2, extent - 1, last - first)), product_of_dims((extent - 1, offset)), r
    offset = denominator - numerator
    if mode == "pytorch_half_pixel":
        offset = product_of_dims((offset, 1 - is_single))
    elif mode == "half_pixel_symmetric":
        resized = product_of_dims((extent, numerator)) - product_of_dims((count, denominator))
        offset = sum_of_dims((offset, resized))
    return 2 * denominator, offset, 2 * numerator


def rounding_method_or_default(a: ResizeAttrs) -> str:
    """Return the rounding method; by Relay's rule, "" means "round" for align_corners and "floor"
    otherwise.
    """
    if a.rounding_method:
        return a.rounding_method
    return "round" if a.coordinate_transformation_mode == "align_corners" else "floor"


# --- filters: written once for numpy arrays and for expressions


def cubic_kernel_pieces_at_distance(distance: Any, alpha: float) -> tuple[Any, Any]:
    """Return the values of Keys' cubic convolution kernel for a distance d in [0, 1] and for d in
    [1, 2].
    """
    # factored at the roots, since sums of powers would cancel there
    near = (distance - 1.0) * (((alpha + 2) * distance - 1.0) * distance - 1.0)
    far = (distance - 1.0) * (distance - 2.0) * (distance - 2.0) * alpha
    return near, far


def filter_weight_at_distance(a: ResizeAttrs, distance: Any) -> Any:
    """Return the filter weight of a tap at distance d."""
    if a.method == "linear":
        return greater(1.0 - distance, 0.0)
    near, far = cubic_kernel_pieces_at_distance(distance, a.cubic_alpha)
    return choose(distance <= 1.0, near, choose(distance < 2.0, far, 0.0))


def tap_weights_at_fraction(a: ResizeAttrs, fraction: Any) -> list[Any]:
    """Return the weights of the taps around a coordinate at distance f (0 <= f < 1) after an
    element.
    """
    if a.method == "linear":
        return [1.0 - fraction, fraction]
    alpha = a.cubic_alpha
    return [
        cubic_kernel_pieces_at_distance(fraction + 1.0, alpha)[1],
        cubic_kernel_pieces_at_distance(fraction, alpha)[0],
        cubic_kernel_pieces_at_distance(1.0 - fraction, alpha)[0],
        cubic_kernel_pieces_at_distance(2.0 - fraction, alpha)[1],
    ]


def first_tap_offset_and_tap_count(a: ResizeAttrs, axis: AxisMapping) -> tuple[Dim, Dim]:
    """Return the offset of the first tap from the element below the coordinate, and the number of
    taps.
    """
    radius = 1 if a.method == "linear" else 2
    if not is_antialiased_downsampling(a, axis):
        return 1 - radius, 2 * radius
    numerator, denominator = axis.scale
    if not axis.is_static:
        # the factor is at least count / extent, and bounds of that are better ones
        numerator, denominator = axis.count, maximum_of_dims((axis.extent, axis.count))
    reach = (radius * denominator + (numerator - 1)) // numerator
    return 1 - reach, 2 * radius - 2 + 2 * reach


def is_antialiased_downsampling(a: ResizeAttrs, axis: AxisMapping) -> bool:
    """Return True if the filter of an axis is widened, or may be at run time."""
    if not axis.is_static:
        return a.antialias
    numerator, denominator = require_static_shape(axis.scale)
    return a.antialias and numerator < denominator


def tap_indices_and_weights(a: ResizeAttrs, axis: AxisMapping) -> tuple[Array, Array]:
    """Return source indices and weights of all outputs of an axis, each of shape (count, taps)."""
    extent, count = axis.static_extents
    at = axis.source_coordinate_numerator(np.arange(count, dtype=np.int64))
    f = (at % axis.r) / axis.r
    start, taps = require_static_shape(first_tap_offset_and_tap_count(a, axis))
    index = (at // axis.r)[:, None] + start + np.arange(taps)
    if is_antialiased_downsampling(a, axis):
        numerator, denominator = require_static_shape(axis.scale)
        distance = np.abs(np.arange(start, start + taps) - f[:, None])
        weight = filter_weight_at_distance(a, distance * (numerator / denominator))
    else:
        weight = np.stack(np.broadcast_arrays(*tap_weights_at_fraction(a, f)), axis=1)
    if a.cubic_exclude:
        weight = np.where((index >= 0) & (index < extent), weight, 0)
    if a.cubic_exclude or is_antialiased_downsampling(a, axis):
        weight = weight / weight.sum(axis=1, keepdims=True)
    return index.clip(0, extent - 1), weight


def axes_to_resample_smallest_scale_first(axes: Sequence[AxisMapping]) -> list[int]:
    """Return the axes that are resampled, ordered by scale factor so that the data shrinks first; by the
    largest sizes where they are known at run time only.
    """
    changed = [k for k, axis in enumerate(axes) if not axis.is_identity_mapping]
    return sorted(changed, key=lambda k: largest_size(axes[k].count) / largest_size(axes[k].extent))
