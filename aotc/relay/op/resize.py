# SPDX-License-Identifier: Apache-2.0
"""Resampling along spatial axes: image.resize1d, resize2d, resize3d, nn.upsampling and
nn.upsampling3d.

Output element o of an axis samples the source coordinate (p * o + q) / r with integers p, q, r, so
that rounding to an index is exact. Interpolation is separable, one axis after another. Coordinate
modes and filters are those of ONNX Resize. In addition to Relay's attributes there are `scales`
(the factors, if they differ from output / input) and `antialias` (a wider filter for downsampling).

    resize2d(x, (64, 64), method="nearest_neighbor",
    coordinate_transformation_mode="asymmetric")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import floor, isfinite
from operator import add
from typing import Any, Final

import numpy as np

from aotc.ir import (
    REQUIRED,
    Attrs,
    Dim,
    DType,
    SymDim,
    TensorType,
    Type,
    assume_at_least,
    attribute_field,
    is_static,
    largest_size,
    minimum_of_dims,
    require_static_shape,
)
from aotc.ir.op import AxisMap, LayoutTreatment, OpPattern, QuantizationTreatment, Types, require
from aotc.relay.op import resize_sampling
from aotc.relay.op.layout import add_blocked_layout_support
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    Scalar,
    cast_array,
    cast_tensor,
    random_sample,
    replace_item,
)
from aotc.relay.op.resize_sampling import (
    AxisMapping,
    ResizeAttrs,
    axes_to_resample_smallest_scale_first,
    axis_mappings_of_resize,
    first_tap_offset_and_tap_count,
    is_antialiased_downsampling,
    operand_of,
    rounding_method_or_default,
    sizes_of_each_axis,
)
from aotc.relay.op.type_rules import require_known_name, require_tensor_of_rank, require_tensor_type, static_shape_of
from aotc.relay.op.window_attributes import (
    DATA_LAYOUT_BY_RANK,
    attrs_class_for_rank,
    canonical_axis_positions,
    canonical_to_layout_order,
    layout_to_canonical_order,
    transpose_to_canonical,
    transpose_to_layout,
)
from aotc.tir import Tensor, all_of, as_expr, call, const, maximum, minimum, select, te

#: Largest number of outputs of an axis that are enumerated to prove that a simple index formula
#: holds.
MAX_ENUMERATED_OUTPUTS: Final = 1 << 20
#: Distance below a whole number within which a value is rounded up, since truncation would drop
#: rounding errors.
TRUNCATION_TOLERANCE: Final = 2.0**-10


def _upsampling_scale_attribute_field() -> Any:
    return attribute_field(parameter_default=1, convert=lambda value, _: float(value))


class UpSamplingAttrs(Attrs):
    """Data upsampled by two factors; `method` is "nearest_neighbor", "bilinear" or "bicubic"."""

    scale_h: float = _upsampling_scale_attribute_field()
    scale_w: float = _upsampling_scale_attribute_field()
    layout: str = "NCHW"
    method: str = "nearest_neighbor"
    align_corners: bool = False


class UpSampling3DAttrs(Attrs):
    """Data upsampled by three factors; `method` is "nearest_neighbor" or "trilinear"."""

    scale_d: float = _upsampling_scale_attribute_field()
    scale_h: float = _upsampling_scale_attribute_field()
    scale_w: float = _upsampling_scale_attribute_field()
    layout: str = "NCDHW"
    method: str = "nearest_neighbor"
    coordinate_transformation_mode: str = "half_pixel"


def _axis_positions_and_mappings(
    spatial_rank: int, a: ResizeAttrs, shape: Sequence[Dim]
) -> tuple[tuple[int, ...], list[AxisMapping]]:
    """Return the positions of the canonical axes in the data, and the coordinate mapping of each
    spatial axis.
    """
    where = canonical_axis_positions(a.layout, DATA_LAYOUT_BY_RANK[spatial_rank])
    return where, axis_mappings_of_resize(spatial_rank, a, layout_to_canonical_order(shape, where)[2:])


# --- numpy


def _interpolate_array_along_axis(x: Array, dimension: int, a: ResizeAttrs, axis: AxisMapping) -> Array:
    index, weight = resize_sampling.tap_indices_and_weights(a, axis)
    shape = [-1 if k == dimension else 1 for k in range(x.ndim)]
    total = np.zeros_like(np.take(x, index[:, 0], dimension))
    for k in range(index.shape[1]):
        total = total + np.take(x, index[:, k], dimension) * weight[:, k].astype(x.dtype).reshape(shape)
    return total


def _truncation_tolerance(a: ResizeAttrs) -> float:
    return 0.0 if a.method == "nearest_neighbor" else TRUNCATION_TOLERANCE


def _interpolation_dtype(dtype: DType) -> str:
    """Return the dtype of the interpolation: float64 for float64 and for integers wider than 8
    bits, else float32.
    """
    wide = dtype == "float64" or (dtype.is_integer and dtype.bits > 8)
    return "float64" if wide else "float32"


def _resize_reference(spatial_rank: int, a: ResizeAttrs, data: Array) -> Array:
    where, axes = _axis_positions_and_mappings(spatial_rank, a, data.shape)
    dtype, out = DType.from_numpy(data), DType(a.out_dtype or DType.from_numpy(data))
    x = transpose_to_canonical(data, where)
    if a.method == "nearest_neighbor":
        for k, axis in enumerate(axes, start=2):
            extent, count = axis.static_extents
            at = np.arange(count, dtype=np.int64)
            index = axis.nearest_source_index(at, rounding_method_or_default(a)).clip(0, extent - 1)
            x = np.take(x, index, k)
    else:
        x = cast_array(x, _interpolation_dtype(dtype))
        for k in axes_to_resample_smallest_scale_first(axes):
            x = _interpolate_array_along_axis(x, k + 2, a, axes[k])
    if a.coordinate_transformation_mode == "tf_crop_and_resize":
        x = _fill_extrapolation_outside_crop(a, x, axes)
    if out.is_integer and DType.from_numpy(x).is_float:
        x = np.clip(np.trunc(x + np.copysign(x.dtype.type(_truncation_tolerance(a)), x)), out.min, out.max)
    return transpose_to_layout(cast_array(x, out), where)


def _fill_extrapolation_outside_crop(a: ResizeAttrs, x: Array, axes: Sequence[AxisMapping]) -> Array:
    inside = np.ones((), bool)
    for axis in axes:
        extent, count = axis.static_extents
        at = axis.source_coordinate_numerator(np.arange(count))
        inside = np.logical_and.outer(inside, (at >= 0) & (at <= (extent - 1) * axis.r))
    return np.where(inside, x, np.asarray(a.extrapolation_value).astype(x.dtype))


# --- tensor expressions


def _tensor_of_values_per_output_index(axis: AxisMapping, value_at: Any, name: str) -> Tensor:
    """Return a tensor with one value per output index of an axis, computed once."""
    return te.compute((axis.count,), value_at, name, materialize=True)


def _clamp_index(index: Scalar, extent: Dim) -> Scalar:
    return minimum(maximum(index, 0), operand_of(extent - 1))


def _nearest_source_index_function(axis: AxisMapping, rounding: str) -> Any:
    """Return a function from output index to source index: an arithmetic formula if one is exact,
    else a table.
    """
    if axis.is_identity_mapping:
        return lambda o: o
    if axis.is_static and axis.static_extents[1] <= MAX_ENUMERATED_OUTPUTS:
        extent, count = axis.static_extents
        at = np.arange(count, dtype=np.int64)
        source_indices = axis.nearest_source_index(at, rounding).clip(0, extent - 1)
        factor = count // extent
        if factor and (source_indices == at // factor).all():
            return lambda o: o // factor
        first, step = int(source_indices[0]), int(source_indices[1] - source_indices[0]) if count > 1 else 0
        if (source_indices == first + at * step).all():
            return lambda o: o * step + first
    table = _tensor_of_values_per_output_index(
        axis, lambda o: _clamp_index(axis.nearest_source_index(o, rounding), axis.extent), "index"
    )
    return lambda o: table[o]


def _resize_nearest(a: ResizeAttrs, data: Tensor, axis_positions: Sequence[int], axes: Sequence[AxisMapping]) -> Tensor:
    index = [_nearest_source_index_function(axis, rounding_method_or_default(a)) for axis in axes]
    shape = canonical_to_layout_order(
        (*layout_to_canonical_order(data.shape, axis_positions)[:2], *(axis.count for axis in axes)), axis_positions
    )

    def nearest_source_element(*v: Scalar) -> Scalar:
        image, channel, *at = layout_to_canonical_order(v, axis_positions)
        return data[
            canonical_to_layout_order((image, channel, *(i(o) for i, o in zip(index, at, strict=True))), axis_positions)
        ]

    return te.compute(shape, nearest_source_element, "resize")


def _source_coordinate_fraction(axis: AxisMapping, output_index: Scalar, dtype: str) -> Any:
    remainder = (axis.source_coordinate_numerator(output_index) % operand_of(axis.r)).astype(dtype)
    return remainder / _float_of_dim(axis.r, dtype)


def _float_of_dim(dim: Dim, dtype: str) -> Any:
    return as_expr(dim).astype(dtype) if isinstance(dim, SymDim) else float(dim)


def _shrinking_factor(axis: AxisMapping, dtype: str) -> Any:
    """Return the factor by which an axis grows, at most 1."""
    numerator, denominator = axis.scale
    if isinstance(numerator, int) and isinstance(denominator, int):
        return min(numerator / denominator, 1.0)
    return _float_of_dim(minimum_of_dims((numerator, denominator)), dtype) / _float_of_dim(denominator, dtype)


def _source_index_of_tap(axis: AxisMapping, output_index: Scalar, tap: Any) -> Any:
    """Return the index of the element `tap` after the element below the coordinate of output o."""
    return axis.source_coordinate_numerator(output_index) // operand_of(axis.r) + tap


def _weight_or_zero_outside_data(axis: AxisMapping, index: Scalar, weight: Scalar) -> Scalar:
    return select(all_of(index >= 0, index < operand_of(axis.extent)), weight, 0.0)


def _resample_axis_by_filter_taps(x: Tensor, dimension: int, a: ResizeAttrs, axis: AxisMapping, store: bool) -> Tensor:
    """Resample one axis with the filter's own number of taps; `store` materializes the result for
    the next axis.
    """
    start, taps = require_static_shape(first_tap_offset_and_tap_count(a, axis))

    def tap_weights_of_output(output_index: Scalar) -> list[Scalar]:
        items = resize_sampling.tap_weights_at_fraction(a, _source_coordinate_fraction(axis, output_index, x.dtype))
        if not a.cubic_exclude:
            return items
        masked_weights = [
            _weight_or_zero_outside_data(axis, _source_index_of_tap(axis, output_index, start + k), w)
            for k, w in enumerate(items)
        ]
        return [w / reduce(add, masked_weights) for w in masked_weights]

    def weighted_sum_of_taps(*v: Scalar) -> Scalar:
        o = v[dimension]
        rows = [replace_item(v, dimension, i[o]) for i in index]
        return reduce(add, (x[row] * w[o] for row, w in zip(rows, weight, strict=True)))

    places = range(start, start + taps)
    index = [
        _tensor_of_values_per_output_index(
            axis, lambda o, k=k: _clamp_index(_source_index_of_tap(axis, o, k), axis.extent), "index"
        )
        for k in places
    ]
    weight = [
        _tensor_of_values_per_output_index(axis, lambda o, k=k: tap_weights_of_output(o)[k], "weight")
        for k in range(taps)
    ]
    return te.compute(replace_item(x.shape, dimension, axis.count), weighted_sum_of_taps, "resize", materialize=store)


def _downsample_axis_antialiased(x: Tensor, dimension: int, a: ResizeAttrs, axis: AxisMapping, _: bool) -> Tensor:
    """Downsample one axis with the filter widened by the scale factor (antialias)."""
    start, taps = first_tap_offset_and_tap_count(a, axis)
    first, factor = operand_of(start), _shrinking_factor(axis, x.dtype)

    def unnormalized_tap_weight(output_index: Scalar, tap: Scalar) -> Scalar:
        distance = (tap + first).astype(x.dtype) - _source_coordinate_fraction(axis, output_index, x.dtype)
        weight: Scalar = resize_sampling.filter_weight_at_distance(a, call("abs", distance) * factor)
        return (
            _weight_or_zero_outside_data(axis, _source_index_of_tap(axis, output_index, tap) + first, weight)
            if a.cubic_exclude
            else weight
        )

    weight = te.compute((axis.count, taps), unnormalized_tap_weight, "weight", materialize=True)
    total = te.reduce("sum", (axis.count,), (taps,), lambda o, k: weight[o, k], "total")
    scale = _tensor_of_values_per_output_index(axis, lambda o: 1.0 / total[o], "scale")

    def weighted_tap_value(*v: Scalar) -> Scalar:
        o, k = v[dimension], v[-1]
        at = replace_item(v[:-1], dimension, _clamp_index(_source_index_of_tap(axis, o, k) + first, axis.extent))
        return x[at] * (weight[o, k] * scale[o])

    return te.reduce("sum", replace_item(x.shape, dimension, axis.count), (taps,), weighted_tap_value, "resize")


def _compute_resize(spatial_rank: int, a: ResizeAttrs, data: Tensor) -> Tensor:
    where, axes = _axis_positions_and_mappings(spatial_rank, a, data.shape)
    if a.method == "nearest_neighbor":
        x = _resize_nearest(a, data, where, axes)
    else:
        x = cast_tensor(data, _interpolation_dtype(data.dtype))
        order = axes_to_resample_smallest_scale_first(axes)
        for k in order:
            along = (
                _downsample_axis_antialiased
                if is_antialiased_downsampling(a, axes[k])
                else _resample_axis_by_filter_taps
            )
            x = along(x, where[k + 2], a, axes[k], k != order[-1])
    return _extrapolate_and_cast_result(a, x, data.dtype, [(where[k + 2], axis) for k, axis in enumerate(axes)])


def _extrapolate_and_cast_result(
    a: ResizeAttrs, x: Tensor, dtype: DType, axes: Sequence[tuple[int, AxisMapping]]
) -> Tensor:
    """Apply extrapolation and convert to the result's dtype; integers are truncated (see
    TRUNCATION_TOLERANCE) and saturated.
    """
    out = DType(a.out_dtype or dtype)
    crop = a.coordinate_transformation_mode == "tf_crop_and_resize"

    def extrapolated_and_cast_element(*v: Scalar) -> Scalar:
        value: Scalar = x[v]
        if crop:
            inside = all_of(*(c for k, axis in axes for c in axis.source_inside_data_conditions(v[k])))
            value = select(inside, value, const(a.extrapolation_value, x.dtype))
        if out.is_integer and x.dtype.is_float:
            whole = value + call("copysign", const(_truncation_tolerance(a), x.dtype), value)
            value = minimum(maximum(whole, float(out.min)), float(out.max))
        return value.astype(out)

    return te.compute(x.shape, extrapolated_and_cast_element, "resized")


# --- the operators


def _infer_resize_type(spatial_rank: int, a: ResizeAttrs, types: Types) -> Type:
    data = require_tensor_of_rank("resize.rank", types[0], spatial_rank + 2)
    require("resize.size", a.size is not None, "size is missing")
    sizes = sizes_of_each_axis(a.size or (), spatial_rank)
    is_positive = all(isinstance(d, SymDim) or d > 0 for d in sizes)
    require("resize.size", is_positive, f"size must be positive, got {sizes}")
    _check_resize_mode_names(a)
    scales = a.scales is None or (len(a.scales) == spatial_rank and min(a.scales) > 0)
    require("resize.scales", scales, f"expected {spatial_rank} positive scales, got {a.scales}")
    require(
        "resize.roi",
        a.roi is None or len(a.roi) == 2 * spatial_rank,
        f"expected {2 * spatial_rank} values in roi, got {a.roi}",
    )
    for name, pairs, count in (
        ("scale_fractions", a.scale_fractions, spatial_rank),
        ("roi_fractions", a.roi_fractions, 2 * spatial_rank),
    ):
        fits = pairs is None or (len(pairs) == count and all(len(pair) == 2 for pair in pairs))
        require("resize.scales", fits, f"expected {count} pairs in {name}, got {pairs}")
    where = canonical_axis_positions(a.layout, DATA_LAYOUT_BY_RANK[spatial_rank])
    batch, channels, *space = layout_to_canonical_order(data.shape, where)
    require("resize.empty", 0 not in space, lambda: f"nothing to sample in {data}")
    for extent in (*space, *sizes):
        assume_at_least(extent, 1)
    numbers = (*(a.scales or ()), *(a.roi or ()))
    require("resize.roi", all(map(isfinite, numbers)), f"scales and roi must be finite, got {numbers}")
    known_sizes = [d for d in space if isinstance(d, int)]
    if len(known_sizes) == spatial_rank:
        axis_mappings_of_resize(spatial_rank, a, known_sizes)
    return TensorType(canonical_to_layout_order((batch, channels, *sizes), where), a.out_dtype or data.dtype)


def _check_resize_mode_names(a: ResizeAttrs) -> None:
    mode = a.coordinate_transformation_mode
    require_known_name("resize.method", "method", a.method, resize_sampling.RESIZE_METHODS)
    require_known_name("resize.mode", "coordinate mode", mode, resize_sampling.COORDINATE_MODES)
    require_known_name("resize.rounding", "rounding", a.rounding_method, resize_sampling.RESIZE_ROUNDING_METHODS)
    crop = mode != "tf_crop_and_resize" or a.roi is not None or a.roi_fractions is not None
    require("resize.roi", crop, "tf_crop_and_resize needs a roi")


def _resize_scratch_element_count(spatial_rank: int, a: ResizeAttrs, types: Types) -> int:
    """Return the number of scratch elements: indices and weights of the outputs of each axis."""
    _, axes = _axis_positions_and_mappings(spatial_rank, a, require_tensor_type(types[0]).shape)
    taps = [1 if a.method == "nearest_neighbor" else first_tap_offset_and_tap_count(a, axis)[1] for axis in axes]
    return sum(4 * largest_size(axis.count) * largest_size(n) for axis, n in zip(axes, taps, strict=True))


def _batch_and_channel_axis_map(spatial_rank: int, a: ResizeAttrs, types: Types) -> AxisMap:
    where = canonical_axis_positions(a.layout, DATA_LAYOUT_BY_RANK[spatial_rank])
    return AxisMap((tuple(k if k in where[:2] else None for k in range(spatial_rank + 2)),))


def _resize_test_samples(spatial_rank: int, attrs_class: type[ResizeAttrs]) -> Samples:
    shape, size = (1, 2, 4, 5, 3)[: spatial_rank + 2], (8, 10, 6)

    def resize_sample(
        size: Sequence[int], method: str = "linear", mode: str = "half_pixel", dtype: str = "float32", **fields: Any
    ) -> Sample:
        fields |= {"size": size[:spatial_rank], "method": method, "coordinate_transformation_mode": mode}
        return random_sample((shape,), attrs_class(**fields), dtype)

    nearest, *_ = resize_sampling.RESIZE_METHODS
    *modes, crop = resize_sampling.COORDINATE_MODES
    yield from (resize_sample(size, mode=mode) for mode in modes)
    yield from (
        resize_sample((7, 7, 7), nearest, rounding_method=name) for name in resize_sampling.RESIZE_ROUNDING_METHODS
    )
    yield resize_sample(size, nearest, "asymmetric", rounding_method="")
    yield resize_sample((7, 3, 5), "cubic", cubic_alpha=-0.75)
    yield resize_sample((7, 3, 5), "cubic", cubic_exclude=1)
    yield resize_sample((2, 2, 2), "cubic", antialias=True)
    yield resize_sample((2, 2, 2), antialias=True, cubic_exclude=1)
    yield resize_sample((6, 6, 6), scales=(1.6, 1.3, 2.1)[:spatial_rank])
    roi = (0.2, -0.1, 0.0)[:spatial_rank] + (0.9, 1.2, 1.0)[:spatial_rank]
    yield resize_sample((5, 5, 5), mode=crop, roi=roi, extrapolation_value=9.0)
    scale_fractions = ((8, 5), (13, 10), (21, 10))[:spatial_rank]
    yield resize_sample((6, 6, 6), nearest, "half_pixel_symmetric", scale_fractions=scale_fractions)
    yield resize_sample(size, dtype="uint8")
    yield resize_sample(size, dtype="float16")
    yield resize_sample(size, nearest, dtype="int8")


def _resize_op(spatial_rank: int) -> OpDef:
    size = attribute_field(
        default=None, parameter_default=REQUIRED, convert=lambda value, _: sizes_of_each_axis(value, spatial_rank)
    )
    attributes = attrs_class_for_rank(spatial_rank, ResizeAttrs, f"Resize{spatial_rank}DAttrs", size=size)
    return OpDef(
        name=f"image.resize{spatial_rank}d",
        doc="Data resampled to `size` along its spatial axes.",
        attrs=attributes,
        infer=partial(_infer_resize_type, spatial_rank),
        reference=partial(_resize_reference, spatial_rank),
        scratch=partial(_resize_scratch_element_count, spatial_rank),
        pattern=OpPattern.INJECTIVE,
        axes=partial(_batch_and_channel_axis_map, spatial_rank),
        quantized=QuantizationTreatment.RESCALE,
        compute=partial(_compute_resize, spatial_rank),
        samples=partial(_resize_test_samples, spatial_rank, attributes),
    )


_RESIZE_METHODS_OF_UPSAMPLING: Final = {
    2: {"nearest_neighbor": "nearest_neighbor", "bilinear": "linear", "bicubic": "cubic"},
    3: {"nearest_neighbor": "nearest_neighbor", "trilinear": "linear"},
}


def _upsampled_extents(spatial_rank: int, attrs: Any, spatial_extents: Sequence[Dim]) -> list[Dim]:
    """Return the spatial extents of the result of an upsampling."""
    scales = (attrs.scale_h, attrs.scale_w) if spatial_rank == 2 else (attrs.scale_d, attrs.scale_h, attrs.scale_w)
    finite = all(map(isfinite, scales))
    require("resize.scales", finite, f"the scale factors of an upsampling must be finite, got {scales}")
    return list(map(_scaled_extent, spatial_extents, scales))


def _scaled_extent(extent: Dim, scale: float) -> Dim:
    """Return an extent multiplied by a factor and rounded, halves up."""
    if isinstance(extent, int):
        return floor(extent * scale + 0.5)
    if scale == int(scale):
        return extent * int(scale)
    return SymDim(upper=None if extent.upper is None else floor(extent.upper * scale + 0.5))


def _resize_attrs_of_upsampling(spatial_rank: int, attrs: Any, shape: Sequence[Dim]) -> ResizeAttrs:
    """Return the attributes of the resize that computes an upsampling."""
    require_known_name("upsampling.method", "method", attrs.method, _RESIZE_METHODS_OF_UPSAMPLING[spatial_rank])
    space = layout_to_canonical_order(shape, canonical_axis_positions(attrs.layout, DATA_LAYOUT_BY_RANK[spatial_rank]))[
        2:
    ]
    if spatial_rank == 2:
        mode = "align_corners" if attrs.align_corners else "asymmetric"
    else:
        mode = attrs.coordinate_transformation_mode
    return ResizeAttrs(
        size=require_static_shape(_upsampled_extents(spatial_rank, attrs, space)),
        layout=attrs.layout,
        method=_RESIZE_METHODS_OF_UPSAMPLING[spatial_rank][attrs.method],
        coordinate_transformation_mode=mode,
        rounding_method="",
    )


def _infer_upsampling_type(spatial_rank: int, attrs: Any, types: Types) -> Type:
    data = require_tensor_of_rank("resize.rank", types[0], spatial_rank + 2)
    where = canonical_axis_positions(attrs.layout, DATA_LAYOUT_BY_RANK[spatial_rank])
    batch, channels, *space = layout_to_canonical_order(data.shape, where)
    if is_static(space):
        return _infer_resize_type(spatial_rank, _resize_attrs_of_upsampling(spatial_rank, attrs, data.shape), types)
    return TensorType(
        canonical_to_layout_order((batch, channels, *_upsampled_extents(spatial_rank, attrs, space)), where), data.dtype
    )


def _upsampling_test_samples() -> Samples:
    yield random_sample(((1, 2, 3, 4),), UpSamplingAttrs(scale_h=2.0, scale_w=3.0))
    yield random_sample(((1, 3, 4, 2),), UpSamplingAttrs(scale_h=2.0, scale_w=1.5, layout="NHWC", method="bilinear"))
    corners = UpSamplingAttrs(scale_h=2.0, scale_w=2.0, method="bicubic", align_corners=True)
    yield random_sample(((1, 2, 3, 4),), corners)
    yield random_sample(((1, 2, 3, 4, 2),), UpSamplingAttrs(scale_h=2.0, scale_w=3.0, layout="NCHW2c"))


def _upsampling3d_test_samples() -> Samples:
    scales: dict[str, Any] = {"scale_d": 2.0, "scale_h": 1.5, "scale_w": 3.0}
    a = UpSampling3DAttrs(**scales, coordinate_transformation_mode="asymmetric")
    yield random_sample(((1, 2, 3, 4, 2),), a)
    yield random_sample(((1, 3, 4, 2, 2),), UpSampling3DAttrs(**scales, layout="NDHWC", method="trilinear"))


def _upsampling_op(spatial_rank: int, attrs_class: type[Attrs], resize: OpDef, samples: Callable[[], Samples]) -> OpDef:
    return OpDef(
        name="nn.upsampling" if spatial_rank == 2 else "nn.upsampling3d",
        attrs=attrs_class,
        infer=partial(_infer_upsampling_type, spatial_rank),
        reference=lambda a, x: _resize_reference(
            spatial_rank, _resize_attrs_of_upsampling(spatial_rank, a, x.shape), x
        ),
        pattern=OpPattern.INJECTIVE,
        axes=partial(_batch_and_channel_axis_map, spatial_rank),
        layout=LayoutTreatment.FOLLOW,
        quantized=QuantizationTreatment.RESCALE,
        expand=lambda a, x: resize(x, **dict(_resize_attrs_of_upsampling(spatial_rank, a, static_shape_of(x)).items())),
        samples=samples,
    )


resize1d, resize2d, resize3d = map(_resize_op, (1, 2, 3))
upsampling = add_blocked_layout_support(_upsampling_op(2, UpSamplingAttrs, resize2d, _upsampling_test_samples))
upsampling3d = _upsampling_op(3, UpSampling3DAttrs, resize3d, _upsampling3d_test_samples)
