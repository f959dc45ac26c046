# SPDX-License-Identifier: Apache-2.0
"""Helpers of quantized operators: type rules and checks of scales and zero points, quantization of
arrays.

quantized(x, scale, zero, DType("int8"))       # numpy: clip(round_even(x / scale) + zero)
made(multiply, x, y)                           # a call, or its value if x and y are constants
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, Arg, Attrs, DType, OpPattern, Precision, TensorType, Type, Types, require
from aotc.relay.graph_api import Call, Constant, Expr, call, evaluate_call, tensor_type_of
from aotc.relay.op import binary_elementwise, casts, elementwise_unary, shape
from aotc.relay.op.operator_definition import Accuracy, Array, OpDef, Sample, may_equal, number
from aotc.relay.op.qnn import defined_rounding
from aotc.relay.op.type_rules import axis_of, broadcast_along, require_dtype, shape_text, tensor

#: Converters of a scale or zero point argument: numbers become constants, expressions are
#: unchanged.
SCALE: Final = number(lambda _: "float32")
ZERO: Final = number(lambda _: "int32")
_FLOATS: Final = frozenset({"float16", "float32", "float64"})
#: Argument names of the scale and zero point of the input (FROM) and of the output (ONTO).
FROM: Final = ("input_scale", "input_zero_point")
ONTO: Final = ("output_scale", "output_zero_point")
#: Largest depth of nested calls through which `known` searches for constants.
_DEPTH: Final = 16


def scales(*names: str) -> tuple[Arg, ...]:
    """Return argument definitions for scales and zero points; a name ends with "scale" or
    "zero_point".
    """
    types = {"scale": ("Expr | float", SCALE), "point": ("Expr | int", ZERO)}
    kinds = (types[name.rpartition("_")[2]] for name in names)
    return tuple(Arg(name, type=kind, takes=takes) for name, (kind, takes) in zip(names, kinds, strict=True))


# --- type rules


def quantized_type(ty: Type, what: str = "data", bits: int = 16) -> TensorType:
    """Return `ty` as a tensor type; raise AotcError (code "dtype") unless it has integers of at
    most `bits` bits.

    what  name of the tensor in the message
    """
    found = tensor(ty, what)
    fits = found.dtype.is_integer and found.dtype.bits <= bits
    require("dtype", fits, lambda: f"{what} must be integers of at most {bits} bits, got {found}")
    return found


def _check_extent(found: TensorType, data: TensorType, axis: int | None, what: str) -> None:
    if found.rank == 0 or found.shape == (1,):
        return
    if axis is None or found.rank != 1:
        raise AotcError("qnn.axis", f"{what} must be one value, got {shape_text(found.shape)}")
    extent = data.shape[axis_of(axis, data.rank)]
    fits = may_equal(found.shape[0], extent)
    require("qnn.axis", fits, f"{what} has {found.shape[0]} values, but axis {axis} of {data} has {extent}")


def check_pairs(types: Types, data: TensorType, axis: int | None, *names: str) -> None:
    """Raise AotcError unless `types` are valid types of scales and zero points with the given
    names.

    Scales must be floats, zero points integers. Each must be one value or, if `axis` is given, a
    vector with one value for each element along that axis of `data`.
    """
    for ty, name in zip(types, names, strict=True):
        found = tensor(ty, name)
        kind, fits = "an integer", found.dtype.is_integer and found.dtype.bits <= 32
        if name.endswith("scale"):
            kind, fits = "a float", found.dtype in _FLOATS
        require("qnn.dtype", fits, f"{name} must be {kind}, got {found}")
        _check_extent(found, data, axis, name)


def result_of(data: TensorType, dtype: str) -> TensorType:
    """Return the type of integers `dtype` with the shape of `data`.

    Raise AotcError (code "dtype") unless `dtype` is an integer type of at most 32 bits.
    """
    made = DType(dtype)
    require_dtype(made, made.is_integer and made.bits <= 32)
    return TensorType(data.shape, made)


# --- constants


def known(expr: Expr, depth: int = _DEPTH) -> Array | None:
    """Return the value of an expression that consists of constants and calls; None if it depends on
    a variable.
    """
    if isinstance(expr, Constant):
        return expr.data
    if not isinstance(expr, Call) or not isinstance(expr.op, OpDef) or depth == 0:
        return None
    args = [known(a, depth - 1) for a in expr.args]
    found = [Constant(a) for a in args if a is not None]
    if not args or len(found) != len(args):
        return None
    value = evaluate_call(call(expr.op, found, expr.attrs))
    return value.data if isinstance(value, Constant) else None


def settled(expr: Expr) -> Expr:
    """Return an expression folded to one constant if its value is known, else the expression
    itself.
    """
    value = known(expr)
    return expr if value is None or isinstance(expr, Constant) else Constant(value)


def made(op: OpDef, *args: Any, **attributes: Any) -> Expr:
    """Return a call of `op`, folded to a constant if all arguments are constants."""
    node = op(*args, **attributes)
    value = evaluate_call(node) if all(isinstance(a, Constant) for a in node.args) else None
    return node if value is None else value


def checked_scales(what: Iterable[tuple[str, Expr]]) -> None:
    """Raise AotcError (code "qnn.scale") if a constant scale is not positive and finite.

    what  pairs of the scale's name and its expression
    """
    for name, expr in what:
        value = known(expr)
        if value is None:
            continue
        wide = value.astype(np.float64).reshape(-1)
        wrong = ~(np.isfinite(wide) & (wide > 0))
        if wrong.any():
            where = f"[{int(wrong.argmax())}]" if wide.size > 1 else ""
            raise AotcError("qnn.scale", f"{name}{where} is {wide[wrong][0]:g}: not positive and finite")


def checked_zero(name: str, expr: Expr, dtype: DType) -> None:
    """Raise AotcError (code "qnn.zero-point") if a constant zero point is outside of the range of
    `dtype`.
    """
    value = known(expr)
    if value is None:
        return
    wide = value.astype(np.int64).reshape(-1)
    wrong = (wide < int(dtype.min)) | (wide > int(dtype.max))
    text = f"{name} is outside of {dtype}, which holds {int(dtype.min)} to {int(dtype.max)}"
    require("qnn.zero-point", not wrong.any(), lambda: f"{text}: {wide[wrong][0]}")


def checked(dtype: DType, names: Iterable[str], *values: Expr) -> None:
    """Raise AotcError for constant scales or zero points, listed by name, that are invalid for
    integers of `dtype`.
    """
    for name, value in zip(names, values, strict=True):
        if name.endswith("scale"):
            checked_scales([(name, value)])
        else:
            checked_zero(name, value, dtype)


def is_zero(expr: Expr) -> bool:
    """Return True if a zero point is a constant that is 0 in all elements."""
    value = known(expr)
    return value is not None and not value.any()


def bounds(dtype: DType, work: DType) -> tuple[int, int]:
    """Return the smallest and the largest integer of `dtype` that the type `work` represents
    exactly.
    """
    low, high = int(dtype.min), int(dtype.max)
    digits = {16: 11, 32: 24, 64: 53}[work.bits] if work.is_float else 64
    spare = max(high.bit_length() - digits, 0)
    return low, high >> spare << spare


# --- expressions


add, sub, mul, div = (
    partial(made, op)
    for op in (
        binary_elementwise.add,
        binary_elementwise.subtract,
        binary_elementwise.multiply,
        binary_elementwise.divide,
    )
)


def rank_of(x: Expr) -> int:
    """Return the number of axes of a tensor expression."""
    return tensor_type_of(x).rank


def size_of(x: Expr, axis: int) -> int:
    """Return the extent of an axis; raise AotcError (code "qnn.axis") if it is not known at compile
    time.
    """
    ty = tensor_type_of(x)
    size = ty.shape[axis]
    if isinstance(size, int):
        return size
    text = f"axis {axis_of(axis, ty.rank)} of {ty} has a size that is not known at compile time"
    raise AotcError("qnn.axis", text, hint="fix the size of that axis: quantized operators compute with it")


def is_vector(x: Expr) -> bool:
    """Return True if a scale or zero point has one value for each element of an axis instead of one
    value.
    """
    return tensor_type_of(x).shape not in ((), (1,))


def dtype_of(x: Expr) -> DType:
    """Return the data type of a tensor expression."""
    return tensor_type_of(x).dtype


def constant(value: Any, dtype: str) -> Constant:
    """Return a constant with a value and a data type."""
    return Constant(np.asarray(value).astype(DType(dtype).numpy))


def converted(x: Expr, dtype: str) -> Expr:
    """Return `x` cast to `dtype`."""
    return x if dtype_of(x) == dtype else made(casts.cast, x, dtype=dtype)


def laid(x: Expr, axis: int | None, rank: int, dtype: str = "") -> Expr:
    """Return a scale or zero point as `dtype`, reshaped to broadcast along `axis` of a tensor with
    `rank` axes.
    """
    ty = tensor_type_of(x)
    x = converted(settled(x), dtype or ty.dtype)
    if ty.rank == 0:
        return x
    if ty.shape == (1,) or axis is None:
        return made(shape.reshape, x, newshape=())
    after = rank - axis % rank - 1
    return made(shape.expand_dims, x, axis=1, num_newaxis=after) if after else x


def centered(x: Expr, zero: Expr, axis: int | None = None) -> Expr:
    """Return integers minus their zero point, as int32."""
    wide = converted(x, "int32")
    if is_zero(zero):
        return wide
    return sub(wide, laid(zero, axis, rank_of(x), "int32"))


def saturated(y: Expr, zero: Expr, axis: int | None, dtype: DType, number: bool = True) -> Expr:
    """Return whole numbers `y` plus a zero point, saturated to the range of `dtype` and cast to it.

    y       floats, or integers wide enough for the sum
    number  True if no element is NaN; otherwise NaN becomes the smallest value
    """
    work = tensor_type_of(y)
    low, high = bounds(dtype, work.dtype)
    value = known(zero)
    if not number:
        y = add(y, laid(zero, axis, work.rank, work.dtype))
        least = constant(low, work.dtype)
        y = made(binary_elementwise.where, made(binary_elementwise.greater, y, least), y, least)
        y = made(binary_elementwise.minimum, y, constant(high, work.dtype))
    elif value is not None and value.size == 1 and work.dtype.is_float:
        offset = float(value.reshape(()))
        y = made(casts.clip, y, a_min=low - offset, a_max=high - offset)
        y = y if offset == 0 else add(y, constant(offset, work.dtype))
    else:
        if not is_zero(zero):
            y = add(y, laid(zero, axis, work.rank, work.dtype))
        y = made(casts.clip, y, a_min=low, a_max=high)
    return made(casts.cast, y, dtype=str(dtype))


def nearest(y: Expr, zero: Expr, axis: int | None, dtype: DType, number: bool = True) -> Expr:
    """Return floats rounded to nearest even plus a zero point, saturated to `dtype`; `number` as in
    `saturated`.
    """
    work = tensor_type_of(y)
    if dtype in defined_rounding.NEAREST and work.dtype == "float32":
        return made(defined_rounding.NEAREST[dtype], y, laid(zero, axis, work.rank, "float32"))
    return saturated(made(elementwise_unary.round, y), zero, axis, dtype, number)


# --- the same on arrays


def spread(value: Array, axis: int | None, rank: int, dtype: Any) -> Array:
    """Return an array with a scale or zero point, reshaped to broadcast along `axis` of an array
    with `rank` axes.
    """
    value = np.asarray(value).astype(dtype)
    single = value.size == 1 or axis is None
    return value.reshape(()) if single else broadcast_along(value, axis or 0, rank)


def offsets(x: Array, zero: Array, axis: int | None = None, dtype: Any = np.int32) -> Array:
    """Return an integer array minus its zero point as `dtype`, with wraparound."""
    return np.asarray(x.astype(dtype) - spread(zero, axis, x.ndim, dtype))


def stored(y: Array, zero: Array, axis: int | None, dtype: DType) -> Array:
    """Return an array of whole numbers plus a zero point, saturated to the range of `dtype` and
    cast to it.
    """
    total = y + spread(zero, axis, y.ndim, y.dtype)
    low, high = bounds(dtype, DType.of(y))
    least, most = (y.dtype.type(v) for v in (low, high))
    # NaN becomes the least value
    return np.asarray(np.minimum(np.where(total > least, total, least), most).astype(dtype.numpy))


def dequantized(x: Array, scale: Array, zero: Array, axis: int | None = None, dtype: Any = np.float32) -> Array:
    """Return the real numbers that an integer array represents: (x - zero) * scale."""
    return np.asarray(offsets(x, zero, axis).astype(dtype) * spread(scale, axis, x.ndim, dtype))


def quantized(x: Array, scale: Array, zero: Array, dtype: DType, axis: int | None = None) -> Array:
    """Return real numbers quantized as `dtype`: x / scale rounded to nearest even, plus the zero
    point, saturated.
    """
    work = scale.dtype
    quotient = x.astype(work) / spread(scale, axis, x.ndim, work)
    return stored(np.rint(quotient), zero, axis, dtype)


def facets(pattern: OpPattern, sums: bool = False) -> dict[str, Any]:
    """Return OpDef fields shared by quantized operators; precision conversions do not affect their
    float32 scales.

    pattern  fusion pattern of the operator
    sums     True if the operator sums products
    """
    derived = pattern is OpPattern.OUT_ELEMWISE_FUSABLE and not sums
    return {"pattern": pattern, "precision": None if derived else Precision.NEVER}


def with_constants(attributes: Attrs, *values: Array | tuple[Array, ...], given: int = 1) -> Sample:
    """Return a sample with an exact result in which all arguments except the first `given` are
    constants.
    """
    known = tuple(range(given, len(values)))
    return Sample(args=values, attrs=attributes, accuracy=Accuracy.EXACT, known=known)
