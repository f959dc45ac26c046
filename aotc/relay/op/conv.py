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

from aotc.ir import AotcError, Attrs, AxisMap, Dim, DType, OpPattern, TensorType, Type, Types, args, frozen, require
from aotc.relay.op import window_attributes
from aotc.relay.op.contraction import accumulator, as_dtype, contract, dot, float_work, result_dtype
from aotc.relay.op.layout import in_blocks
from aotc.relay.op.operator_definition import Array, OpDef, Scalar, cases, extent_of, ranked, shape_text, tensor
from aotc.relay.op.window_attributes import KERNEL_LAYOUT, arrange, pick, positions, spread, steps
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


def _attributes(n: int) -> type[ConvAttrs]:
    padding = window_attributes.paddings(n, 2 if n == 1 else n)
    return window_attributes.for_axes(n, ConvAttrs, f"Conv{n}DAttrs", padding=padding, kernel_layout=KERNEL_LAYOUT[n])


Conv1DAttrs, Conv2DAttrs, Conv3DAttrs = map(_attributes, (1, 2, 3))


@frozen
class _Form:
    """Parsed layouts of a convolution: positions of the canonical axes in data, kernel and result.

    n       number of spatial axes
    data    positions of (N, C, spatial axes) in the data
    kernel  positions of (O, I, spatial axes) in the kernel, without its blocks
    out     positions of (N, C, spatial axes) in the result
    block   output channels in an innermost block of a packed kernel; 0 for none
    group   elements in an innermost group of a packed kernel; 0 for none
    along   canonical kernel axis that is in groups
    """

    n: int
    data: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    block: int
    group: int
    along: int

    def kernel_shape(self, shape: Sequence[Dim], a: ConvAttrs, inputs: Dim) -> tuple[Dim, ...]:
        """Return the unpacked kernel shape as (O, I, spatial...).

        The output channels of a packed kernel are the attribute `channels`, if given. The extent of
        the axis in groups is the number of input channels, or that of the attribute `kernel_size`
        for a spatial axis.
        """
        require("conv.groups", a.groups > 0, f"groups must be positive, got {a.groups}")
        found = list(pick(shape[: self.n + 2], self.kernel))
        if self.block and isinstance(found[0], int):
            found[0] = found[0] * self.block if a.channels is None else a.channels
        if self.group:
            given: Dim | None = inputs
            if self.along > 1:
                taps = a.kernel_size
                given = None if taps is None else spread(taps, self.n)[self.along - 2]
            found[self.along] = self._whole(given, found[self.along], a.groups)
        return tuple(found)

    def _whole(self, size: Dim | None, held: Dim, groups: int) -> Dim:
        """Return the extent of the axis in groups; raise AotcError unless it has as many groups as
        the kernel holds.
        """
        if size is None:
            return extent_of(held, self.group.__mul__)
        size = size // groups if self.along == 1 and isinstance(size, int) else size
        if isinstance(size, int) and isinstance(held, int):
            count = -(-size // self.group)
            text = f"{size} elements are {count} groups of {self.group}, not {held}"
            require("conv.group", count == held, text)
        return size


def _form(n: int, a: ConvAttrs) -> _Form:
    kernel, block, group, letter = window_attributes.grouped(a.kernel_layout, "o")
    data, out = window_attributes.layouts(n, a.data_layout, a.out_layout)
    along = KERNEL_LAYOUT[n].index(letter) if letter else 0
    return _Form(n, data, positions(kernel, KERNEL_LAYOUT[n]), out, block, group, along)


def _check_packed(form: _Form, a: ConvAttrs, outer: Dim, shape: tuple[Dim, ...]) -> None:
    """Raise AotcError unless the blocks and groups of a packed kernel have the sizes that its
    layout states.

    The kernel's outer axis must hold all blocks. Each convolution group has its own blocks, which
    must be complete if `form.group` is set.
    """
    if not form.block:
        return
    *_, inner, group = (*shape, 0) if not form.group else shape
    text = f"groups of {form.group}, but {group} in the kernel"
    require("conv.group", group == form.group, text)
    require("conv.block", inner == form.block, lambda: f"blocks of {form.block} channels, but {inner} in the kernel")
    if not isinstance(outer, int):
        return
    blocks = a.groups * _blocks(form, a, outer)
    held = shape[form.kernel[0]]
    require("conv.block", held == blocks, f"{outer} channels need {blocks} blocks, but the kernel has {held}")
    whole = a.groups == 1 or not form.group or outer // a.groups % form.block == 0
    require("conv.block", whole, lambda: f"groups of {outer} channels are not whole blocks of {form.block}")


def _blocks(form: _Form, a: ConvAttrs, outer: int) -> int:
    """Return the number of blocks for the channels of one convolution group; `outer` is the total
    of all groups.
    """
    return -(-(outer // a.groups) // form.block)


def _infer(n: int, a: ConvAttrs, types: Types) -> Type:
    form = _form(n, a)
    data = ranked("conv.data-rank", types[0], n + 2)
    rank = n + 2 + bool(form.block) + bool(form.group)
    weight = ranked("conv.weight-rank", types[1], rank, "weight")
    batch, channels, *space = pick(data.shape, form.data)
    outer, inner, *kernel = form.kernel_shape(weight.shape, a, channels)
    check_channels(a, channels, inner, outer)
    _check_fill(a.pad_value, data.dtype)
    _check_packed(form, a, outer, weight.shape)
    sizes = kernel_sizes(n, a, weight, kernel)
    extents = window_attributes.window_extents(n, a, space, sizes)
    return TensorType(arrange((batch, outer, *extents), form.out), result_dtype(data, weight, a.out_dtype))


def _check_fill(value: int, dtype: DType) -> None:
    fits = value == 0 or (dtype.is_integer and dtype.min <= value <= dtype.max)
    require(
        "conv.pad-value",
        fits,
        f"padding of {dtype} with {value}: only integer types allow a padding value other than 0, within their range",
    )


def kernel_sizes(n: int, a: Any, weight: TensorType, kernel: Sequence[Dim]) -> list[int]:
    """Return the kernel's spatial extents; raise AotcError if they are unknown or differ from the
    attributes.
    """
    sizes = [k for k in kernel if isinstance(k, int)]
    require("conv.kernel", len(sizes) == n, lambda: f"the kernel's size is not known: {weight}")
    given = a.kernel_size is None or tuple(a.kernel_size) == tuple(sizes)
    require("conv.kernel", given, lambda: f"kernel_size is {a.kernel_size}, the weight has {shape_text(tuple(kernel))}")
    return sizes


def check_channels(a: Any, channels: Dim, inner: Dim, total: Dim, transposed: bool = False) -> None:
    """Raise AotcError unless the channel counts of data, weight and attributes are consistent.

    inner  input channels of the weight: those of one group, or all in a transposed convolution
    total  output channels
    """
    require("conv.groups", a.groups > 0, f"groups must be positive, got {a.groups}")
    if isinstance(channels, int):
        wanted = channels if transposed else channels // a.groups
        text = f"{channels} input channels cannot be divided among {a.groups} groups"
        require("conv.in-channels", channels % a.groups == 0, text)
        text = f"{channels} input channels: with groups={a.groups} the weight must take {wanted} channels, not {inner}"
        require("conv.in-channels", window_attributes.may_equal(inner, wanted), text)
    if isinstance(total, int):
        text = f"{total} output channels cannot be divided among {a.groups} groups"
        require("conv.out-channels", total % a.groups == 0, text)
        given = a.channels is None or window_attributes.may_equal(a.channels, total)
        require("conv.out-channels", given, f"channels is {a.channels}, but the weight has {total}")


def _kernel_shape(n: int, a: ConvAttrs, data: TensorType, sizes: Sequence[int]) -> tuple[Dim, ...] | None:
    form = _form(n, a)
    channels = pick(data.shape, form.data)[1]
    if form.block or not isinstance(channels, int):
        return None
    return arrange((a.channels or 0, channels // a.groups, *sizes), form.kernel)


def _unpacked(form: _Form, a: ConvAttrs, weight: Array, inputs: int) -> Array:
    """Return the kernel array unpacked to the shape (O, I, spatial...)."""
    plain = window_attributes.canonical(weight, (*form.kernel, *range(form.n + 2, weight.ndim)))
    shape: Any = form.kernel_shape(weight.shape, a, inputs)
    for axis in [form.along] * bool(form.group) + [0] * bool(form.block):
        plain = np.moveaxis(plain, -1, axis + 1)
        whole = plain.shape[axis] * plain.shape[axis + 1]
        plain = plain.reshape(*plain.shape[:axis], whole, *plain.shape[axis + 2 :])
    if form.block and a.groups > 1:  # each convolution group has its own padding
        of_group = plain.reshape(a.groups, -1, *plain.shape[1:])[:, : shape[0] // a.groups]
        plain = of_group.reshape(-1, *plain.shape[1:])
    return plain[tuple(slice(extent) for extent in shape)]


def _reference(n: int, a: ConvAttrs, data: Array, weight: Array) -> Array:
    form = _form(n, a)
    x = window_attributes.canonical(float_work(data), form.data)
    w = _unpacked(form, a, float_work(weight), x.shape[1])
    out_dtype = a.out_dtype or str(data.dtype)
    extents = window_attributes.window_extents(n, a, x.shape[2:], w.shape[2:])
    if a.pad_value:
        x = np.pad(x, ((0, 0), (0, 0), *window_attributes.pad_pairs(a.padding, n)), constant_values=a.pad_value)
        a = replace(a, padding=(0,) * n)
    kernels = w.reshape(a.groups, w.shape[0] // a.groups, *w.shape[1:])
    images = x.reshape(x.shape[0], a.groups, w.shape[1], *x.shape[2:])
    total = summed_by_taps(n, a, images, kernels, extents, accumulator(DType.of(x), out_dtype))
    return window_attributes.laid_out(as_dtype(total.reshape(x.shape[0], w.shape[0], *extents), out_dtype), form.out)


def summed_by_taps(
    n: int, a: Any, x: Array, kernels: Array, extents: Sequence[int], dtype: DType, transposed: bool = False
) -> Array:
    """Convolve data (N, groups, I, space...) by kernels (groups, O, I, taps...): (N, groups, O,
    extents...).

    Loops over the taps; a tap adds its products to the results whose window has data at this tap.
    In a transposed convolution, data and results exchange roles.
    """
    strides, dilation, pads = steps(n, a)
    total = np.zeros((len(x), *kernels.shape[:2], *extents), dtype.numpy)
    every = (slice(None),) * 3
    sizes = (extents, x.shape[3:]) if transposed else (x.shape[3:], extents)
    for taps in np.ndindex(*kernels.shape[3:]):
        offsets = [k * d - p[0] for k, d, p in zip(taps, dilation, pads, strict=True)]
        spans = [_span(*axis) for axis in zip(offsets, *sizes, strides, strict=True)]
        reads, writes = zip(*(reversed(s) if transposed else s for s in spans), strict=True)
        source, target = every + reads, every + writes
        part = x[source]
        columns = part.reshape(*part.shape[:3], prod(part.shape[3:]))
        tap = (None, *every, *taps)
        share = dot(kernels[tap], columns, str(dtype))
        total[target] += share.reshape(*total.shape[:3], *part.shape[3:])
    return total


def _span(offset: int, size: int, count: int, stride: int) -> tuple[slice, slice]:
    """Return the data elements that a tap reads along an axis, and the outputs they are added to,
    as slices.
    """
    first = max(0, -(offset // stride))
    last = max(first, min(count, (size - 1 - offset) // stride + 1))
    begin = first * stride + offset
    return slice(begin, begin + (last - first) * stride, stride), slice(first, last)


def _compute(n: int, a: ConvAttrs, data: Tensor, weight: Tensor) -> Tensor:
    form = _form(n, a)
    batch, inputs, *space = pick(data.shape, form.data)
    found = form.kernel_shape(weight.shape, a, inputs)
    outer, inner, *kernel = (int(d) for d in found if isinstance(d, int))
    strides, dilation, pads = steps(n, a)
    extents = window_attributes.window_extents(n, a, space, kernel)
    per_group = outer // a.groups

    # sum over channels innermost if they are innermost in the data or in a copy of it
    order = (n, *range(n)) if form.data[1] == n + 1 or form.group else tuple(range(n + 1))

    def a_index(*v: Scalar) -> Sequence[Scalar]:
        image, channel, *at = pick(v[: n + 2], form.out)
        ic, *taps = pick(v[n + 2 :], order)
        group = channel // per_group * inner if a.groups > 1 else 0
        where = [o * s + k * d - p[0] for o, s, k, d, p in zip(at, strides, taps, dilation, pads, strict=True)]
        return arrange((image, ic + group, *where), form.data)

    def b_index(*v: Scalar) -> Sequence[Scalar]:
        channel, inside = v[form.out[1]], pick(v[n + 2 :], order)
        if not form.block:
            return arrange((channel, *inside), form.kernel)
        first, lane = channel // form.block, channel % form.block
        if a.groups > 1 and per_group % form.block:
            of_group = channel % per_group
            first = channel // per_group * _blocks(form, a, outer) + of_group // form.block
            lane = of_group % form.block
        index, group = [first, *inside], list[Scalar]()
        if form.group:
            group.append(index[form.along] % form.group)
            index[form.along] = index[form.along] // form.group
        return (*arrange(index, form.kernel), lane, *group)

    contiguous = bool(form.block) or (form.kernel[0] == n + 1 and a.groups == 1)
    return contract(
        arrange((batch, outer, *extents), form.out),
        arrange((inner, *kernel), order),
        data,
        a_index,
        weight,
        b_index,
        out_dtype=a.out_dtype,
        name=f"conv{n}d",
        lane=form.out[1] if contiguous else None,
        block=form.block,
        fill=a.pad_value,
        group=form.group,
    )


_PACKED: Final = {"padding": (1, 1), "channels": 6, "kernel_size": (3, 3), "kernel_layout": "OIHW4o"}
_SUMS: Final = {"out_dtype": "int32", "padding": (1, 1), "channels": 6}
_GROUPED: Final = _SUMS | {"kernel_layout": "OHWI4o4i", "kernel_size": (3, 3)}
_ALONG: Final = _SUMS | {"kernel_layout": "OIHW4o4w", "kernel_size": (2, 8)}
_FILLED: Final = {"out_dtype": "int32", "padding": (1, 1), "pad_value": 99}
SAMPLES: Final[Any] = {  # shapes of data and weight, attributes; their data type
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
        (((1, 3, 5, 5), (2, 3, 3, 3, 4)), _PACKED),
        (((1, 4, 5, 5), (2, 2, 3, 3, 4)), _PACKED | {"groups": 2, "channels": 8, "strides": (2, 2)}),
        (((1, 6, 4, 5), (6, 2, 3, 3, 4)), _PACKED | {"groups": 3, "channels": 21}),
        (((1, 5, 4, 5), (2, 3, 3, 5, 4)), _PACKED | {"kernel_layout": "OHWI4o"}),
        (
            ((1, 5, 4, 6), (4, 3, 3, 3, 4)),
            _PACKED | {"groups": 2, "channels": 10, "data_layout": "NHWC", "kernel_layout": "OHWI4o"},
        ),
        (((1, 3, 5, 5), (4, 3, 3, 3)), {"out_dtype": "int32", "padding": (1, 1)}, "int8"),
        (((1, 3, 5, 5), (4, 3, 3, 3)), {"padding": (1, 1)}, "float16"),
        (((2, 3, 6, 9), (5, 3, 3, 3)), _FILLED | {"padding": (1, 0, 1, 2)}, "uint8"),
        (
            ((1, 5, 7, 6), (4, 3, 3, 6)),
            _FILLED | {"data_layout": "NHWC", "kernel_layout": "OHWI", "pad_value": -7},
            "int8",
        ),
        (((1, 5, 5, 8), (2, 3, 3, 2, 4, 4)), _GROUPED | {"data_layout": "NHWC"}, "uint8"),
        (((1, 4, 5, 5), (2, 3, 3, 1, 4, 4)), _GROUPED | {"strides": (2, 1), "pad_value": 7}, "int8"),
        (((1, 1, 5, 11), (2, 1, 2, 2, 4, 4)), _ALONG, "uint8"),
        (
            ((1, 7, 6, 20), (3, 3, 20, 1)),
            _FILLED | {"data_layout": "NHWC", "kernel_layout": "HWOI", "groups": 20},
            "uint8",
        ),
    ),
    3: (
        (((1, 2, 4, 5, 6), (3, 2, 2, 3, 3)), {"padding": (1, 0, 1, 0, 1, 2), "strides": (1, 2, 1)}),
        (((1, 4, 3, 4, 5), (4, 2, 2, 2, 2)), {"groups": 2, "dilation": (1, 2, 2)}),
    ),
}


def operators(
    name: str,
    attributes: Sequence[type[Attrs]],
    kernel_shape: Any,
    samples: Any,
    order: str = "",
    own_kernel: Callable[[str], bool] = str.isupper,
    **facets: Any,
) -> Iterator[OpDef]:
    """Yield the convolution operators of one kind over one, two and three spatial axes.

    name          name of the operator, with `{n}` for the number of axes
    attributes    attribute classes for one, two and three axes
    kernel_shape  (n, attributes with channels, the data's type, kernel sizes) -> kernel shape, or None if unknown
    samples       rows of samples by the number of axes
    own_kernel    predicate of kernel layouts in which the operator computes directly
    facets        fields of OpDef that are functions whose first parameter is n
    """

    def refine(n: int, a: Any, types: Sequence[Type | None]) -> Sequence[Type | None]:
        data, weight = types
        if weight is not None or not isinstance(data, TensorType) or a.channels is None or a.kernel_size is None:
            return types
        shape = kernel_shape(n, a, data, spread(a.kernel_size, n))
        return [data, shape and TensorType(shape, data.dtype)]

    def scratch(n: int, a: Any, types: Types) -> int:
        """Return the number of scratch elements: the columns and products of one tap, and the sums."""
        return tensor(types[0]).numel + 2 * tensor(facets["infer"](n, a, types)).numel

    def axes(n: int, a: Any, _: Types) -> AxisMap:
        """Return the axis map of a convolution, which maps only the batch axis, as channels and
        windows are summed.
        """
        return AxisMap((window_attributes.axes_kept(*window_attributes.layouts(n, a.data_layout, a.out_layout), 1),))

    counted = {"refine": refine, "scratch": scratch, "axes": axes} | facets
    for n, made in enumerate(attributes, 1):
        bound: dict[str, Any] = {facet: partial(function, n) for facet, function in counted.items()}
        op = OpDef(
            name=name.format(n=n),
            attrs=made,
            args=args("data", "weight"),
            order=order,
            pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
            samples=cases(made, samples[n]),
            **bound,
        )
        yield in_blocks(op, own_kernel)


def _is_own(kernel: str) -> bool:
    """Return True if a kernel layout is unblocked or blocked as weights are packed (innermost
    output channels).
    """
    try:
        window_attributes.grouped(kernel, "o")
    except AotcError:
        return False
    return True


_BLOCKED: Final = {"data_layout": "NCHW4c", "kernel_layout": "OIHW4i2o", "out_layout": "NCHW2c"}
_IN_BLOCKS: Final = (
    (((1, 2, 5, 5, 4), (3, 2, 3, 3, 4, 2)), _BLOCKED),
    (((1, 2, 5, 5, 4), (8, 1, 3, 3)), {"data_layout": "NCHW4c", "out_layout": "NHWC", "groups": 8}),
)
_ATTRIBUTES = (Conv1DAttrs, Conv2DAttrs, Conv3DAttrs)
conv1d, conv2d, conv3d = operators(
    "nn.conv{n}d",
    _ATTRIBUTES,
    _kernel_shape,
    SAMPLES | {2: (*SAMPLES[2], *_IN_BLOCKS)},
    own_kernel=_is_own,
    infer=_infer,
    reference=_reference,
    compute=_compute,
)
