# SPDX-License-Identifier: Apache-2.0
"""Source coordinates and filter weights of resize operators.

Input: the attributes of a resize and the data's extents. Output for each axis: source coordinates
as exact fractions, and the taps and weights of the filter. Formulas work on numpy arrays as well as
on scalar expressions.

    axis = axes_of(2, attributes, (4, 4))[0]
    tap_table(attributes, axis)            # indices and weights, each (count, taps)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor, lcm
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, frozen, param, require
from aotc.relay.op.operator_definition import Array, Scalar, choose, greater, spread

METHODS: Final = ("nearest_neighbor", "linear", "cubic")
COORDINATES: Final = (
    "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS: Final = ("", "round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
#: Largest denominator of the fractions that approximate scale factors and regions given as floats.
DENOMINATOR: Final = 1 << 16


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
    rounding_method: str = param(default="round", given="")
    cubic_alpha: float = -0.5
    cubic_exclude: int = 0
    extrapolation_value: float = 0.0
    out_dtype: str = ""
    scales: tuple[float, ...] | None = None
    antialias: bool = False


# --- coordinates


def _fraction(value: float) -> Fraction:
    return Fraction(value).limit_denominator(DENOMINATOR) or Fraction(value)


def _coordinate(mode: str, extent: int, count: int, scale: Fraction, roi: tuple[float, float]) -> tuple[Any, Any]:
    """Return (slope, offset) of the source coordinate of an output index, by ONNX's definitions.

    "length_resized" is the number of outputs, as in ONNX Runtime and torch. ONNX's reference
    evaluator uses the product of factor and extent, which need not be an integer.
    """
    resized, half = scale * extent, Fraction(1, 2)
    center = half / scale - half
    match mode:
        case "pytorch_half_pixel" if count <= 1:
            return 0, 0
        case "align_corners":
            return (Fraction(extent - 1, count - 1), 0) if count > 1 else (0, 0)
        case "tf_crop_and_resize":
            start, end = (_fraction(part) * (extent - 1) for part in roi)
            return ((end - start) / (count - 1), start) if count > 1 else (0, (start + end) / 2)
    offsets = {
        "half_pixel": center,
        "pytorch_half_pixel": center,
        "half_pixel_symmetric": center + Fraction(extent, 2) * (1 - Fraction(count) / resized),
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
    def is_identity(self) -> bool:
        return (self.extent, self.p, self.q) == (self.count, self.r, 0)

    def times(self, o: Any) -> Any:
        return o * self.p + self.q

    def nearest(self, o: Any, rounding: str) -> Any:
        """Return the nearest source index of output o, not clamped to the axis, for numbers and
        expressions.
        """
        at = self.times(o)
        if rounding in ("floor", "ceil"):
            return (at if rounding == "floor" else at + (self.r - 1)) // self.r
        return (at * 2 + (self.r - (rounding == "round_prefer_floor"))) // (2 * self.r)

    def inside(self, o: Scalar) -> list[Scalar]:
        """Return the conditions for the coordinate of output o to be inside the data; empty if it
        always is.
        """
        conditions: list[Scalar] = []
        ends = (self.q, self.times(self.count - 1))
        if min(ends) < 0:
            conditions.append(self.times(o) >= 0)
        if max(ends) > (self.extent - 1) * self.r:
            conditions.append(self.times(o) <= (self.extent - 1) * self.r)
        return conditions


def axes_of(n: int, a: ResizeAttrs, space: Sequence[int]) -> list[AxisMapping]:
    sizes = spread(a.size or (), n)
    roi = a.roi or (0.0,) * n + (1.0,) * n
    axes = []
    for k, (extent, count) in enumerate(zip(space, sizes, strict=True)):
        scale = _fraction(a.scales[k]) if a.scales else Fraction(count, extent)
        slope, offset = _coordinate(a.coordinate_transformation_mode, extent, count, scale, (roi[k], roi[n + k]))
        slope, offset = Fraction(slope), Fraction(offset)
        r = lcm(slope.denominator, offset.denominator)
        axis = AxisMapping(extent, count, int(slope * r), int(offset * r), r, scale)
        reach = 2 * max(abs(axis.q), abs(axis.times(count - 1)), r)
        require("resize.reach", reach < 1 << 62, "the sampled coordinates do not fit in 64 bits")
        axes.append(axis)
    return axes


def rounding(a: ResizeAttrs) -> str:
    """Return the rounding method; by Relay's rule, "" means "round" for align_corners and "floor"
    otherwise.
    """
    if a.rounding_method:
        return a.rounding_method
    return "round" if a.coordinate_transformation_mode == "align_corners" else "floor"


# --- filters: written once for numpy arrays and for expressions


def keys(d: Any, alpha: float) -> tuple[Any, Any]:
    """Return the values of Keys' cubic convolution kernel for a distance d in [0, 1] and for d in
    [1, 2].
    """
    # factored at the roots, since sums of powers would cancel there
    near = (d - 1.0) * (((alpha + 2) * d - 1.0) * d - 1.0)
    far = (d - 1.0) * (d - 2.0) * (d - 2.0) * alpha
    return near, far


def falloff(a: ResizeAttrs, d: Any) -> Any:
    """Return the filter weight of a tap at distance d."""
    if a.method == "linear":
        return greater(1.0 - d, 0.0)
    near, far = keys(d, a.cubic_alpha)
    return choose(d <= 1.0, near, choose(d < 2.0, far, 0.0))


def weights(a: ResizeAttrs, f: Any) -> list[Any]:
    """Return the weights of the taps around a coordinate at distance f (0 <= f < 1) after an
    element.
    """
    if a.method == "linear":
        return [1.0 - f, f]
    alpha = a.cubic_alpha
    return [keys(f + 1.0, alpha)[1], keys(f, alpha)[0], keys(1.0 - f, alpha)[0], keys(2.0 - f, alpha)[1]]


def first_tap(a: ResizeAttrs, axis: AxisMapping) -> tuple[int, int]:
    """Return the offset of the first tap from the element below the coordinate, and the number of
    taps.
    """
    radius = 1 if a.method == "linear" else 2
    if not widened(a, axis):
        return 1 - radius, 2 * radius
    start = floor(-radius / axis.scale) + 1
    return start, 2 * radius - 2 * start if radius == 1 else 4 - 2 * start


def widened(a: ResizeAttrs, axis: AxisMapping) -> bool:
    return a.antialias and axis.scale < 1


def tap_table(a: ResizeAttrs, axis: AxisMapping) -> tuple[Array, Array]:
    """Return source indices and weights of all outputs of an axis, each of shape (count, taps)."""
    at = axis.times(np.arange(axis.count, dtype=np.int64))
    f = (at % axis.r) / axis.r
    start, taps = first_tap(a, axis)
    index = (at // axis.r)[:, None] + start + np.arange(taps)
    if widened(a, axis):
        weight = falloff(a, np.abs(np.arange(start, start + taps) - f[:, None]) * float(axis.scale))
    else:
        weight = np.stack(np.broadcast_arrays(*weights(a, f)), axis=1)
    if a.cubic_exclude:
        weight = np.where((index >= 0) & (index < axis.extent), weight, 0)
    if a.cubic_exclude or widened(a, axis):
        weight = weight / weight.sum(axis=1, keepdims=True)
    return index.clip(0, axis.extent - 1), weight


def pass_order(axes: Sequence[AxisMapping]) -> list[int]:
    """Return the axes that are resampled, ordered by scale factor so that the data shrinks first."""
    changed = [k for k, axis in enumerate(axes) if not axis.is_identity]
    return sorted(changed, key=lambda k: axes[k].count / axes[k].extent)
