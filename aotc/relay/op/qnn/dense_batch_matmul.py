# SPDX-License-Identifier: Apache-2.0
"""qnn.dense and qnn.batch_matmul, and the zero-point and overflow handling shared with qnn
convolutions.

dense(x, w, 128, 0, 0.05, 0.01)                # x (..., K), w (N, K) -> int32 (..., N)
batch_matmul(x, y, 0, 0, 0.05, 0.01)           # x (B, M, K), y (B, N, K) -> int32 (B, M, N)

Zero points are subtracted from sums of products of the narrow integers:

sum((x - xz) * (w - wz)) = sum(x * w) - xz * sum(w) - wz * sum(x) + count * xz * wz

The operands therefore keep their narrow types, and terms that depend only on constants are folded
to one constant for each channel. Constant weights whose difference from the zero point fits int8
are stored as that difference. A warning is issued if an int32 sum may overflow.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import Attrs, AxisMap, OpPattern, SymDim, Type, Types, args, current_span, param
from aotc.relay.expr import Constant, Expr
from aotc.relay.op import dense as products
from aotc.relay.op import reduce
from aotc.relay.op import shape as shapes
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact, random_array
from aotc.relay.op.qnn import quant_params as q

Zeros: TypeAlias = "tuple[Expr, Expr]"
_INT8: Final = np.iinfo(np.int8)
_MOST: Final = np.iinfo(np.int32).max
#: Names of the arguments after data and weights.
NAMES: Final = ("input_zero_point", "kernel_zero_point", "input_scale", "kernel_scale")


def without_zero(weight: Expr, zero: Expr, axis: int | None) -> Zeros:
    """Return weights and zero points (per element of `axis`), with the zero point folded into
    constant weights.

    If both are constants and weight - zero fits int8, the result is that difference and a zero
    point of 0.
    """
    values, offset = q.known(weight), q.known(zero)
    if values is None or offset is None:
        return weight, zero
    whole = q.offsets(values, offset, axis, np.int64)
    if whole.size and (whole.min() < _INT8.min or whole.max() > _INT8.max):
        return q.settled(weight), q.settled(zero)
    return Constant(whole.astype(np.int8)), q.constant(0, "int32")


def taken(
    sums: Expr,
    zeros: Zeros,
    count: int,
    weights: Callable[[], Expr],
    windows: Callable[[], Expr],
    place: Callable[[Expr], Expr],
) -> Expr:
    """Return the result of subtracting the zero-point terms from sums of products.

    sums     int32 sums of products of data and weights, with their zero points still included
    zeros    zero points of data and of weights
    count    number of products in each sum
    weights  returns the sums of the weights: a vector, or a tensor that broadcasts with the sums
    windows  returns the sums of the data, which broadcast with the sums
    place    reshapes a vector over the output channels so that it broadcasts with the sums
    """
    none, flat = map(q.is_zero, zeros)
    ours, theirs = map(_flat, zeros)
    if not none:
        total = weights()
        if not flat:
            every = q.mul(q.constant(count, "int32"), theirs)
            total = q.sub(total, every)
        sums = q.sub(sums, place(q.mul(ours, total)))
    if flat:
        return sums
    return q.sub(sums, q.mul(windows(), place(theirs)))


def _flat(zero: Expr) -> Expr:
    """Return zero points as int32: a scalar, or a vector over the output channels."""
    if q.is_vector(zero):
        return q.converted(q.settled(zero), "int32")
    return q.laid(zero, None, 0, "int32")


def check_bounds(what: str, data: Expr, weight: Expr, zeros: Zeros, axis: int | None, summed: Sequence[int]) -> None:
    """Warn if sums of products may overflow int32, from the known ranges of data and weights.

    what    name of the operator in the warning
    axis    axis of the weights along which their zero points lie
    summed  axes of the weights that are summed
    """
    low, high = _range(data, zeros[0])
    count = prod(q.size_of(weight, k) for k in summed)
    values, zero = q.known(weight), q.known(zeros[1])
    if values is not None and zero is not None:
        whole = q.offsets(values, zero, axis, np.int64)
        ends = whole * low, whole * high
        least, most = (f(*ends).sum(tuple(summed)) for f in (np.minimum, np.maximum))
        reached = max(int(most.max(initial=0)), -int(least.min(initial=0)))
    else:
        reached = count * max(-low, high) * max(map(abs, _range(weight, zeros[1])))
    if reached <= _MOST:
        return
    where = f"{current_span()}: " if current_span() is not None else ""
    text = f"{where}{what}: sums of {count} products may reach {reached:,}"
    warnings.warn(f"{text}, int32 holds {_MOST:,}; they wrap", stacklevel=2)


def _range(x: Expr, zero: Expr) -> tuple[int, int]:
    """Return the smallest and the largest possible difference of an element and its zero point."""
    dtype, value = q.dtype_of(x), q.known(zero)
    low, high = int(dtype.min), int(dtype.max)
    if value is None:
        return low - high, high - low
    return low - int(value.max()), high - int(value.min())


def check_pair(data: Expr, weight: Expr, *values: Expr, names: Sequence[str] = NAMES) -> None:
    """Raise AotcError for a constant zero point outside of its tensor's dtype and for an invalid
    constant scale.
    """
    pairs = list(zip(names, values, strict=True))
    for (name, zero), x in zip(pairs, (data, weight), strict=False):
        q.checked_zero(name, zero, q.dtype_of(x))
    q.checked_scales(pairs[2:])


def zero_points(*zeros: Any) -> tuple[Array, ...]:
    """Return zero points as int32 arrays, followed by two arbitrary scales, which do not affect the
    integer result.
    """
    scales = (np.asarray(np.float32(s)) for s in (0.5, 0.25))
    return (*(np.asarray(z, np.int32) for z in zeros), *scales)


class QuantizedDenseAttrs(Attrs):
    """Sums of (data - input_zero_point) * (weight - kernel_zero_point): data (..., K), weight (N,
    K), int32 (..., N).

    Scales and zero points of the weights are one value, or one for each of the N units.
    """

    units: int | SymDim | None = param(given=None)
    out_dtype: str = "int32"


class QuantizedMatmulAttrs(Attrs):
    """Sums of (x - x_zero_point) * (y - y_zero_point): x (B, M, K), y (B, N, K), int32 (B, M, N)."""

    out_dtype: str = "int32"


def _plain(a: Any) -> tuple[OpDef, Attrs]:
    """Return the integer operator that corresponds to a qnn attribute record, and that operator's
    attributes.
    """
    if isinstance(a, QuantizedDenseAttrs):
        made = products.DenseAttrs(units=a.units, out_dtype=a.out_dtype)
        return products.dense, made
    plain = products.BatchMatmulAttrs(out_dtype=a.out_dtype, transpose_b=True)
    return products.batch_matmul, plain


def _channels(a: Any) -> int | None:
    """Return the axis of the second operand along which its zero points lie; None if there is one
    zero point.
    """
    return 0 if isinstance(a, QuantizedDenseAttrs) else None


def _infer(names: Sequence[str], a: Any, types: Types) -> Type:
    x, y = (q.quantized_type(ty, name) for ty, name in zip(types[:2], names, strict=False))
    op, plain = _plain(a)
    result = op.infer(plain, (x, y))
    q.check_pairs(types[2::2], x, None, names[2], names[4])
    q.check_pairs(types[3::2], y, _channels(a), names[3], names[5])
    return result


def _axes(a: Any, types: Types) -> AxisMap | None:
    op, plain = _plain(a)
    assert op.axes is not None
    return op.axes(plain, types)


def _reference(a: Any, *given: Array) -> Array:
    x, y, xz, yz = given[:4]
    op, plain = _plain(a)
    other = q.offsets(y, yz, _channels(a))
    return np.asarray(op.reference(plain, q.offsets(x, xz), other))


def _expand(name: str, names: Sequence[str], a: Any, *given: Expr) -> Expr:
    check_pair(*given, names=names[2:])
    x, y, xz, yz = given[:4]
    axis, count = _channels(a), q.size_of(y, -1)
    y, yz = without_zero(y, yz, axis)
    if a.out_dtype == "int32":
        check_bounds(name, x, y, (xz, yz), axis, [q.rank_of(y) - 1])
    op, plain = _plain(a)
    total = q.made(op, x, y, **dict(plain.items()))
    rank = q.rank_of(total)

    def rows(z: Expr, keepdims: bool) -> Expr:
        wide = q.converted(z, "int32")
        return q.made(reduce.sum, wide, axis=[-1], keepdims=keepdims)

    def columns() -> Expr:
        found = rows(y, False)
        return found if axis == 0 else q.made(shapes.expand_dims, found, axis=1)

    def place(v: Expr) -> Expr:
        return q.laid(v, rank - 1, rank) if q.rank_of(v) < 2 else v

    return taken(total, (xz, yz), count, columns, lambda: rows(x, True), place)


def _dense_samples() -> Samples:
    for shape, weight in (((3, 17), (5, 17)), ((2, 3, 8), (4, 8)), ((1, 33), (40, 33))):
        a, w = QuantizedDenseAttrs(units=weight[0]), random_array(weight, "int8", 1)
        x, unsigned = random_array(shape, "int8"), random_array(shape, "uint8")
        yield q.with_constants(a, unsigned, w, *zero_points(117, 0))
        yield q.with_constants(a, x, w, *zero_points(-128, np.arange(weight[0]) - 2))
        yield exact(a, x, random_array(weight, "uint8", 1), *zero_points(-7, 128))
        yield exact(QuantizedDenseAttrs(units=None), x, w, *zero_points(0, 0))


def _matmul_samples() -> Samples:
    for left, right in (((2, 3, 4), (2, 5, 4)), ((1, 3, 7), (2, 2, 7))):
        x, y = random_array(left, "uint8"), random_array(right, "int8", 1)
        yield exact(QuantizedMatmulAttrs(), x, y, *zero_points(3, -9))
        yield q.with_constants(QuantizedMatmulAttrs(), x, y, *zero_points(128, 0))


def _product(attributes: type[Attrs], names: Sequence[str], samples: Any, order: str = "") -> OpDef:
    dense = attributes is QuantizedDenseAttrs
    name = "qnn.dense" if dense else "qnn.batch_matmul"
    return OpDef(
        name=name,
        order=order,
        attrs=attributes,
        args=(*args(*names[:2]), *q.scales(*names[2:])),
        infer=partial(_infer, names),
        reference=_reference,
        axes=_axes,
        expand=partial(_expand, name, names),
        samples=samples,
        **q.facets(OpPattern.OUT_ELEMWISE_FUSABLE, sums=True),
    )


_DENSE = ("data", "weight", *NAMES)
_MATMUL = ("x", "y", "x_zero_point", "y_zero_point", "x_scale", "y_scale")
_ORDER = " ".join((*_DENSE, "units", "out_dtype"))
dense = _product(QuantizedDenseAttrs, _DENSE, _dense_samples, _ORDER)
batch_matmul = _product(QuantizedMatmulAttrs, _MATMUL, _matmul_samples)
