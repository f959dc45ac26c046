# SPDX-License-Identifier: Apache-2.0
"""Quantised tensors, composed of ordinary arithmetic: real = scale
* (stored - zero point).

In: tensors with scales and zero points, which are tensors too: one
value, one for each element of an axis, or one for each block of
elements.  Out: expressions.  Sums of products are exact in int32;
scaling, rounding and saturation happen in floating point.

    quantize(x, scale, zero, "uint8")       # cast(clip(round(x / scale) + zero, 0, 255), "uint8")
    dequantize(q, scale, zero, "float32")   # (q - zero) * scale

A quantised product is one of integers, from which zero points are
taken first, and brought to the result's scale:

    sums = convolve(centred(x, x_zero, 1), centred(w, w_zero, 0), window, bias, out_dtype="int32")
    requantize(sums, x_scale * w_scale / y_scale, y_zero)

This is the only module that a dialect of quantised operators
replaces: where one is there, `quantize`, `dequantize`, `requantize`
and products of what is `centred` become calls of it. A format that
states scales and zero points as constants of its tensors passes
them as constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aotc.ir import AotcError, DType
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.arguments import Maybe

_SATURATING: Final = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def is_zero(x: Maybe) -> bool:
    """Whether a zero point is left out or known to be 0 everywhere."""
    return x is None or (isinstance(x, Constant) and not x.data.any())


def centred(x: Expr, zero: Maybe, axis: int) -> Expr:
    """A quantised tensor as int32, its zero point (one, or one
    along `axis`) taken off.
    """
    wide = g.cast(x, "int32")
    return wide if zero is None or is_zero(zero) else g.sub(wide, laid(g.cast(zero, "int32"), axis, g.rank(x)))


def laid(v: Expr, axis: int, rank: int) -> Expr:
    """A scale or zero point as it meets a tensor of `rank`: one
    value, or one per element of an axis.
    """
    if g.rank(v) == 0 or g.dims(v) == (1,):
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
    if len(small) != len(shape) or block < 1 or small[axis] * block < shape[axis]:
        raise AotcError("graph-quant", f"a scale of shape {small} in blocks of {block} does not fit {tuple(shape)}")
    head, tail = small[: axis + 1], small[axis + 1 :]
    wide = g.broadcast(g.reshape(v, (*head, 1, *tail)), (*head, block, *tail))
    y = g.reshape(wide, (*small[:axis], small[axis] * block, *tail))
    return y if small[axis] * block == shape[axis] else g.cut(y, [0], [shape[axis]], [axis])


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
    y = g.div(g.cast(x, work), g.cast(_spread(scale, x, **places), work))
    y = y if dtype.is_float else g.op("round", y)
    if zero is not None and not is_zero(zero):
        y = g.add(y, g.cast(_spread(zero, x, **places), work))
    return converted(y, dtype, saturate) if dtype.is_float else saturated(y, dtype)


def dequantize(x: Expr, scale: Expr, zero: Maybe, dtype: DType, **places: int) -> Expr:
    """The real numbers that a quantised tensor stands for, as
    `dtype`; `places` as in `quantize`.
    """
    if zero is None or is_zero(zero):
        y = g.cast(x, dtype)
    else:
        work = "int32" if g.dtype(x).is_integer else str(dtype)
        y = g.cast(g.sub(g.cast(x, work), g.cast(_spread(zero, x, **places), work)), dtype)
    return g.mul(y, g.cast(_spread(scale, x, **places), dtype))


def requantize(sums: Expr, factor: Expr, zero: Expr) -> Expr:
    """int32 sums times a factor in float32, rounded to even, around
    a zero point, saturated to its type.
    """
    y = g.add(g.op("round", g.mul(g.cast(sums, "float32"), factor)), g.cast(zero, "float32"))
    return saturated(y, g.dtype(zero))


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
