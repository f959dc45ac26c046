# SPDX-License-Identifier: Apache-2.0
"""Sliding-window operators for images: dilation2d, deformable_conv2d, deformable_im2col and correlation.

dilation2d(x, w)                       # the maximum of x + w over a window
deformable_conv2d(x, offset, w)        # a convolution with data-dependent, fractional tap positions
correlation(x, y, 1, 4)                # products of x and of y shifted by up to 4 pixels
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import floordiv, mod
from typing import Any, Final

import numpy as np

from aotc.ir import (
    Attrs,
    AxisMap,
    Infer,
    LayoutTreatment,
    OpPattern,
    PrecisionTreatment,
    TensorType,
    Type,
    Types,
    attribute_field,
    declare_arguments,
    require,
)
from aotc.ir.dimension_conditions import may_be_equal_dims
from aotc.ir.dimensions import Dim, is_static, require_static_shape
from aotc.relay.op import conv
from aotc.relay.op.contraction_accumulator_types import cast_array, widen_narrow_float_array, widen_narrow_float_tensor
from aotc.relay.op.gather import clip_index
from aotc.relay.op.opdef import (
    Accuracy,
    Array,
    Index,
    OpDef,
    Sample,
    Samples,
    Scalar,
    reference_from_element_function,
    tensor_types_of_values,
)
from aotc.relay.op.operator_definition import (
    choose,
    intrinsic_for_scalars_and_arrays,
    random_array,
    random_sample,
    random_samples_from_rows,
    repeat_for_each_axis,
    window_count,
    window_counts_of_axes,
)
from aotc.relay.op.roi_ops import floor, interpolate_bilinearly, linear_interpolation_taps
from aotc.relay.op.type_rules import require_float_tensor, require_same_dtype, shape_text
from aotc.relay.op.window_attributes import (
    befores_then_afters_padding,
    canonical_axis_positions,
    canonical_to_layout_order,
    layout_to_canonical_order,
    pad_pairs_of_axes,
    padding_attribute_field,
    per_axis_attribute_field,
)
from aotc.tir import Tensor, te

_abs = intrinsic_for_scalars_and_arrays("abs")
_WINDOW_OP_FACETS: Final[Any] = {"pattern": OpPattern.OUT_ELEMWISE_FUSABLE, "precision": PrecisionTreatment.NEVER}


def _batch_only_axis_map_row(attrs: Any) -> tuple[int | None, ...]:
    """Return an axis-map row that maps only the batch axis of the data layout."""
    return tuple(k if letter == "N" else None for k, letter in enumerate(attrs.data_layout))


def _pixel_or_outside_value(
    image: Any, axis_positions: Sequence[int], position: Sequence[Any], outside_value: float
) -> Any:
    """Return the element of an image at canonical position (N, C, H, W), or `outside_value` if it
    is out of bounds.
    """
    space = layout_to_canonical_order(image.shape, axis_positions)[2:]
    (y, height), (z, width) = zip(position[2:], space, strict=True)
    inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
    place = (*position[:2], clip_index(y, height), clip_index(z, width))
    return choose(inside, image[canonical_to_layout_order(place, axis_positions)], outside_value)


def _window_reduction_op_functions(
    name: str, infer: Infer, combiner: str, window_sizes: Callable[..., Sequence[int]], term: Callable[..., Any]
) -> dict[str, Any]:
    """Return the OpDef fields `infer`, `reference` and `compute` of an operator that reduces terms
    over windows, as a dictionary.

    combiner        "sum", "mean" or "max"
    window_sizes    (attributes, *arguments) -> the extents of the window's axes
    term            (attributes, (*axes, *taps), *arguments) -> the term of a result element and a tap, for
                    arrays as well as for scalar expressions
    """
    start, fold = (-np.inf, np.maximum) if combiner == "max" else (0.0, np.add)

    def infer_result_type(attrs: Any, arguments: Any) -> TensorType:
        result = infer(attrs, tensor_types_of_values(arguments))
        assert isinstance(result, TensorType)
        return result

    def reduce_windows_of_arrays(attrs: Any, *arguments: Array) -> Array:
        result, work = infer_result_type(attrs, arguments), [widen_narrow_float_array(x) for x in arguments]
        total = np.full(result.static_shape, start, work[0].dtype)
        axes, extents = np.indices(total.shape, sparse=True), window_sizes(attrs, *arguments)
        for tap in np.ndindex(*extents):
            total = fold(total, term(attrs, (*axes, *tap), *work))
        count = total.dtype.type(np.prod(extents))
        return cast_array(total / count if combiner == "mean" else total, result.dtype)

    def reduce_windows_of_tensors(attrs: Any, *arguments: Tensor) -> Tensor:
        result, work = infer_result_type(attrs, arguments), [widen_narrow_float_tensor(x) for x in arguments]
        extents, kind = window_sizes(attrs, *arguments), "sum" if combiner == "mean" else combiner

        def term_of_tap(*v: Scalar) -> Any:
            return term(attrs, v, *work)

        def total_or_mean_in_result_dtype(*i: Scalar) -> Scalar:
            value = total[i]
            count = float(np.prod(extents))
            return (value / count if combiner == "mean" else value).astype(result.dtype)

        total: Tensor = te.reduce(kind, result.static_shape, extents, term_of_tap, name)
        return te.compute(total.shape, total_or_mean_in_result_dtype, "finished")

    return {"infer": infer, "reference": reduce_windows_of_arrays, "compute": reduce_windows_of_tensors}


# --- image.dilation2d


def _to_pair_of_ints(values: Any, _: Any) -> tuple[int, ...]:
    """Convert an integer or a sequence to a tuple for two axes; values after the second are
    ignored.
    """
    return repeat_for_each_axis(values if isinstance(values, int) else tuple(values)[:2], 2)


class Dilation2DAttrs(Attrs):
    """Grayscale dilation: the maximum over a window of data (N, C, H, W) plus weight (C, KH, KW),
    per channel.
    """

    strides: tuple[int, ...] = attribute_field(default=(1, 1), convert=_to_pair_of_ints)
    padding: tuple[int, ...] = padding_attribute_field(2)
    dilations: tuple[int, ...] = attribute_field(default=(1, 1), convert=_to_pair_of_ints)
    data_layout: str = "NCHW"
    kernel_layout: str = "IHW"
    out_dtype: str = ""


def _dilation2d_data_and_kernel_axes(attrs: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return canonical_axis_positions(attrs.data_layout, "NCHW"), canonical_axis_positions(attrs.kernel_layout, "IHW")


def _infer_dilation2d_type(attrs: Any, types: Types) -> Type:
    data, weight = map(require_float_tensor, types)
    require_same_dtype(data, weight)
    ranks = data.rank == 4 and weight.rank == 3
    require("dilation2d.rank", ranks, lambda: f"data must have rank 4 and the weight 3, got {data} and {weight}")
    where, inner = _dilation2d_data_and_kernel_axes(attrs)
    batch, channels, *space = layout_to_canonical_order(data.shape, where)
    weight_channels, *taps = layout_to_canonical_order(weight.shape, inner)
    fits = is_static(taps) and may_be_equal_dims(channels, weight_channels)
    require("dilation2d.weight", fits, lambda: f"the weight {weight} does not fit {data}")
    require("resize.empty", 0 not in data.shape, lambda: f"nothing to sample in {data}")
    steps = (attrs.strides, attrs.dilations, pad_pairs_of_axes(attrs.padding, 2))
    rows = zip(space, require_static_shape(taps), *steps, strict=True)
    shape = (batch, channels, *(window_count(*row) for row in rows))
    return TensorType(canonical_to_layout_order(shape, where), attrs.out_dtype or data.dtype)


def _dilation2d_tap_value(attrs: Any, loop_indices: Index, data: Any, weight: Any) -> Any:
    where, inner = _dilation2d_data_and_kernel_axes(attrs)
    image, channel, *out = layout_to_canonical_order(loop_indices[:4], where)
    pads = pad_pairs_of_axes(attrs.padding, 2)
    rows = zip(out, loop_indices[4:], attrs.strides, attrs.dilations, pads, strict=True)
    at = [o * s + k * d - before for o, k, s, d, (before, _) in rows]
    pixel = _pixel_or_outside_value(data, where, (image, channel, *at), -np.inf)
    return pixel + weight[canonical_to_layout_order((channel, *loop_indices[4:]), inner)]


def _dilation2d_window_size(attrs: Any, _: Any, weight: Any) -> tuple[int, ...]:
    return layout_to_canonical_order(weight.shape, _dilation2d_data_and_kernel_axes(attrs)[1])[1:]


_CHANNELS_LAST_SAMPLE_ATTRS: Final = {"data_layout": "NHWC", "kernel_layout": "HWI"}

dilation2d = OpDef(
    name="image.dilation2d",
    attrs=Dilation2DAttrs,
    args=declare_arguments("data", "weight"),
    axes=lambda a, _: AxisMap((_batch_only_axis_map_row(a), (None,) * 4)),
    samples=random_samples_from_rows(
        Dilation2DAttrs,
        (
            (((2, 3, 5, 6), (3, 2, 3)), {"padding": (1, 0, 1, 2)}),
            (((1, 5, 6, 2), (2, 2, 2)), {"strides": (1, 2), "dilations": (2, 1), **_CHANNELS_LAST_SAMPLE_ATTRS}),
            (((1, 1, 3, 3), (1, 2, 2)), {}, "float16"),
        ),
    ),
    **_window_reduction_op_functions(
        "dilation2d", _infer_dilation2d_type, "max", _dilation2d_window_size, _dilation2d_tap_value
    ),
    layout=LayoutTreatment.BARRIER,
    **_WINDOW_OP_FACETS,
)


# --- nn.deformable_conv2d


class DeformableConv2DAttrs(Attrs):
    """2-D convolution with a data-dependent offset for each tap of each output.

    data (N, C, H, W), offset (N, deformable_groups * KH * KW * 2, OH, OW) with a y and an x offset
    for each tap. Channels are divided among the `deformable_groups`. Values between pixels are
    interpolated bilinearly, values outside of the image are 0.
    """

    strides: tuple[int, ...] = per_axis_attribute_field(2, 1)
    padding: tuple[int, ...] = padding_attribute_field(2)
    dilation: tuple[int, ...] = per_axis_attribute_field(2, 1)
    deformable_groups: int = 1
    groups: int = 1
    channels: int | None = None
    kernel_size: tuple[int, ...] | None = per_axis_attribute_field(2, None)
    data_layout: str = "NCHW"
    kernel_layout: str = "OIHW"
    out_layout: str = ""
    out_dtype: str = ""


def _deformable_conv_axis_positions(attrs: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    same = attrs.out_layout in ("", attrs.data_layout)
    require("layout", same, f"out_layout must be {attrs.data_layout}, got {attrs.out_layout!r}")
    return canonical_axis_positions(attrs.data_layout, "NCHW"), canonical_axis_positions(attrs.kernel_layout, "OIHW")


def _infer_deformable_offset_shape_nchw(attrs: Any, data_shape: Sequence[Dim], kernel_size: Any) -> tuple[Dim, ...]:
    """Return the shape of the offsets with axes in the order (N, C, H, W)."""
    batch, _, *space = layout_to_canonical_order(data_shape, _deformable_conv_axis_positions(attrs)[0])
    count = attrs.deformable_groups * kernel_size[0] * kernel_size[1] * 2
    return (batch, count, *window_counts_of_axes(2, attrs, space, kernel_size))


def _infer_deformable_conv2d_type(attrs: Any, types: Types) -> Type:
    data, offset, weight = map(require_float_tensor, types)
    ranks = data.rank == offset.rank == weight.rank == 4
    require("deformable.rank", ranks, lambda: f"{data}, {offset} and {weight} must have rank 4")
    require_same_dtype(data, weight)
    require_same_dtype(data, offset)
    where, kernel = _deformable_conv_axis_positions(attrs)
    channels = layout_to_canonical_order(data.shape, where)[1]
    dims = (*layout_to_canonical_order(weight.shape, kernel), channels)
    require("dynamic-shape", is_static(dims), lambda: f"unknown taps or channels: {data}, {weight}")
    out, inner, *taps, channel_count = require_static_shape(dims)
    some = min(attrs.groups, attrs.deformable_groups) > 0
    divided = some and channel_count % attrs.deformable_groups == 0 == out % attrs.groups
    fits = divided and inner * attrs.groups == channel_count
    require("deformable.groups", fits, lambda: f"{weight} in {attrs.groups} groups does not fit {data}")
    require("resize.empty", 0 not in data.shape, lambda: f"nothing to sample in {data}")
    offset_shape = _infer_deformable_offset_shape_nchw(attrs, data.shape, taps)
    same = all(map(may_be_equal_dims, layout_to_canonical_order(offset.shape, where), offset_shape))
    require(
        "deformable.offset",
        same,
        lambda: f"offset must be {shape_text(canonical_to_layout_order(offset_shape, where))}, got {offset}",
    )
    shape = (offset_shape[0], out, *offset_shape[2:])
    return TensorType(canonical_to_layout_order(shape, where), attrs.out_dtype or data.dtype)


def _infer_missing_offset_and_weight_types(attrs: Any, types: Sequence[Any]) -> Sequence[Type | None]:
    """Infer the types of the offset and the weight from the data's type and the attributes."""
    data, offset, weight = types
    size, out = attrs.kernel_size, attrs.channels
    if not isinstance(data, TensorType) or data.rank != 4 or None in (size, out):
        return types
    where, kernel = _deformable_conv_axis_positions(attrs)
    channels = layout_to_canonical_order(data.shape, where)[1]
    if isinstance(channels, int) and weight is None:
        shape = (out, channels // max(attrs.groups, 1), *size)
        weight = TensorType(canonical_to_layout_order(shape, kernel), data.dtype)
    offset_shape = canonical_to_layout_order(_infer_deformable_offset_shape_nchw(attrs, data.shape, size), where)
    return [data, TensorType(offset_shape, data.dtype) if offset is None else offset, weight]


def _deformable_im2col_shape_and_element_fn(
    attrs: Any, kernel_size: Any, data: Any, offset: Any
) -> tuple[tuple[int, ...], Any]:
    """Return shape and element function of the im2col image: all values sampled by the taps of each
    output.

    The image has H and W multiplied by the kernel size; the samples of one output are adjacent.
    """
    where = _deformable_conv_axis_positions(attrs)[0]
    shape, spots = layout_to_canonical_order(data.shape, where), layout_to_canonical_order(offset.shape, where)
    each = shape[1] // attrs.deformable_groups

    def im2col_element(*i: Any) -> Any:
        image, channel, *places = layout_to_canonical_order(i, where)
        out, taps = [list(map(f, places, kernel_size)) for f in (floordiv, mod)]
        first = ((channel // each * kernel_size[0] + taps[0]) * kernel_size[1] + taps[1]) * 2
        inside, sides = [], []
        for k, extent in enumerate(shape[2:]):
            displacement = offset[canonical_to_layout_order((image, first + k, *out), where)]
            before = pad_pairs_of_axes(attrs.padding, 2)[k][0]
            place = out[k] * attrs.strides[k] + taps[k] * attrs.dilation[k] - before
            x = place.astype("float32") + displacement.astype("float32")
            inside.append((x >= 0.0) & (x < float(extent)))
            low, (high, weight) = linear_interpolation_taps(x, extent)
            # the last pixel has no next neighbor
            weight = choose(floor(x) < float(extent - 1), weight, 0.0)
            sides.append([low, (high, weight)])
        value = interpolate_bilinearly(
            sides, lambda y, x: data[canonical_to_layout_order((image, channel, y, x), where)]
        )
        return choose(inside[0] & inside[1], value, 0.0)

    space = [n * k for n, k in zip(spots[2:], kernel_size, strict=True)]
    return canonical_to_layout_order((*shape[:2], *space), where), im2col_element


def _im2col_conv_kernel_size_and_attrs(attrs: Any, data: Any, weight: Any) -> tuple[tuple[int, int], Any]:
    """Return the kernel's (height, width) and the attributes of the non-overlapping convolution of
    the im2col image.
    """
    rows, columns = layout_to_canonical_order(weight.shape, _deformable_conv_axis_positions(attrs)[1])[2:]
    attributes: Any = conv.conv2d.attrs
    return (rows, columns), attributes(
        strides=(rows, columns),
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_dtype=attrs.out_dtype or str(data.dtype),
    )


def _deformable_conv2d_reference(attrs: Any, data: Array, offset: Array, weight: Array) -> Array:
    sizes, plain = _im2col_conv_kernel_size_and_attrs(attrs, data, weight)
    shape, element = _deformable_im2col_shape_and_element_fn(attrs, sizes, widen_narrow_float_array(data), offset)
    columns = element(*np.indices(shape, sparse=True))
    return np.asarray(conv.conv2d.reference(plain, columns, widen_narrow_float_array(weight)))


def _compute_deformable_conv2d(attrs: Any, data: Tensor, offset: Tensor, weight: Tensor) -> Any:
    sizes, plain = _im2col_conv_kernel_size_and_attrs(attrs, data, weight)
    shape, element = _deformable_im2col_shape_and_element_fn(attrs, sizes, widen_narrow_float_tensor(data), offset)
    columns = te.compute(shape, element, "deformed", materialize=True)
    convolve: Any = conv.conv2d.compute
    return convolve(plain, columns, widen_narrow_float_tensor(weight))


def _deformable_conv2d_test_samples() -> Samples:
    last = {"strides": (2, 2), "data_layout": "NHWC", "kernel_layout": "HWIO"}
    rows: Any = ({"deformable_groups": 2}, {"groups": 2, **last})
    for given in rows:
        a = DeformableConv2DAttrs(padding=(1, 1, 1, 1), **given)
        where = canonical_axis_positions(a.data_layout, "NCHW")
        data, weight = canonical_to_layout_order((1, 4, 5, 6), where), (2, 4 // a.groups, 3, 3)
        offset = canonical_to_layout_order(
            require_static_shape(_infer_deformable_offset_shape_nchw(a, data, (3, 3))), where
        )
        yield random_sample((data, offset, canonical_to_layout_order(weight, _deformable_conv_axis_positions(a)[1])), a)


deformable_conv2d = OpDef(
    name="nn.deformable_conv2d",
    attrs=DeformableConv2DAttrs,
    args=declare_arguments("data", "offset", "weight"),
    infer=_infer_deformable_conv2d_type,
    refine=_infer_missing_offset_and_weight_types,
    reference=_deformable_conv2d_reference,
    axes=lambda a, _: AxisMap((*(_batch_only_axis_map_row(a),) * 2, (None,) * 4)),
    compute=_compute_deformable_conv2d,
    samples=_deformable_conv2d_test_samples,
    **_WINDOW_OP_FACETS,
)


# --- nn.deformable_im2col


class DeformableIm2colAttrs(Attrs):
    """The values that the taps of a deformable convolution sample, times a mask: of data (N, C, H, W) an image
    (N, C, OH * KH, OW * KW), in which the taps of an output element are adjacent.

    offset (N, deformable_groups * KH * KW * 2, OH, OW) has a y and an x offset for each tap, mask
    (N, deformable_groups * KH * KW, OH, OW) a factor. Channels are divided among the
    `deformable_groups`. Values between pixels are interpolated bilinearly, pixels outside of the
    image are 0.
    """

    kernel_size: tuple[int, ...] = per_axis_attribute_field(2)
    strides: tuple[int, ...] = per_axis_attribute_field(2, 1)
    padding: tuple[int, ...] = padding_attribute_field(2)
    dilation: tuple[int, ...] = per_axis_attribute_field(2, 1)
    deformable_groups: int = 1


def _infer_deformable_im2col_type(attrs: Any, types: Types) -> Type:
    data, offset, mask = map(require_float_tensor, types)
    ranks = data.rank == offset.rank == mask.rank == 4
    require("deformable.rank", ranks, lambda: f"{data}, {offset} and {mask} must have rank 4")
    require("resize.empty", 0 not in data.shape, lambda: f"nothing to sample in {data}")
    batch, channels, *space = data.shape
    groups, (rows, columns) = attrs.deformable_groups, attrs.kernel_size
    divided = groups > 0 and (not isinstance(channels, int) or channels % groups == 0)
    require("deformable.groups", divided, lambda: f"{data} cannot be divided into {groups} groups of channels")
    counts = window_counts_of_axes(2, attrs, space, attrs.kernel_size)
    for name, given, per_tap in (("offset", offset, 2), ("mask", mask, 1)):
        shape = (batch, groups * rows * columns * per_tap, *counts)
        same = all(map(may_be_equal_dims, given.shape, shape))
        text = f"{name} must be {shape_text(shape)}, got {given}"
        require("deformable.offset", same, text)
    extents = (n * k for n, k in zip(counts, attrs.kernel_size, strict=True))
    return TensorType((batch, channels, *extents), data.dtype)


def _deformable_im2col_element(attrs: Any, i: Index, data: Any, offset: Any, mask: Any) -> Any:
    image, channel, *places = i
    sizes, extents = attrs.kernel_size, data.shape[2:]
    out, taps = [list(map(f, places, sizes)) for f in (floordiv, mod)]
    group = channel // (data.shape[1] // attrs.deformable_groups)
    first = (group * sizes[0] + taps[0]) * sizes[1] + taps[1]
    inside, sides = [], []
    for k, extent in enumerate(extents):
        before = pad_pairs_of_axes(attrs.padding, 2)[k][0]
        place = out[k] * attrs.strides[k] + taps[k] * attrs.dilation[k] - before
        displacement = (image, first * 2 + k, *out)
        x = place.astype("float32") + offset[displacement].astype("float32")
        inside.append((x > -1.0) & (x < float(extent)))
        (low, low_weight), (high, high_weight) = linear_interpolation_taps(x, extent)
        # a pixel outside of the image contributes nothing
        low_weight = choose(x >= 0.0, low_weight, 0.0)
        high_weight = choose(floor(x) < float(extent - 1), high_weight, 0.0)
        sides.append([(low, low_weight), (high, high_weight)])

    def pixel_as_float32(y: Any, x: Any) -> Any:
        value = data[(image, channel, y, x)]
        return value.astype("float64" if data.dtype == "float64" else "float32")

    value = choose(inside[0] & inside[1], interpolate_bilinearly(sides, pixel_as_float32), 0.0)
    tap = (image, first, *out)
    return (value * mask[tap].astype(value.dtype)).astype(data.dtype)


def _deformable_im2col_test_samples() -> Samples:
    cases: Any = (
        ("float32", {"kernel_size": (3, 3), "padding": (1, 1, 1, 1), "deformable_groups": 2}),
        ("float64", {"kernel_size": (2, 3), "strides": (2, 1), "dilation": (1, 2)}),
        ("float16", {"kernel_size": (1, 1), "padding": (0, 1, 0, 1)}),
    )
    for dtype, given in cases:
        attrs = DeformableIm2colAttrs(**given)
        shape = (2, 4, 5, 6)
        counts = require_static_shape(window_counts_of_axes(2, attrs, shape[2:], attrs.kernel_size))
        count = attrs.deformable_groups * attrs.kernel_size[0] * attrs.kernel_size[1]
        offset = random_array((2, 2 * count, *counts), seed=1) * 3
        mask = random_array((2, count, *counts), seed=2)
        args = (random_array(shape), offset, mask)
        accuracy = Accuracy.LOOSE
        yield Sample(args=tuple(a.astype(dtype) for a in args), attrs=attrs, accuracy=accuracy)


deformable_im2col = OpDef(
    name="nn.deformable_im2col",
    attrs=DeformableIm2colAttrs,
    args=declare_arguments("data", "offset", "mask"),
    infer=_infer_deformable_im2col_type,
    reference=reference_from_element_function(_infer_deformable_im2col_type, _deformable_im2col_element),
    element=_deformable_im2col_element,
    pattern=OpPattern.INJECTIVE,
    layout=LayoutTreatment.BARRIER,
    precision=PrecisionTreatment.NEVER,
    axes=lambda *_: AxisMap(((0, None, None, None),) * 3),
    samples=_deformable_im2col_test_samples,
)


# --- nn.correlation


class CorrelationAttrs(Attrs):
    """Correlation of patches of `data1` with shifted patches of `data2` (N, C, H, W): mean product
    or distance.

    Patches have kernel_size x kernel_size pixels and are `stride1` apart. Patches of `data2` are
    shifted by every multiple of `stride2` up to `max_displacement` in y and x; each shift is a
    channel of the result. Without `is_multiply` the mean absolute difference is computed.
    """

    kernel_size: int = 1
    max_displacement: int = 1
    stride1: int = 1
    stride2: int = 1
    padding: tuple[int, ...] = attribute_field(
        default=(0,) * 4, convert=lambda values, _: befores_then_afters_padding(values, 2)
    )
    is_multiply: bool = True
    layout: str = "NCHW"


def _displacement_steps_per_direction(attrs: Any) -> int:
    return int(attrs.max_displacement // attrs.stride2)


def _infer_correlation_type(attrs: Any, types: Types) -> Type:
    data, other = map(require_float_tensor, types)
    ranks = data.rank == 4 == other.rank and data.dtype == other.dtype
    same = ranks and all(map(may_be_equal_dims, data.shape, other.shape))
    require("correlation.data", same, lambda: f"two images of rank 4 and one type expected, got {data} and {other}")
    require("layout", attrs.layout == "NCHW", lambda: f"layout must be NCHW, got {attrs.layout!r}")
    least = min(attrs.stride1, attrs.stride2, attrs.kernel_size, attrs.max_displacement + 1)
    fits = attrs.kernel_size % 2 == 1 and least > 0
    require("correlation.size", fits, "kernel_size must be odd, strides positive, max_displacement not negative")
    batch, _, *space = data.shape
    require("resize.empty", 0 not in data.shape, lambda: f"nothing to sample in {data}")
    # a window of this size has as many positions as there are patches
    reach = attrs.kernel_size + 2 * attrs.max_displacement
    pairs = zip(space, pad_pairs_of_axes(attrs.padding, 2), strict=True)
    extents = [window_count(d, reach, attrs.stride1, 1, pad) for d, pad in pairs]
    return TensorType((batch, (2 * _displacement_steps_per_direction(attrs) + 1) ** 2, *extents), data.dtype)


def _correlation_term_of_tap(attrs: Any, loop_indices: Index, data: Any, other: Any) -> Any:
    image, q, *out, row, column, channel = loop_indices
    side, plain = 2 * _displacement_steps_per_direction(attrs) + 1, range(4)
    rows = zip(out, (row, column), pad_pairs_of_axes(attrs.padding, 2), strict=True)
    positions = [o * attrs.stride1 + k + attrs.max_displacement - before for o, k, (before, _) in rows]
    steps = zip(positions, (q // side, q % side), strict=True)
    other_positions = [p + (m - _displacement_steps_per_direction(attrs)) * attrs.stride2 for p, m in steps]
    first = _pixel_or_outside_value(data, plain, (image, channel, *positions), 0.0)
    second = _pixel_or_outside_value(other, plain, (image, channel, *other_positions), 0.0)
    return first * second if attrs.is_multiply else _abs(first - second)


def _correlation_patch_size(attrs: Any, data: Any, _: Any) -> tuple[int, ...]:
    return (attrs.kernel_size, attrs.kernel_size, data.shape[1])


def _sample_case_of_two_equal_shapes(*shape: int, **fields: Any) -> tuple[Any, dict[str, Any]]:
    return (shape, shape), fields


correlation = OpDef(
    name="nn.correlation",
    attrs=CorrelationAttrs,
    args=declare_arguments("data1", "data2"),
    axes=lambda *_: AxisMap(((0, None, None, None),) * 2),
    samples=random_samples_from_rows(
        CorrelationAttrs,
        (
            _sample_case_of_two_equal_shapes(1, 3, 5, 5, max_displacement=2, padding=(2,) * 4),
            _sample_case_of_two_equal_shapes(
                2, 1, 6, 4, kernel_size=3, stride1=2, stride2=2, max_displacement=2, padding=(3,)
            ),
            _sample_case_of_two_equal_shapes(2, 2, 5, 6, padding=(1, 0, 2, 1), is_multiply=False),
        ),
    ),
    **_window_reduction_op_functions(
        "correlation", _infer_correlation_type, "mean", _correlation_patch_size, _correlation_term_of_tap
    ),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    layout=LayoutTreatment.BARRIER,
)
