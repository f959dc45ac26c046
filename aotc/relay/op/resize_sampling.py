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
from math import floor, lcm
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, attribute_field, frozen, require
from aotc.relay.op.operator_definition import Array, Scalar, choose, greater, repeat_for_each_axis

RESIZE_METHODS: Final = ("nearest_neighbor", "linear", "cubic")
COORDINATE_MODES: Final = (
    "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
RESIZE_ROUNDING_METHODS: Final = ("", "round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
#: Largest denominator of the fractions that approximate scale factors and regions given as floats.
MAX_SCALE_DENOMINATOR: Final = 1 << 16


class ResizeAttrs(Attrs):
    """Attributes of a resize.

    `size` and `scales` have one value per spatial axis; `roi` has all starts, then all ends, as
    fractions of the extents.
    """

    size: tuple[int, ...] | None = None
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


# --- coordinates


def _approximate_as_fraction(value: float) -> Fraction:
    return Fraction(value).limit_denominator(MAX_SCALE_DENOMINATOR) or Fraction(value)


def _coordinate_slope_and_offset(
    mode: str, input_extent: int, output_count: int, scale: Fraction, roi: tuple[float, float]
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
            start, end = (_approximate_as_fraction(part) * (input_extent - 1) for part in roi)
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
    elements.
    """

    extent: int
    count: int
    p: int
    q: int
    r: int
    scale: Fraction

    @property
    def is_identity_mapping(self) -> bool:
        return (self.extent, self.p, self.q) == (self.count, self.r, 0)

    def source_coordinate_numerator(self, output_index: Any) -> Any:
        return output_index * self.p + self.q

    def nearest_source_index(self, output_index: Any, rounding: str) -> Any:
        """Return the nearest source index of output o, not clamped to the axis, for numbers and
        expressions.
        """
        at = self.source_coordinate_numerator(output_index)
        if rounding in ("floor", "ceil"):
            return (at if rounding == "floor" else at + (self.r - 1)) // self.r
        return (at * 2 + (self.r - (rounding == "round_prefer_floor"))) // (2 * self.r)

    def source_inside_data_conditions(self, output_index: Scalar) -> list[Scalar]:
        """Return the conditions for the coordinate of output o to be inside the data; empty if it
        always is.
        """
        conditions: list[Scalar] = []
        ends = (self.q, self.source_coordinate_numerator(self.count - 1))
        if min(ends) < 0:
            conditions.append(self.source_coordinate_numerator(output_index) >= 0)
        if max(ends) > (self.extent - 1) * self.r:
            conditions.append(self.source_coordinate_numerator(output_index) <= (self.extent - 1) * self.r)
        return conditions


def axis_mappings_of_resize(spatial_rank: int, a: ResizeAttrs, spatial_extents: Sequence[int]) -> list[AxisMapping]:
    sizes = repeat_for_each_axis(a.size or (), spatial_rank)
    roi = a.roi or (0.0,) * spatial_rank + (1.0,) * spatial_rank
    axes = []
    for k, (extent, count) in enumerate(zip(spatial_extents, sizes, strict=True)):
        scale = _approximate_as_fraction(a.scales[k]) if a.scales else Fraction(count, extent)
        slope, offset = _coordinate_slope_and_offset(
            a.coordinate_transformation_mode, extent, count, scale, (roi[k], roi[spatial_rank + k])
        )
        slope, offset = Fraction(slope), Fraction(offset)
        r = lcm(slope.denominator, offset.denominator)
        axis = AxisMapping(extent, count, int(slope * r), int(offset * r), r, scale)
        reach = 2 * max(abs(axis.q), abs(axis.source_coordinate_numerator(count - 1)), r)
        require("resize.reach", reach < 1 << 62, "the sampled coordinates do not fit in 64 bits")
        axes.append(axis)
    return axes


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


def first_tap_offset_and_tap_count(a: ResizeAttrs, axis: AxisMapping) -> tuple[int, int]:
    """Return the offset of the first tap from the element below the coordinate, and the number of
    taps.
    """
    radius = 1 if a.method == "linear" else 2
    if not is_antialiased_downsampling(a, axis):
        return 1 - radius, 2 * radius
    start = floor(-radius / axis.scale) + 1
    return start, 2 * radius - 2 * start if radius == 1 else 4 - 2 * start


def is_antialiased_downsampling(a: ResizeAttrs, axis: AxisMapping) -> bool:
    return a.antialias and axis.scale < 1


def tap_indices_and_weights(a: ResizeAttrs, axis: AxisMapping) -> tuple[Array, Array]:
    """Return source indices and weights of all outputs of an axis, each of shape (count, taps)."""
    at = axis.source_coordinate_numerator(np.arange(axis.count, dtype=np.int64))
    f = (at % axis.r) / axis.r
    start, taps = first_tap_offset_and_tap_count(a, axis)
    index = (at // axis.r)[:, None] + start + np.arange(taps)
    if is_antialiased_downsampling(a, axis):
        weight = filter_weight_at_distance(a, np.abs(np.arange(start, start + taps) - f[:, None]) * float(axis.scale))
    else:
        weight = np.stack(np.broadcast_arrays(*tap_weights_at_fraction(a, f)), axis=1)
    if a.cubic_exclude:
        weight = np.where((index >= 0) & (index < axis.extent), weight, 0)
    if a.cubic_exclude or is_antialiased_downsampling(a, axis):
        weight = weight / weight.sum(axis=1, keepdims=True)
    return index.clip(0, axis.extent - 1), weight


def axes_to_resample_smallest_scale_first(axes: Sequence[AxisMapping]) -> list[int]:
    """Return the axes that are resampled, ordered by scale factor so that the data shrinks first."""
    changed = [k for k, axis in enumerate(axes) if not axis.is_identity_mapping]
    return sorted(changed, key=lambda k: axes[k].count / axes[k].extent)
