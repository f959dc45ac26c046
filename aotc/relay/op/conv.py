# SPDX-License-Identifier: Apache-2.0
"""Convolutions over one to three spatial axes: nn.conv1d, nn.conv2d, nn.conv3d.

Data and kernel come in any order of their axes (`data_layout`, `kernel_layout`).  A
kernel layout such as "OIHW16o" holds blocks of output channels innermost, the last one
padded: weights packed at compile time.

    conv2d(x, w, strides=(2, 2), padding=(3, 3), channels=64, kernel_size=(7, 7))

A result is the sum of the products that there are: where a window reaches into the
padding, nothing is added, not zero times a weight.  So an infinite weight beside
padding makes no NaN, and an infinity or NaN in the data is seen by those results only
whose window holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, Dim, DType, OpPattern, TensorType, Type, Types, args, require
from aotc.relay.op import window
from aotc.relay.op.contract import accumulator, as_dtype, contract, dot, float_work, result_dtype
from aotc.relay.op.opdef import Array, OpDef, Scalar
from aotc.relay.op.rules import ranked, shape_text, tensor
from aotc.relay.op.samples import random_sample
from aotc.relay.op.window import KERNEL_LAYOUT, arrange, pick, positions, spread, steps
from aotc.tir import te


class ConvAttrs(Attrs):
    """Attributes of a convolution.  `channels` and `kernel_size` let the kernel's type be inferred."""

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


def _attributes(n: int) -> type[ConvAttrs]:
    padding = window.paddings(n, 2 if n == 1 else n)
    return window.for_axes(n, ConvAttrs, f"Conv{n}DAttrs", padding=padding, kernel_layout=KERNEL_LAYOUT[n])


Conv1DAttrs, Conv2DAttrs, Conv3DAttrs = map(_attributes, (1, 2, 3))


@dataclass(frozen=True, slots=True)
class _Form:
    """The layouts of one convolution: where the canonical axes are found in data, kernel and result."""

    n: int
    data: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    block: int

    def kernel_shape(self, shape: Sequence[Dim], channels: int | None) -> tuple[Dim, ...]:
        """The kernel's shape as (O, I, spatial...); the channels of a packed one are `channels` if given."""
        outer, *rest = pick(shape[: self.n + 2], self.kernel)
        if self.block and isinstance(outer, int):
            outer = outer * self.block if channels is None else channels
        return (outer, *rest)


def _form(n: int, a: ConvAttrs) -> _Form:
    kernel, block = window.blocked(a.kernel_layout, "o")
    data, out = window.layouts(n, a.data_layout, a.out_layout)
    return _Form(n, data, positions(kernel, KERNEL_LAYOUT[n]), out, block)


def _check_packed(form: _Form, a: ConvAttrs, outer: Dim, shape: tuple[Dim, ...]) -> None:
    """A packed kernel: the innermost axis is the block, the outer one holds all blocks, groups are whole blocks."""
    if not form.block:
        return
    inner = shape[-1]
    require("conv.block", inner == form.block, lambda: f"blocks of {form.block} channels, but {inner} in the kernel")
    if not isinstance(outer, int):
        return
    blocks = -(-outer // form.block)
    held = shape[form.kernel[0]]
    require("conv.block", held == blocks, f"{outer} channels need {blocks} blocks, the kernel has {held}")
    whole = a.groups == 1 or outer // a.groups % form.block == 0
    require("conv.block", whole, lambda: f"groups of {outer} channels are not whole blocks of {form.block}")


def _infer(n: int, a: ConvAttrs, types: Types) -> Type:
    form = _form(n, a)
    data = ranked("conv.data-rank", types[0], n + 2)
    weight = ranked("conv.weight-rank", types[1], n + 2 + bool(form.block), "weight")
    batch, channels, *space = pick(data.shape, form.data)
    outer, inner, *kernel = form.kernel_shape(weight.shape, a.channels)
    _check_channels(a, channels, outer, inner)
    _check_packed(form, a, outer, weight.shape)
    sizes = kernel_sizes(n, a, weight, kernel)
    result = (batch, outer, *starmap(window.window_extent, zip(space, sizes, *steps(n, a), strict=True)))
    return TensorType(arrange(result, form.out), result_dtype(data, weight, a.out_dtype))


def kernel_sizes(n: int, a: Any, weight: TensorType, kernel: Sequence[Dim]) -> list[int]:
    """The extents of the `kernel`, which must be known, and those that the attributes give."""
    sizes = [k for k in kernel if isinstance(k, int)]
    require("conv.kernel", len(sizes) == n, lambda: f"the kernel's size is not known: {weight}")
    given = a.kernel_size is None or tuple(a.kernel_size) == tuple(sizes)
    require("conv.kernel", given, lambda: f"kernel_size is {a.kernel_size}, the weight has {shape_text(tuple(kernel))}")
    return sizes


def _check_channels(a: ConvAttrs, channels: Dim, outer: Dim, inner: Dim) -> None:
    require("conv.groups", a.groups > 0, f"groups must be positive, got {a.groups}")
    if isinstance(channels, int):
        fits = channels % a.groups == 0 and window.may_equal(inner, channels // a.groups)
        text = f"{channels} input channels in {a.groups} groups, but the weight takes {inner}"
        require("conv.in-channels", fits, text)
    if isinstance(outer, int):
        require("conv.out-channels", outer % a.groups == 0, f"{outer} output channels in {a.groups} groups")
        given = a.channels is None or a.channels == outer
        require("conv.out-channels", given, f"channels is {a.channels}, the weight has {outer}")


def _refine(n: int, a: ConvAttrs, types: Sequence[Type | None]) -> Sequence[Type | None]:
    data, weight = types
    if weight is not None or not isinstance(data, TensorType) or a.channels is None or a.kernel_size is None:
        return types
    form = _form(n, a)
    channels = pick(data.shape, form.data)[1]
    if form.block or not isinstance(channels, int):
        return types
    shape = (a.channels, channels // a.groups, *spread(a.kernel_size, n))
    return [data, TensorType(arrange(shape, form.kernel), data.dtype)]


def _unpacked(form: _Form, a: ConvAttrs, weight: Array) -> Array:
    """The kernel as (O, I, spatial...)."""
    if not form.block:
        return window.canonical(weight, form.kernel)
    outer = int(np.asarray(form.kernel_shape(weight.shape, a.channels)[0]))
    plain = np.moveaxis(window.canonical(weight, (*form.kernel, form.n + 2)), -1, 1)
    return plain.reshape(-1, *plain.shape[2:])[:outer]


def _reference(n: int, a: ConvAttrs, data: Array, weight: Array) -> Array:
    """Every tap of the kernel adds its share to the results whose window has data there, group by group."""
    form = _form(n, a)
    x, w = window.canonical(float_work(data), form.data), _unpacked(form, a, float_work(weight))
    batch, space, out_dtype = x.shape[0], x.shape[2:], a.out_dtype or str(data.dtype)
    strides, dilation, pads = steps(n, a)
    extents = window.static_extents(space, w.shape[2:], strides, dilation, pads)
    rows = w.reshape(a.groups, w.shape[0] // a.groups, *w.shape[1:])
    acc = accumulator(DType.of(x), out_dtype)
    total = np.zeros((batch, *rows.shape[:2], *extents), acc.numpy)
    every = (slice(None),) * 3
    for taps in np.ndindex(*w.shape[2:]):
        offsets = [k * d - p[0] for k, d, p in zip(taps, dilation, pads, strict=True)]
        spans = [_span(*axis) for axis in zip(offsets, space, extents, strides, strict=True)]
        reads, writes = zip(*spans, strict=True)
        source, tap, target = (every[:2] + reads, (None, *every, *taps), every + writes)
        part = x[source]
        columns = part.reshape(batch, a.groups, w.shape[1], prod(part.shape[2:]))
        share = dot(rows[tap], columns, str(acc))
        total[target] += share.reshape(*total.shape[:3], *part.shape[2:])
    return window.laid_out(as_dtype(total.reshape(batch, w.shape[0], *extents), out_dtype), form.out)


def _span(offset: int, size: int, count: int, stride: int) -> tuple[slice, slice]:
    """The elements that a tap reads along an axis, and the results that they go to: those whose tap is in the data."""
    first = max(0, -(offset // stride))
    last = max(first, min(count, (size - 1 - offset) // stride + 1))
    begin = first * stride + offset
    return slice(begin, begin + (last - first) * stride, stride), slice(first, last)


def _scratch(n: int, a: ConvAttrs, types: Types) -> int:
    """The columns: for each output position of an image, all that the windows of all groups see there."""
    form, data = _form(n, a), tensor(types[0])
    out = pick(tensor(_infer(n, a, types)).static_shape, form.out)
    batch, channels, *space = pick(data.static_shape, form.data)
    kernel = pick(tensor(types[1]).static_shape, form.kernel)[2:]
    padded = prod(s + sum(p) for s, p in zip(space, steps(n, a)[2], strict=True))
    return batch * channels * (prod(kernel) * prod(out[2:]) + padded)


def _axes(n: int, a: ConvAttrs, types: Types) -> AxisMap:
    """Only the batch axis: channels and windows are summed."""
    form = _form(n, a)
    return AxisMap((window.axes_kept(form.data, form.out, 1), (None,) * (n + 2)))


def _compute(n: int, a: ConvAttrs, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    form = _form(n, a)
    outer, inner, *kernel = (int(d) for d in form.kernel_shape(weight.shape, a.channels) if isinstance(d, int))
    batch, _, *space = pick(data.shape, form.data)
    strides, dilation, pads = steps(n, a)
    extents = window.static_extents(space, kernel, strides, dilation, pads)
    per_group = outer // a.groups

    # the channels innermost where they are in the data
    order = (n, *range(n)) if form.data[1] == n + 1 else tuple(range(n + 1))

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
        return (*arrange((channel // form.block, *inside), form.kernel), channel % form.block)

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
    )


_PACKED: Final = {"padding": (1, 1), "channels": 6, "kernel_size": (3, 3), "kernel_layout": "OIHW4o"}
_SAMPLES: Final[dict[int, tuple[tuple[Any, ...], ...]]] = {  # data, weight, attributes; their data type
    1: (
        ((2, 3, 9), (4, 3, 3), {"strides": (2,), "padding": (0, 2), "dilation": (2,)}),
        ((1, 4, 5), (4, 1, 5), {"groups": 4, "padding": (2, 2)}),
    ),
    2: (
        ((1, 3, 8, 9), (5, 3, 3, 3), {"padding": (1, 1, 1, 1), "channels": 5, "kernel_size": (3, 3)}),
        ((2, 4, 7, 6), (6, 2, 3, 2), {"groups": 2, "strides": (2, 1), "padding": (1, 0, 2, 1)}),
        ((1, 3, 9, 9), (2, 3, 3, 3), {"dilation": (2, 3), "padding": (2, 2)}),
        ((1, 6, 5, 5), (12, 1, 3, 3), {"groups": 6, "padding": (1,)}),
        ((1, 8, 4, 4), (3, 8, 1, 1), {}),
        ((1, 5, 6, 3), (3, 3, 3, 4), {"padding": (1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"}),
        ((1, 3, 6, 5), (3, 3, 4, 3), {"data_layout": "NCHW", "out_layout": "NHWC", "kernel_layout": "HWOI"}),
        ((1, 3, 5, 5), (2, 3, 3, 3, 4), _PACKED),
        ((1, 4, 5, 5), (2, 2, 3, 3, 4), _PACKED | {"groups": 2, "channels": 8, "strides": (2, 2)}),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"out_dtype": "int32", "padding": (1, 1)}, "int8"),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"padding": (1, 1)}, "float16"),
    ),
    3: (
        ((1, 2, 4, 5, 6), (3, 2, 2, 3, 3), {"padding": (1, 0, 1, 0, 1, 2), "strides": (1, 2, 1)}),
        ((1, 4, 3, 4, 5), (4, 2, 2, 2, 2), {"groups": 2, "dilation": (1, 2, 2)}),
    ),
}

_DOC = """{n}-D convolution of data (N, C, {axes}) by weight (O, C/groups, {taps}).

    `padding` is one value, one for each axis, or those before and then those after all axes; it adds nothing to a sum,
    beside infinite weights either.  The result has the data's type, or `out_dtype`: sums of int8 products need "int32".
    """


def _conv(n: int, attributes: type[ConvAttrs]) -> OpDef:
    return OpDef(
        name=f"nn.conv{n}d",
        doc=_DOC.format(n=n, axes=window.AXES[n], taps=window.TAPS[n]),
        attrs=attributes,
        args=args("data", "weight"),
        infer=partial(_infer, n),
        refine=partial(_refine, n),
        reference=partial(_reference, n),
        scratch=partial(_scratch, n),
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        axes=partial(_axes, n),
        compute=partial(_compute, n),
        samples=lambda: (random_sample((x, w), attributes(**a), *dtype) for x, w, a, *dtype in _SAMPLES[n]),
    )


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3), (Conv1DAttrs, Conv2DAttrs, Conv3DAttrs))
