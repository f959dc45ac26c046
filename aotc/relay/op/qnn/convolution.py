# SPDX-License-Identifier: Apache-2.0
"""Convolutions of quantised tensors: qnn.conv1d to qnn.conv3d, and qnn.conv1d_transpose to qnn.conv3d_transpose.

sum((data - input_zero_point) * (kernel - kernel_zero_point)) over each window, padding standing for 0

    conv2d(x, w, 128, 0, 0.05, 0.01, padding=(1, 1))           # int32, of the scale 0.05 * 0.01
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, DType, Layout, OpPattern, TensorType, Type, Types, args, record, variant
from aotc.relay.expr import Expr, splat, tensor_type_of
from aotc.relay.op import conv, conv_transpose, pad, reduce, window
from aotc.relay.op import join as joined
from aotc.relay.op.opdef import Array, OpDef, Samples
from aotc.relay.op.qnn import numbers as q
from aotc.relay.op.qnn import sums
from aotc.relay.op.rules import tensor
from aotc.relay.op.samples import exact, random_array

_CONV: Final[dict[int, OpDef]] = {1: conv.conv1d, 2: conv.conv2d, 3: conv.conv3d}
_TRANSPOSED: Final[dict[int, OpDef]] = {
    1: conv_transpose.conv1d_transpose,
    2: conv_transpose.conv2d_transpose,
    3: conv_transpose.conv3d_transpose,
}
_ORDER: Final = (
    "data kernel input_zero_point kernel_zero_point input_scale kernel_scale kernel_size channels strides padding "
    "dilation groups data_layout kernel_layout out_layout{} out_dtype"
)


def _channel_axis(n: int, a: Any, letters: str) -> int | None:
    """The axis of output channels in the kernel; None where it has those of one group."""
    axis = window.positions(a.kernel_layout, letters)[letters.index("O")]
    return None if letters[0] == "I" and a.groups > 1 else axis


def _infer(n: int, plain: OpDef, letters: str, a: Any, types: Types) -> Type:
    data, kernel, data_zero, kernel_zero, data_scale, kernel_scale = types
    x, w = q.quantised(data), q.quantised(kernel, "kernel")
    q.check_pairs((data_zero, data_scale), x, None, "input_zero_point", "input_scale")
    result = tensor(plain.infer(_plainly(plain, a), (data, kernel)))
    channels = TensorType((result.shape[window.layouts(n, a.data_layout, a.out_layout)[1][1]],))
    q.check_pairs((kernel_scale,), channels, 0, "kernel_scale")
    axis = _channel_axis(n, a, letters)
    q.check_pairs((kernel_zero,), w, axis, "kernel_zero_point")
    return result


def _plainly(plain: OpDef, a: Attrs) -> Any:
    """The attributes as those of the operator on plain integers."""
    return plain.attrs(**dict(a.items()))


def _wide(x: Array, zero: Array, axis: int | None = None) -> Array:
    """An array without its zero points; of 8 bits as int16, whose sums are exact in floats."""
    return q.offsets(x, zero, axis, np.int16 if DType.of(x).bits <= 8 else np.int32)


def _reference(
    n: int, plain: OpDef, letters: str, a: Any, x: Array, w: Array, xz: Array, wz: Array, *_: Array
) -> Array:
    a = _plainly(plain, a)
    return np.asarray(plain.reference(a, _wide(x, xz), _wide(w, wz, _channel_axis(n, a, letters))))


def _axes(n: int, a: Any, types: Types) -> AxisMap:
    """The batch axis: channels and windows are summed."""
    kept = window.axes_kept(*window.layouts(n, a.data_layout, a.out_layout), 1)
    return AxisMap((kept, *((None,) * (n + 2) for _ in types[1:])))


# --- convolution


def _padded(n: int, a: Any, data: Expr, zero: Expr) -> tuple[Expr, Any]:
    """Data and attributes with what stands for 0 as padding, written out where it is not known."""
    pads, value = window.pad_pairs(a.padding, n), q.known(zero)
    if not any(map(any, pads)):
        return data, a
    if value is not None:
        return data, a.replace(pad_value=int(value.reshape(())))
    ty, (source, _) = tensor_type_of(data), window.layouts(n, a.data_layout, a.out_layout)
    widths = window.arrange(((0, 0), (0, 0), *pads), source)
    filling = q.laid(zero, None, 0, ty.dtype)
    return q.made(pad.pad, data, pad_value=filling, pad_width=widths), a.replace(padding=(0,) * (2 * n))


def _expand(n: int, a: Any, data: Expr, kernel: Expr, xz: Expr, wz: Expr, *scales: Expr) -> Expr:
    op, letters = _CONV[n], window.KERNEL_LAYOUT[n]
    sums.check_zeros(data, kernel, (xz, wz), scales)
    axis = _channel_axis(n, a, letters)
    shape = tensor_type_of(kernel).static_shape
    kernel, wz = sums.without_zero(kernel, wz, axis)
    inner, *taps = (shape[k] for k in window.positions(a.kernel_layout, letters)[1:])
    count = inner * prod(taps)
    sums.check_sums(f"qnn.conv{n}d", data, kernel, (xz, wz), axis, count)
    data, a = _padded(n, _plainly(op, a), data, xz)
    total = q.made(op, data, kernel, **dict(a.items()))
    result = tensor_type_of(total)
    place = window.layouts(n, a.data_layout, a.out_layout)[1][1]

    def weights() -> Expr:
        wide = q.converted(kernel, "int32")
        return q.made(reduce.sum, wide, axis=[k for k in range(n + 2) if k != axis])

    def windows() -> Expr:
        ones = {"channels": a.groups, "kernel_layout": letters, "kernel_size": tuple(taps)}
        every = splat(1, (a.groups, inner, *taps), "int8")
        seen = q.made(op, data, every, **dict(a.replace(**ones).items()))
        each = result.static_shape[place] // a.groups
        return seen if a.groups == 1 or each == 1 else q.made(joined.repeat, seen, repeats=each, axis=place)

    return sums.taken(total, (xz, wz), count, weights, windows, lambda v: q.laid(v, place, n + 2))


# --- transposed convolution


def _expand_transposed(n: int, a: Any, data: Expr, kernel: Expr, xz: Expr, wz: Expr, *scales: Expr) -> Expr:
    """Woven of ordinary convolutions, which take the zero points."""
    sums.check_zeros(data, kernel, (xz, wz), scales)
    axis = _channel_axis(n, a, window.TRANSPOSED_LAYOUT[n])
    kernel, wz = sums.without_zero(kernel, wz, axis)
    if tensor_type_of(wz).rank == 1 and tensor_type_of(wz).shape != (1,):
        kernel, wz = q.converted(q.centred(kernel, wz, axis), "int16"), q.constant(0, "int32")
    x_scale, w_scale = (q.constant(1, "float32"),) * 2

    def convolve(x: Expr, w: Expr, **attributes: Any) -> Expr:
        return CONVOLUTIONS[n](x, q.settled(w), xz, wz, x_scale, w_scale, **attributes)

    return conv_transpose.expand(n, a, data, kernel, convolve)


# --- samples and the table


def scale_pair() -> tuple[Array, Array]:
    """Scales, which sums of products only carry."""
    return np.asarray(np.float32(0.5)), np.asarray(np.float32(0.25))


def zero_points(*zeros: Any) -> tuple[Array, ...]:
    """Zero points, and scales behind them."""
    return (*(np.asarray(z, np.int32) for z in zeros), *scale_pair())


_ROWS: Final[Any] = {  # the plain operators' shapes and attributes
    1: ((((2, 3, 9), (4, 3, 3)), {"strides": (2,), "padding": (0, 2), "dilation": (2,)}),),
    2: (
        (((1, 3, 8, 9), (5, 3, 3, 3)), {"padding": (1, 1, 1, 1), "channels": 5, "kernel_size": (3, 3)}),
        (((2, 4, 7, 6), (6, 2, 3, 2)), {"groups": 2, "strides": (2, 1), "padding": (1, 0, 2, 1)}),
        (((1, 6, 5, 5), (6, 1, 3, 3)), {"groups": 6, "padding": (1,)}),
        (((1, 5, 6, 3), (3, 3, 3, 4)), {"padding": (1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"}),
    ),
    3: ((((1, 2, 4, 5, 6), (3, 2, 2, 3, 3)), {"padding": (1, 0, 1, 0, 1, 2), "strides": (1, 2, 1)}),),
}
_WOVEN: Final[Any] = {
    1: ((((2, 3, 5), (3, 4, 3)), {"strides": (2,), "padding": (1, 0)}),),
    2: (
        (((1, 3, 4, 5), (3, 2, 2, 2)), {"strides": (2, 2), "channels": 2, "kernel_size": (2, 2)}),
        (((2, 3, 4, 5), (3, 2, 3, 3)), {"strides": (2, 2), "padding": (1, 1), "output_padding": (1, 0)}),
    ),
    3: ((((1, 2, 2, 3, 3), (2, 2, 2, 2, 3)), {"strides": (2, 2, 1)}),),
}


def _samples(attributes: type[Attrs], rows: Any) -> Samples:
    for (shape, kernel), given in rows:
        a = attributes(**given)
        u8, s8, w = random_array(shape, "uint8"), random_array(shape, "int8"), random_array(kernel, "int8", 1)
        yield q.with_constants(a, u8, w, *zero_points(117, 0))
        yield q.with_constants(a, s8, w, *zero_points(-5, 3))
        yield exact(a, s8, w, *zero_points(0, 0))
        yield exact(a, u8, random_array(kernel, "uint8", 1), *zero_points(255, 128))
        yield q.with_constants(a, u8, random_array(kernel, "uint8", 1) + np.uint8(99), *zero_points(0, 7))


def _operator(n: int, plain: OpDef, letters: str, rows: Any, expand: Any, more: str) -> OpDef:
    own = record("ConvAttrs", [f for f in fields(plain.attrs) if f.name != "pad_value"])
    attributes: Any = variant(own, f"Quantised{plain.attrs.__name__}", out_dtype="int32")
    attributes.__doc__ = f"""{plain.doc.splitlines()[0]}

    Sums of (data - input_zero_point) * (kernel - kernel_zero_point), as int32; padding stands for 0.
    """
    facts: dict[str, Any] = {"infer": _infer, "reference": _reference}
    bound: dict[str, Any] = {facet: partial(function, n, plain, letters) for facet, function in facts.items()}
    return OpDef(
        name=plain.name.replace("nn.", "qnn."),
        attrs=attributes,
        args=(*args("data", "kernel"), *q.scales(*sums.ZEROS, *sums.SCALES)),
        order=_ORDER.format(more),
        axes=partial(_axes, n),
        expand=partial(expand, n),
        layout=Layout.BARRIER,
        samples=partial(_samples, attributes, rows),
        **bound,
        **q.facets(OpPattern.OUT_ELEMWISE_FUSABLE, sums=True),
    )


conv1d, conv2d, conv3d = (_operator(n, _CONV[n], window.KERNEL_LAYOUT[n], _ROWS[n], _expand, "") for n in (1, 2, 3))
conv1d_transpose, conv2d_transpose, conv3d_transpose = (
    _operator(n, _TRANSPOSED[n], window.TRANSPOSED_LAYOUT[n], _WOVEN[n], _expand_transposed, " output_padding")
    for n in (1, 2, 3)
)
CONVOLUTIONS: Final = {1: conv1d, 2: conv2d, 3: conv3d}
