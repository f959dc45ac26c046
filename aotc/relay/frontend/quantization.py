# SPDX-License-Identifier: Apache-2.0
"""Quantized tensors, as calls of the operators `qnn.*`: real =
scale * (stored - zero point).

In: tensors with scales and zero points, which are tensors too: one
value, one for each element of an axis, or one for each block of
elements.  Out: expressions.

    quantize(x, scale, zero, DType("uint8"), work=DType("float32"))     # qnn.quantize
    dequantize(q, scale, zero, DType("float32"))                        # qnn.dequantize, of a constant too

A quantized product is one of integers, brought to the result's
scale:

    x, w = Quantized(x, x_scale, x_zero), Quantized(w, w_scales, w_zero)
    sums = windows.convolve(x.data, w.data, window, bias, terms=terms(x, w))
    requantize(sums, products(x, w), Onto(y_scale, y_zero, DType("int8")), axis=1)

A function of 8 bits is a table, whatever it is:

    mapped(x, onto, g.sigmoid)              # take(table of 256 elements, x)

What the operators have no arguments for, scales of blocks and
floating-point numbers of 8 bits, is ordinary arithmetic.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from aotc.ir import AotcError, DType, frozen, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Maybe
from aotc.relay.frontend.matmul_einsum import Products, matmul
from aotc.relay.graph_api import Call, Constant, Expr, known_data
from aotc.relay.op.qnn.quant_params import checked_scales
from aotc.relay.op.window_attributes import may_equal

_SATURATING: Final = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_FLOAT: Final = DType("float32")
_INT: Final = DType("int32")


@frozen
class Onto:
    """What real numbers are stored as: a scale, a zero point, and
    the type of integers.
    """

    scale: Expr
    zero: Expr
    dtype: DType


@frozen
class Quantized:
    """Integers, their scale and their zero point."""

    data: Expr
    scale: Expr
    zero: Expr

    @property
    def real(self) -> Expr:
        """The real numbers."""
        return dequantize(self.data, self.scale, self.zero, g.dtype(self.scale))


def single(v: Expr) -> bool:
    """Whether a scale or zero point is one value."""
    return g.rank(v) == 0 or g.dims(v) == (1,)


def scale_of(v: Expr, what: str = "a scale") -> Expr:
    """A scale, of which one alone has no axes; AotcError (code
    "qnn.scale") for a known one that is not positive and finite.
    """
    checked_scales([(what, v)])
    return g.reshape(v, ()) if single(v) else v


def zero_of(v: Maybe) -> Expr:
    """A zero point as int32, 0 where it is left out; one alone has
    no axes.
    """
    if v is None:
        return g.constant(0, _INT)
    return g.cast(g.reshape(v, ()) if single(v) else v, _INT)


def is_zero(x: Maybe) -> bool:
    """Whether a zero point is left out or known to be 0 everywhere."""
    return x is None or (isinstance(x, Constant) and not x.data.any())


def is_quantized(x: Expr | None) -> bool:
    """Whether a tensor has just been quantized."""
    return isinstance(x, Call) and getattr(x.op, "name", "") == "qnn.quantize"


def centered(x: Expr, zero: Expr, axis: int) -> Expr:
    """A quantized tensor as int32, its zero point (one, or one
    along `axis`) taken off.
    """
    wide = g.cast(x, _INT)
    return wide if is_zero(zero) else g.sub(wide, laid(zero, axis, g.rank(x)))


def laid(v: Expr, axis: int, rank: int) -> Expr:
    """A scale or zero point as it meets a tensor of `rank`: one
    value, or one per element of an axis.
    """
    if single(v):
        return g.reshape(v, ())
    return g.along(v, axis, rank) if g.rank(v) == 1 else v


def _spread(v: Expr, x: Expr, axis: int = 1, block_size: int = 0) -> Expr:
    """A scale or zero point as it meets `x`: one value, one per
    element of an axis, or one per block.
    """
    if g.rank(v) == 0 or g.dims(v) == (1,):
        return g.reshape(v, ())
    if g.rank(v) == 1 and not block_size:
        return g.along(v, g.axis(axis, g.rank(x)), g.rank(x))
    return _blocks(v, g.shape(x), g.axis(axis, g.rank(v)), block_size)


def _blocks(v: Expr, shape: Sequence[int], axis: int, block: int) -> Expr:
    """Each value along `axis` repeated `block` times, cut to the
    length of the data.
    """
    small = g.shape(v)
    fits = block > 0 and len(small) == len(shape)
    if not fits or small != tuple(-(-n // block) if k == axis else n for k, n in enumerate(shape)):
        text = f"a scale of shape {small} in blocks of {block} along axis {axis} does not fit {tuple(shape)}"
        raise AotcError("graph-quant", text)
    head, tail = small[: axis + 1], small[axis + 1 :]
    wide = g.broadcast(g.reshape(v, (*head, 1, *tail)), (*head, block, *tail))
    y = g.reshape(wide, (*small[:axis], small[axis] * block, *tail))
    return y if small[axis] * block == shape[axis] else g.cut(y, [0], [shape[axis]], [axis])


def zero_from_nearer(below: Expr, above: Expr) -> Expr:
    """The zero point of int8 for the ends of a range in steps, counted from the end that is nearer to 0; a float."""
    nearer = g.greater(g.add(g.add(below, -128.0), g.add(above, 127.0)), 0.0)
    zero = g.where(nearer, g.sub(-128.0, below), g.sub(127.0, above))
    return g.op("round", g.clip(zero, -128.0, 127.0))


def saturated(y: Expr, dtype: DType) -> Expr:
    """Rounded values clipped to the range of an integer type and
    converted.
    """
    return g.cast(g.clip(y, float(dtype.min), float(dtype.max)), dtype)


def converted(x: Expr, dtype: DType, saturate: bool = True) -> Expr:
    """A cast; to floating-point types of 8 and 4 bits, values out
    of range become the greatest finite one, or not.
    """
    source = g.dtype(x)
    if dtype.is_float and dtype.bits <= 8 and source.is_float and source != dtype:
        if dtype == "float8_e8m0fnu":
            raise AotcError("graph-cast", "rounding modes of float8e8m0 are not supported")
        if dtype == "float4_e2m1fn" or (saturate and dtype in _SATURATING):
            work = source if source.max >= dtype.max else DType("float32")
            x = g.clip(g.cast(x, work), float(dtype.min), float(dtype.max))
    return g.cast(x, dtype)


def quantize(
    x: Expr, scale: Expr, zero: Maybe, dtype: DType, *, work: DType, saturate: bool = True, **places: int
) -> Expr:
    """`x` divided by a scale, rounded to even, around a zero point,
    as `dtype`; computed in the type `work`.

    places   `axis` (1 unless it is given) along which the scale has several values, and
             `block_size`, the elements that share one, 0 where each has its own
    """
    _require_fit(x, scale, zero, **places)
    if dtype.is_integer and _is_plain(x, scale, **places):
        numbers = g.cast(scale_of(scale), work), zero_of(zero)
        return g.op("qnn.quantize", g.cast(x, work), *numbers, out_dtype=dtype, axis=_axis(x, **places))
    if g.dtype(scale).is_float:
        checked_scales([("a scale", scale)])
    y = g.div(g.cast(x, work), g.cast(_spread(scale, x, **places), work))
    y = y if dtype.is_float else g.op("round", y)
    if zero is not None and not is_zero(zero):
        y = g.add(y, g.cast(_spread(zero, x, **places), work))
    return converted(y, dtype, saturate) if dtype.is_float else saturated(y, dtype)


def dequantize(x: Expr, scale: Expr, zero: Maybe, dtype: DType, **places: int) -> Expr:
    """The real numbers that a quantized tensor stands for, as
    `dtype`; `places` as in `quantize`.
    """
    _require_fit(x, scale, zero, **places)
    if g.dtype(x).is_integer and _is_plain(x, scale, **places):
        axis = _axis(x, **places)
        return g.kept("qnn.dequantize", x, scale_of(scale), zero_of(zero), out_dtype=dtype, axis=axis)
    require_finite(scale)
    if zero is None or is_zero(zero):
        y = g.cast(x, dtype)
    else:
        work = "int32" if g.dtype(x).is_integer else str(dtype)
        y = g.cast(g.sub(g.cast(x, work), g.cast(_spread(zero, x, **places), work)), dtype)
    return g.mul(y, g.cast(_spread(scale, x, **places), dtype))


def _is_plain(x: Expr, scale: Expr, axis: int = 1, block_size: int = 0) -> bool:
    """Whether a scale is one value, or one for each element of an axis."""
    return g.dtype(scale).is_float and (single(scale) or (g.rank(scale) == 1 and not block_size))


def _axis(x: Expr, axis: int = 1, block_size: int = 0) -> int:
    """The axis of several scales; any will do for one."""
    return g.axis(axis, g.rank(x)) if -g.rank(x) <= axis < g.rank(x) else -1


def _require_fit(x: Expr, scale: Expr, zero: Maybe, axis: int = 1, block_size: int = 0) -> None:
    """AotcError unless each element has one scale, and each scale
    its zero point.
    """
    many = not single(scale)
    if many:
        g.axis(axis, g.rank(x))
    if zero is None:
        return
    one, other = g.dims(scale), g.dims(zero)
    equal = len(one) == len(other) and all(map(may_equal, one, other)) if many else single(zero)
    text = f"scales of shape {one} have zero points of shape {other}"
    require("graph-quant", equal, text)


def require_finite(scale: Expr) -> None:
    """AotcError (code "qnn.scale") for scales of blocks that are
    known and not finite.

    They may be 0 or negative: quantizers of weights make such of
    blocks of zeros, and to reach the greatest magnitude.
    """
    value = known_data(scale)
    if value is not None and not np.isfinite(value.astype(np.float64)).all():
        raise AotcError("qnn.scale", "the scale of a block is not finite")


def in_blocks(x: Expr, scales: Expr, zeros: Expr, axis: int, block_size: int) -> Expr:
    """Integers as real numbers, with a scale and a zero point for
    each block along an axis.
    """
    require_finite(scales)
    shape, work = g.shape(x), g.dtype(scales)
    scales, zeros = (_blocks(v, shape, axis, block_size) for v in (scales, zeros))
    # weights stay integers: a pass finds them
    centered = g.kept("subtract", g.kept("cast", x, dtype=str(work)), zeros)
    return g.kept("multiply", centered, scales)


# --- sums of products


def terms(x: Quantized, w: Quantized) -> tuple[Expr, Expr, Expr, Expr]:
    """What operators of products take after data and weights."""
    return x.zero, w.zero, x.scale, w.scale


def product(a: Quantized, b: Quantized, dtype: str = "int32") -> Expr:
    """numpy's matmul of integers without their zero points; these are
    one each where the sums are no int32.
    """
    rows, columns = not single(a.zero), not single(b.zero)
    if rows or (columns and g.rank(b.data) != 2):
        return matmul(centered(a.data, a.zero, g.rank(a.data) - 2), centered(b.data, b.zero, g.rank(b.data) - 1))
    one = g.constant(1.0, _FLOAT)
    scales = (v if single(v) else one for v in (a.scale, b.scale))
    numbers = a.zero, b.zero, *scales

    def dense(x: Expr, y: Expr) -> Expr:
        return g.op("qnn.dense", x, g.transpose(y, (1, 0)), *numbers, units=None, out_dtype=dtype)

    def batched(x: Expr, y: Expr) -> Expr:
        return g.op("qnn.batch_matmul", x, g.transpose(y, (0, 2, 1)), *numbers, out_dtype=dtype)

    return matmul(a.data, b.data, Products(dense, batched))


def products(x: Quantized, w: Quantized) -> Expr:
    """The scale of products."""
    return g.mul(x.scale, w.scale)


def requantize(sums: Expr, scale: Expr, onto: Onto, axis: int = -1) -> Expr:
    """int32 sums of a scale (one, or one for each element of an
    axis) as integers of another scale: times the quotient of the
    scales in float32, rounded to even.
    """
    zero = g.constant(0, _INT)
    how = {"rounding": "FLOAT_EVEN", "out_dtype": onto.dtype, "axis": axis}
    return g.op("qnn.requantize", sums, scale_of(scale), zero, onto.scale, onto.zero, **how)


def scaled(sums: Expr, scale: Expr) -> Expr:
    """Integers of a scale (one, or one for each element of the last
    axis) as real numbers, rounded before anything is added to them.
    """
    rank = g.rank(sums)
    return g.op("qnn.product", g.cast(sums, _FLOAT), laid(scale, rank - 1, rank))


def rescaled(sums: Expr, factor: Expr, zero: Expr, dtype: DType) -> Expr:
    """The same, times a factor for each row and column, around a
    zero point for each of them.
    """
    y = g.op("round", g.mul(g.cast(sums, _FLOAT), factor))
    return saturated(g.add(y, g.cast(zero, _FLOAT)), dtype)


# --- functions of 8 bits


def mapped(x: Quantized, onto: Onto, function: Callable[[Expr], Expr]) -> Expr:
    """A function of the real numbers, stored anew: a table of what
    all integers give, computed in float64 and rounded once.
    """
    every = np.arange(256).astype(np.uint8).view(g.dtype(x.data).numpy)
    work = DType("float64")
    steps = g.cast(g.sub(g.constant(every.astype(np.int32)), x.zero), work)
    real = function(g.mul(steps, g.cast(x.scale, work)))
    table = quantize(real, onto.scale, onto.zero, onto.dtype, work=work)
    return looked_up(table, x.data)


def looked_up(table: Expr, x: Expr) -> Expr:
    """Elements of a table, by integers of 8 bits as they are without a sign."""
    return g.op("take", table, g.cast(g.cast(x, "uint8"), _INT), axis=0, mode="clip")


# --- numbers that come with the data


def dynamic_range(x: Expr, dtype: DType) -> tuple[Expr, Expr]:
    """Scale and zero point of an unsigned type from the range of
    the data, which always includes 0.

    Where all data is 0 every scale would do; it is 1, as in ONNX
    Runtime, rather than 0, which nothing can be divided by.
    """
    axes = range(g.rank(x))
    low = g.minimum(g.reduce("min", x, axes, False), 0.0)
    high = g.maximum(g.reduce("max", x, axes, False), 0.0)
    extent = g.sub(high, low)
    steps = float(dtype.max - dtype.min)
    scale = g.where(g.equal(extent, 0.0), g.constant(1.0, "float32"), g.div(extent, steps))
    return scale, saturated(g.op("round", g.div(g.negative(low), scale)), dtype)
