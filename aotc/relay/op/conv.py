# SPDX-License-Identifier: Apache-2.0
"""Convolutions over one to three spatial axes: nn.conv1d, nn.conv2d, nn.conv3d.

Data and kernel may have any axis order (`data_layout`, `kernel_layout`). A kernel layout such as
"OIHW16o", for weights packed at compile time, has blocks of output channels innermost, the last
block zero-padded. In "OHWI16o4i", groups of four input channels follow innermost, zero-padded.
Other blocked layouts ("NCHW16c", "OIHW4i16o") are converted to unblocked ones.

    conv2d(x, w, strides=(2, 2), padding=(3, 3), channels=64, kernel_size=(7, 7))

Positions in the padding add nothing to a sum, rather than zero times a weight. An infinite weight
at a padding position therefore gives no NaN, and an infinity or NaN in the data affects only the
results whose window contains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import (
    AotcError,
    Attrs,
    AxisMap,
    Dim,
    DType,
    OpPattern,
    TensorType,
    Type,
    Types,
    assume_equal_dims,
    declare_arguments,
    frozen,
    may_be_equal_dims,
    product_of_dims,
    require,
)
from aotc.relay.op import window_attributes
from aotc.relay.op.contraction_accumulator_types import (
    accumulator_dtype,
    cast_array,
    contract_to_dtype,
    contraction_result_dtype,
    matmul_with_accumulator,
    widen_narrow_float_array,
)
from aotc.relay.op.layout import add_blocked_layout_support
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Scalar,
    random_samples_from_rows,
    require_tensor_of_rank,
    require_tensor_type,
    shape_text,
)
from aotc.relay.op.window_attributes import (
    KERNEL_LAYOUT_BY_RANK,
    canonical_axis_positions,
    canonical_to_layout_order,
    layout_to_canonical_order,
    repeat_for_each_axis,
    strides_dilations_and_pads,
)
from aotc.tir import Tensor


class ConvAttrs(Attrs):
    """{n}-D convolution of data (N, C, {axes}) by weight (O, C/groups, {taps}).

    `padding` is one value, one for each axis, or the values before and then after all axes. Padding
    adds nothing to a sum, even if a weight is infinite. The result has the data's type, or
    `out_dtype`: sums of int8 products need "int32". With `channels` and `kernel_size`, the kernel's
    type can be inferred. Integer data may be padded with a number other than zero, `pad_value`.
    """

    strides: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0,)
    dilation: tuple[int, ...] = (1,)
    groups: int = 1
    channels: int | None = None
    kernel_size: tuple[int, ...] | None = None
    data_layout: str = ""
    kernel_layout: str = ""
    out_layout: str = ""
    out_dtype: str = ""
    pad_value: int = 0


def _conv_attrs_class(spatial_rank: int) -> type[ConvAttrs]:
    padding = window_attributes.padding_attribute_field(spatial_rank, 2 if spatial_rank == 1 else spatial_rank)
    return window_attributes.attrs_class_for_rank(
        spatial_rank,
        ConvAttrs,
        f"Conv{spatial_rank}DAttrs",
        padding=padding,
        kernel_layout=KERNEL_LAYOUT_BY_RANK[spatial_rank],
    )


Conv1DAttrs, Conv2DAttrs, Conv3DAttrs = map(_conv_attrs_class, (1, 2, 3))


@frozen
class _ConvLayout:
    """Parsed layouts of a convolution: positions of the canonical axes in data, kernel and result.

    n       number of spatial axes
    data    positions of (N, C, spatial axes) in the data
    kernel  positions of (O, I, spatial axes) in the kernel, without its blocks
    out     positions of (N, C, spatial axes) in the result
    block   output channels in an innermost block of a packed kernel; 0 for none
    group   elements in an innermost group of a packed kernel; 0 for none
    grouped_axis   canonical kernel axis that is in groups
    """

    n: int
    data: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    block: int
    group: int
    grouped_axis: int

    def unpacked_kernel_shape(self, packed_shape: Sequence[Dim], a: ConvAttrs, input_channels: Dim) -> tuple[Dim, ...]:
        """Return the unpacked kernel shape as (O, I, spatial...).

        The output channels of a packed kernel are the attribute `channels`, if given. The extent of
        the axis in groups is the number of input channels, or that of the attribute `kernel_size`
        for a spatial axis.
        """
        require("conv.groups", a.groups > 0, f"groups must be positive, got {a.groups}")
        extents = list(layout_to_canonical_order(packed_shape[: self.n + 2], self.kernel))
        if self.block and isinstance(extents[0], int):
            extents[0] = extents[0] * self.block if a.channels is None else a.channels
        if self.group:
            given: Dim | None = input_channels
            if self.grouped_axis > 1:
                taps = a.kernel_size
                given = None if taps is None else repeat_for_each_axis(taps, self.n)[self.grouped_axis - 2]
            extents[self.grouped_axis] = self._checked_extent_of_packed_axis(
                given, extents[self.grouped_axis], a.groups
            )
        return tuple(extents)

    def _checked_extent_of_packed_axis(self, extent: Dim | None, packed_group_count: Dim, conv_groups: int) -> Dim:
        """Return the unpacked extent of the kernel axis that is stored in groups of `group` elements
        (the 4 of "OHWI16o4i"); raise AotcError unless the kernel holds as many groups as this
        extent needs.
        """
        if extent is None:
            return packed_group_count * self.group
        extent = extent // conv_groups if self.grouped_axis == 1 else extent
        if isinstance(extent, int) and isinstance(packed_group_count, int):
            count = -(-extent // self.group)
            text = f"{extent} elements are {count} groups of {self.group}, not {packed_group_count}"
            require("conv.group", count == packed_group_count, text)
        else:
            assume_equal_dims((extent + (self.group - 1)) // self.group, packed_group_count)
        return extent


def _parse_conv_layout(spatial_rank: int, a: ConvAttrs) -> _ConvLayout:
    kernel, block, group, letter = window_attributes.parse_layout_with_up_to_two_blocks(a.kernel_layout, "o")
    data, out = window_attributes.data_and_result_axis_positions(spatial_rank, a.data_layout, a.out_layout)
    along = KERNEL_LAYOUT_BY_RANK[spatial_rank].index(letter) if letter else 0
    return _ConvLayout(
        spatial_rank,
        data,
        canonical_axis_positions(kernel, KERNEL_LAYOUT_BY_RANK[spatial_rank]),
        out,
        block,
        group,
        along,
    )


def _check_packed_kernel_blocks(
    layout: _ConvLayout, a: ConvAttrs, output_channels: Dim, kernel_shape: tuple[Dim, ...]
) -> None:
    """Raise AotcError unless the blocks and groups of a packed kernel have the sizes that its
    layout states.

    The kernel's outer axis must hold all blocks. Each convolution group has its own blocks, which
    must be complete if `layout.group` is set.
    """
    if not layout.block:
        return
    *_, inner, group = (*kernel_shape, 0) if not layout.group else kernel_shape
    text = f"groups of {layout.group}, but {group} in the kernel"
    require("conv.group", group == layout.group, text)
    require(
        "conv.block", inner == layout.block, lambda: f"blocks of {layout.block} channels, but {inner} in the kernel"
    )
    if not isinstance(output_channels, int):
        return
    blocks = a.groups * _kernel_blocks_per_conv_group(layout, a, output_channels)
    block_count = kernel_shape[layout.kernel[0]]
    require(
        "conv.block",
        block_count == blocks,
        f"{output_channels} channels need {blocks} blocks, but the kernel has {block_count}",
    )
    whole = a.groups == 1 or not layout.group or output_channels // a.groups % layout.block == 0
    require("conv.block", whole, lambda: f"groups of {output_channels} channels are not whole blocks of {layout.block}")


def _kernel_blocks_per_conv_group(layout: _ConvLayout, a: ConvAttrs, output_channels: int) -> int:
    """Return the number of blocks for the channels of one convolution group; `output_channels` is
    the total of all groups.
    """
    return -(-(output_channels // a.groups) // layout.block)


def _infer_conv_type(spatial_rank: int, a: ConvAttrs, types: Types) -> Type:
    form = _parse_conv_layout(spatial_rank, a)
    data = require_tensor_of_rank("conv.data-rank", types[0], spatial_rank + 2)
    rank = spatial_rank + 2 + bool(form.block) + bool(form.group)
    weight = require_tensor_of_rank("conv.weight-rank", types[1], rank, "weight")
    batch, channels, *space = layout_to_canonical_order(data.shape, form.data)
    outer, inner, *kernel = form.unpacked_kernel_shape(weight.shape, a, channels)
    check_conv_channel_counts(a, channels, inner, outer)
    _check_pad_value(a.pad_value, data.dtype)
    _check_packed_kernel_blocks(form, a, outer, weight.shape)
    sizes = checked_kernel_spatial_sizes(spatial_rank, a, weight, kernel)
    extents = window_attributes.window_counts_of_axes(spatial_rank, a, space, sizes)
    return TensorType(
        canonical_to_layout_order((batch, outer, *extents), form.out),
        contraction_result_dtype(data, weight, a.out_dtype),
    )


def _check_pad_value(value: int, dtype: DType) -> None:
    fits = value == 0 or (dtype.is_integer and dtype.min <= value <= dtype.max)
    require(
        "conv.pad-value",
        fits,
        f"padding of {dtype} with {value}: only integer types allow a padding value other than 0, within their range",
    )


def checked_kernel_spatial_sizes(spatial_rank: int, attrs: Any, weight: TensorType, kernel: Sequence[Dim]) -> list[int]:
    """Return the kernel's spatial extents; raise AotcError if they are unknown or differ from the
    attributes.
    """
    sizes = [k for k in kernel if isinstance(k, int)]
    require("conv.kernel", len(sizes) == spatial_rank, lambda: f"the kernel's size is not known: {weight}")
    given = attrs.kernel_size is None or tuple(attrs.kernel_size) == tuple(sizes)
    require(
        "conv.kernel", given, lambda: f"kernel_size is {attrs.kernel_size}, the weight has {shape_text(tuple(kernel))}"
    )
    return sizes


def check_conv_channel_counts(
    attrs: Any, channels: Dim, weight_channels: Dim, output_channels: Dim, transposed: bool = False
) -> None:
    """Raise AotcError unless the channel counts of data, weight and attributes are consistent.

    weight_channels    input channels of the weight: those of one group, or all in a transposed convolution
    output_channels    output channels
    """
    require("conv.groups", attrs.groups > 0, f"groups must be positive, got {attrs.groups}")
    if isinstance(channels, int):
        required_count = channels if transposed else channels // attrs.groups
        text = f"{channels} input channels cannot be divided among {attrs.groups} groups"
        require("conv.in-channels", channels % attrs.groups == 0, text)
        text = (
            f"{channels} input channels: with groups={attrs.groups} the weight "
            f"must take {required_count} channels, not {weight_channels}"
        )
        require("conv.in-channels", may_be_equal_dims(weight_channels, required_count), text)
    else:
        assume_equal_dims(channels, weight_channels if transposed else product_of_dims((weight_channels, attrs.groups)))
    if isinstance(output_channels, int):
        text = f"{output_channels} output channels cannot be divided among {attrs.groups} groups"
        require("conv.out-channels", output_channels % attrs.groups == 0, text)
        given = attrs.channels is None or may_be_equal_dims(attrs.channels, output_channels)
        require("conv.out-channels", given, f"channels is {attrs.channels}, but the weight has {output_channels}")


def _infer_conv_kernel_shape(
    spatial_rank: int, a: ConvAttrs, data: TensorType, kernel_sizes: Sequence[int]
) -> tuple[Dim, ...] | None:
    form = _parse_conv_layout(spatial_rank, a)
    channels = layout_to_canonical_order(data.shape, form.data)[1]
    if form.block or not isinstance(channels, int):
        return None
    return canonical_to_layout_order((a.channels or 0, channels // a.groups, *kernel_sizes), form.kernel)


def _unpack_kernel(layout: _ConvLayout, a: ConvAttrs, weight: Array, input_channels: int) -> Array:
    """Return the kernel array unpacked to the shape (O, I, spatial...)."""
    plain = window_attributes.transpose_to_canonical(weight, (*layout.kernel, *range(layout.n + 2, weight.ndim)))
    shape: Any = layout.unpacked_kernel_shape(weight.shape, a, input_channels)
    for axis in [layout.grouped_axis] * bool(layout.group) + [0] * bool(layout.block):
        plain = np.moveaxis(plain, -1, axis + 1)
        whole = plain.shape[axis] * plain.shape[axis + 1]
        plain = plain.reshape(*plain.shape[:axis], whole, *plain.shape[axis + 2 :])
    if layout.block and a.groups > 1:  # each convolution group has its own padding
        of_group = plain.reshape(a.groups, -1, *plain.shape[1:])[:, : shape[0] // a.groups]
        plain = of_group.reshape(-1, *plain.shape[1:])
    return plain[tuple(slice(extent) for extent in shape)]


def _conv_reference(spatial_rank: int, a: ConvAttrs, data: Array, weight: Array) -> Array:
    form = _parse_conv_layout(spatial_rank, a)
    x = window_attributes.transpose_to_canonical(widen_narrow_float_array(data), form.data)
    w = _unpack_kernel(form, a, widen_narrow_float_array(weight), x.shape[1])
    out_dtype = a.out_dtype or str(data.dtype)
    extents = window_attributes.window_counts_of_axes(spatial_rank, a, x.shape[2:], w.shape[2:])
    if a.pad_value:
        x = np.pad(
            x,
            ((0, 0), (0, 0), *window_attributes.pad_pairs_of_axes(a.padding, spatial_rank)),
            constant_values=a.pad_value,
        )
        a = replace(a, padding=(0,) * spatial_rank)
    kernels = w.reshape(a.groups, w.shape[0] // a.groups, *w.shape[1:])
    images = x.reshape(x.shape[0], a.groups, w.shape[1], *x.shape[2:])
    total = convolve_tap_by_tap(
        spatial_rank, a, images, kernels, extents, accumulator_dtype(DType.from_numpy(x), out_dtype)
    )
    return window_attributes.transpose_to_layout(
        cast_array(total.reshape(x.shape[0], w.shape[0], *extents), out_dtype), form.out
    )


def convolve_tap_by_tap(
    spatial_rank: int,
    attrs: Any,
    x: Array,
    kernels: Array,
    extents: Sequence[int],
    dtype: DType,
    transposed: bool = False,
) -> Array:
    """Convolve data (N, groups, I, space...) by kernels (groups, O, I, taps...): (N, groups, O,
    extents...).

    Loops over the taps; a tap adds its products to the results whose window has data at this tap.
    In a transposed convolution, data and results exchange roles.
    """
    strides, dilation, pads = strides_dilations_and_pads(spatial_rank, attrs)
    total = np.zeros((len(x), *kernels.shape[:2], *extents), dtype.numpy)
    every = (slice(None),) * 3
    sizes = (extents, x.shape[3:]) if transposed else (x.shape[3:], extents)
    for taps in np.ndindex(*kernels.shape[3:]):
        offsets = [k * d - p[0] for k, d, p in zip(taps, dilation, pads, strict=True)]
        spans = [_slices_read_and_written_by_tap(*axis) for axis in zip(offsets, *sizes, strides, strict=True)]
        reads, writes = zip(*(reversed(s) if transposed else s for s in spans), strict=True)
        source, target = every + reads, every + writes
        part = x[source]
        columns = part.reshape(*part.shape[:3], prod(part.shape[3:]))
        tap = (None, *every, *taps)
        share = matmul_with_accumulator(kernels[tap], columns, str(dtype))
        total[target] += share.reshape(*total.shape[:3], *part.shape[3:])
    return total


def _slices_read_and_written_by_tap(
    offset: int, data_extent: int, output_extent: int, stride: int
) -> tuple[slice, slice]:
    """Return the data elements that a tap reads along an axis, and the outputs they are added to,
    as slices.
    """
    first = max(0, -(offset // stride))
    last = max(first, min(output_extent, (data_extent - 1 - offset) // stride + 1))
    begin = first * stride + offset
    return slice(begin, begin + (last - first) * stride, stride), slice(first, last)


def _compute_conv(spatial_rank: int, a: ConvAttrs, data: Tensor, weight: Tensor) -> Tensor:
    form = _parse_conv_layout(spatial_rank, a)
    batch, inputs, *space = layout_to_canonical_order(data.shape, form.data)
    kernel_shape = form.unpacked_kernel_shape(weight.shape, a, inputs)
    outer, inner, *kernel = (int(d) for d in kernel_shape if isinstance(d, int))
    strides, dilation, pads = strides_dilations_and_pads(spatial_rank, a)
    extents = window_attributes.window_counts_of_axes(spatial_rank, a, space, kernel)
    per_group = outer // a.groups

    # sum over channels innermost if they are innermost in the data or in a copy of it
    order = (
        (spatial_rank, *range(spatial_rank))
        if form.data[1] == spatial_rank + 1 or form.group
        else tuple(range(spatial_rank + 1))
    )

    def data_index_of_product(*v: Scalar) -> Sequence[Scalar]:
        image, channel, *at = layout_to_canonical_order(v[: spatial_rank + 2], form.out)
        ic, *taps = layout_to_canonical_order(v[spatial_rank + 2 :], order)
        group = channel // per_group * inner if a.groups > 1 else 0
        where = [o * s + k * d - p[0] for o, s, k, d, p in zip(at, strides, taps, dilation, pads, strict=True)]
        return canonical_to_layout_order((image, ic + group, *where), form.data)

    def weight_index_of_product(*v: Scalar) -> Sequence[Scalar]:
        channel, inside = v[form.out[1]], layout_to_canonical_order(v[spatial_rank + 2 :], order)
        if not form.block:
            return canonical_to_layout_order((channel, *inside), form.kernel)
        first, lane = channel // form.block, channel % form.block
        if a.groups > 1 and per_group % form.block:
            of_group = channel % per_group
            first = channel // per_group * _kernel_blocks_per_conv_group(form, a, outer) + of_group // form.block
            lane = of_group % form.block
        index, group = [first, *inside], list[Scalar]()
        if form.group:
            group.append(index[form.grouped_axis] % form.group)
            index[form.grouped_axis] = index[form.grouped_axis] // form.group
        return (*canonical_to_layout_order(index, form.kernel), lane, *group)

    contiguous = bool(form.block) or (form.kernel[0] == spatial_rank + 1 and a.groups == 1)
    return contract_to_dtype(
        canonical_to_layout_order((batch, outer, *extents), form.out),
        canonical_to_layout_order((inner, *kernel), order),
        data,
        data_index_of_product,
        weight,
        weight_index_of_product,
        out_dtype=a.out_dtype,
        name=f"conv{spatial_rank}d",
        lane=form.out[1] if contiguous else None,
        block=form.block,
        fill=a.pad_value,
        group=form.group,
    )


_PACKED_SAMPLE_ATTRS: Final = {"padding": (1, 1), "channels": 6, "kernel_size": (3, 3), "kernel_layout": "OIHW4o"}
_INT32_SAMPLE_ATTRS: Final = {"out_dtype": "int32", "padding": (1, 1), "channels": 6}
_PACKED_GROUPED_SAMPLE_ATTRS: Final = _INT32_SAMPLE_ATTRS | {"kernel_layout": "OHWI4o4i", "kernel_size": (3, 3)}
_SPATIAL_GROUP_SAMPLE_ATTRS: Final = _INT32_SAMPLE_ATTRS | {"kernel_layout": "OIHW4o4w", "kernel_size": (2, 8)}
_PAD_VALUE_SAMPLE_ATTRS: Final = {"out_dtype": "int32", "padding": (1, 1), "pad_value": 99}
CONV_TEST_CASES_BY_RANK: Final[Any] = {  # shapes of data and weight, attributes; their data type
    1: (
        (((2, 3, 9), (4, 3, 3)), {"strides": (2,), "padding": (0, 2), "dilation": (2,)}),
        (((1, 4, 5), (4, 1, 5)), {"groups": 4, "padding": (2, 2)}),
    ),
    2: (
        (((1, 3, 8, 9), (5, 3, 3, 3)), {"padding": (1, 1, 1, 1), "channels": 5, "kernel_size": (3, 3)}),
        (((2, 4, 7, 6), (6, 2, 3, 2)), {"groups": 2, "strides": (2, 1), "padding": (1, 0, 2, 1)}),
        (((1, 3, 9, 9), (2, 3, 3, 3)), {"dilation": (2, 3), "padding": (2, 2)}),
        (((1, 6, 5, 5), (12, 1, 3, 3)), {"groups": 6, "padding": (1,)}),
        (((1, 8, 4, 4), (3, 8, 1, 1)), {}),
        (((1, 5, 6, 3), (3, 3, 3, 4)), {"padding": (1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"}),
        (((1, 3, 6, 5), (3, 3, 4, 3)), {"data_layout": "NCHW", "out_layout": "NHWC", "kernel_layout": "HWOI"}),
        (((1, 3, 5, 5), (2, 3, 3, 3, 4)), _PACKED_SAMPLE_ATTRS),
        (((1, 4, 5, 5), (2, 2, 3, 3, 4)), _PACKED_SAMPLE_ATTRS | {"groups": 2, "channels": 8, "strides": (2, 2)}),
        (((1, 6, 4, 5), (6, 2, 3, 3, 4)), _PACKED_SAMPLE_ATTRS | {"groups": 3, "channels": 21}),
        (((1, 5, 4, 5), (2, 3, 3, 5, 4)), _PACKED_SAMPLE_ATTRS | {"kernel_layout": "OHWI4o"}),
        (
            ((1, 5, 4, 6), (4, 3, 3, 3, 4)),
            _PACKED_SAMPLE_ATTRS | {"groups": 2, "channels": 10, "data_layout": "NHWC", "kernel_layout": "OHWI4o"},
        ),
        (((1, 3, 5, 5), (4, 3, 3, 3)), {"out_dtype": "int32", "padding": (1, 1)}, "int8"),
        (((1, 3, 5, 5), (4, 3, 3, 3)), {"padding": (1, 1)}, "float16"),
        (((2, 3, 6, 9), (5, 3, 3, 3)), _PAD_VALUE_SAMPLE_ATTRS | {"padding": (1, 0, 1, 2)}, "uint8"),
        (
            ((1, 5, 7, 6), (4, 3, 3, 6)),
            _PAD_VALUE_SAMPLE_ATTRS | {"data_layout": "NHWC", "kernel_layout": "OHWI", "pad_value": -7},
            "int8",
        ),
        (((1, 5, 5, 8), (2, 3, 3, 2, 4, 4)), _PACKED_GROUPED_SAMPLE_ATTRS | {"data_layout": "NHWC"}, "uint8"),
        (
            ((1, 4, 5, 5), (2, 3, 3, 1, 4, 4)),
            _PACKED_GROUPED_SAMPLE_ATTRS | {"strides": (2, 1), "pad_value": 7},
            "int8",
        ),
        (((1, 1, 5, 11), (2, 1, 2, 2, 4, 4)), _SPATIAL_GROUP_SAMPLE_ATTRS, "uint8"),
        (
            ((1, 7, 6, 20), (3, 3, 20, 1)),
            _PAD_VALUE_SAMPLE_ATTRS | {"data_layout": "NHWC", "kernel_layout": "HWOI", "groups": 20},
            "uint8",
        ),
    ),
    3: (
        (((1, 2, 4, 5, 6), (3, 2, 2, 3, 3)), {"padding": (1, 0, 1, 0, 1, 2), "strides": (1, 2, 1)}),
        (((1, 4, 3, 4, 5), (4, 2, 2, 2, 2)), {"groups": 2, "dilation": (1, 2, 2)}),
    ),
}


def _batch_only_axis_map(spatial_rank: int, attrs: Any, _: Types) -> AxisMap:
    """Return the axis map of a convolution, which maps only the batch axis, as channels and windows
    are summed.
    """
    positions = window_attributes.data_and_result_axis_positions(spatial_rank, attrs.data_layout, attrs.out_layout)
    return AxisMap((window_attributes.axis_map_row_of_leading_axes(*positions, 1),))


def conv_operators_of_ranks_1_to_3(
    name: str,
    attrs_classes: Sequence[type[Attrs]],
    kernel_shape: Any,
    samples: Any,
    parameter_order: str = "",
    supports_kernel_layout: Callable[[str], bool] = str.isupper,
    **facets: Any,
) -> Iterator[OpDef]:
    """Yield the convolution operators of one kind over one, two and three spatial axes.

    name                      name of the operator, with `{n}` for the number of axes
    attrs_classes             attribute classes for one, two and three axes
    kernel_shape              (n, attributes with channels, the data's type, kernel sizes) -> kernel shape, or
                              None if unknown
    samples                   rows of samples by the number of axes
    supports_kernel_layout    predicate of kernel layouts in which the operator computes directly
    facets                    fields of OpDef that are functions; their first parameter is the number of
                              spatial axes n
    """

    def infer_missing_weight_type(spatial_rank: int, attrs: Any, types: Sequence[Type | None]) -> Sequence[Type | None]:
        data, weight = types
        if (
            weight is not None
            or not isinstance(data, TensorType)
            or attrs.channels is None
            or attrs.kernel_size is None
        ):
            return types
        shape = kernel_shape(spatial_rank, attrs, data, repeat_for_each_axis(attrs.kernel_size, spatial_rank))
        return [data, shape and TensorType(shape, data.dtype)]

    def count_scratch_elements(spatial_rank: int, attrs: Any, types: Types) -> int:
        """Return the number of scratch elements: the columns and products of one tap, and the sums."""
        return (
            require_tensor_type(types[0]).numel
            + 2 * require_tensor_type(facets["infer"](spatial_rank, attrs, types)).numel
        )

    counted = {
        "refine": infer_missing_weight_type,
        "scratch": count_scratch_elements,
        "axes": _batch_only_axis_map,
    } | facets
    for n, attrs_class in enumerate(attrs_classes, 1):
        bound: dict[str, Any] = {facet: partial(function, n) for facet, function in counted.items()}
        op = OpDef(
            name=name.format(n=n),
            attrs=attrs_class,
            args=declare_arguments("data", "weight"),
            order=parameter_order,
            pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
            samples=random_samples_from_rows(attrs_class, samples[n]),
            **bound,
        )
        yield add_blocked_layout_support(op, supports_kernel_layout)


def _is_unblocked_or_output_blocked_layout(kernel_layout: str) -> bool:
    """Return True if a kernel layout is unblocked or blocked as weights are packed (innermost
    output channels).
    """
    try:
        window_attributes.parse_layout_with_up_to_two_blocks(kernel_layout, "o")
    except AotcError:
        return False
    return True


_BLOCKED_SAMPLE_ATTRS: Final = {"data_layout": "NCHW4c", "kernel_layout": "OIHW4i2o", "out_layout": "NCHW2c"}
_BLOCKED_TEST_CASES: Final = (
    (((1, 2, 5, 5, 4), (3, 2, 3, 3, 4, 2)), _BLOCKED_SAMPLE_ATTRS),
    (((1, 2, 5, 5, 4), (8, 1, 3, 3)), {"data_layout": "NCHW4c", "out_layout": "NHWC", "groups": 8}),
)
_CONV_ATTRS_CLASSES = (Conv1DAttrs, Conv2DAttrs, Conv3DAttrs)
conv1d, conv2d, conv3d = conv_operators_of_ranks_1_to_3(
    "nn.conv{n}d",
    _CONV_ATTRS_CLASSES,
    _infer_conv_kernel_shape,
    CONV_TEST_CASES_BY_RANK | {2: (*CONV_TEST_CASES_BY_RANK[2], *_BLOCKED_TEST_CASES)},
    supports_kernel_layout=_is_unblocked_or_output_blocked_layout,
    infer=_infer_conv_type,
    reference=_conv_reference,
    compute=_compute_conv,
)
