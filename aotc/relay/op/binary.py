# SPDX-License-Identifier: Apache-2.0
"""Broadcasting operators of two tensors (and `where`).  A new one is one row.

add(x, y)                              # shapes broadcast as in numpy; data types must match

Integers wrap.  Division and remainder by zero give 0; `divide` truncates integers, as C does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from aotc.ir import NO_ATTRS, OpPattern, Precision, Quantised, Type, Types, args, require
from aotc.relay.op.opdef import Array, OpDef, Sample, Scalar
from aotc.relay.op.rows import ScalarFn, binary, broadcast_compute, intrinsic, quiet, wide, wide_numpy
from aotc.relay.op.rules import broadcast_rule, pointwise, tensor
from aotc.relay.op.samples import ANY, BITS, BOOL, FLOAT, INTEGER, NUMBER, exact, random_array, special_values
from aotc.tir import binary as scalar
from aotc.tir import call, const, select


def _is_integer(x: Array) -> bool:
    return np.issubdtype(x.dtype, np.integer)


def _safe(op: str, by_minus_one: ScalarFn) -> ScalarFn:
    """Integer division `op` that is defined everywhere: by zero it gives 0, and the least value by -1 wraps."""

    def apply(a: Scalar, b: Scalar) -> Scalar:
        result = scalar(op, a, b)
        if b.dtype.is_signed:
            result = select(b.equal(-1), by_minus_one(a), result)
        return select(b.equal(0), const(0, b.dtype), result)

    return apply


def _zero(a: Scalar) -> Scalar:
    return const(0, a.dtype)


_trunc_div = _safe("truncdiv", lambda a: -a)
_floor_div = _safe("floordiv", lambda a: -a)
_trunc_rem = _safe("truncmod", _zero)
_floor_rem = _safe("floormod", _zero)


def _divide(a: Scalar, b: Scalar) -> Scalar:
    return a / b if a.dtype.is_float else _trunc_div(a, b)


def _numpy_divide(a: Array, b: Array) -> Any:
    return _numpy_trunc_divide(a, b) if _is_integer(a) else np.true_divide(a, b)


def _floor_divide(a: Scalar, b: Scalar) -> Scalar:
    return wide(lambda x, y: call("floor", x / y))(a, b) if a.dtype.is_float else _floor_div(a, b)


def _numpy_floor_divide(a: Array, b: Array) -> Any:
    return np.floor_divide(a, b) if _is_integer(a) else wide_numpy(lambda x, y: np.floor(x / y))(a, b)


def _trunc_divide(a: Scalar, b: Scalar) -> Scalar:
    return wide(lambda x, y: call("trunc", x / y))(a, b) if a.dtype.is_float else _trunc_div(a, b)


def _numpy_trunc_divide(a: Array, b: Array) -> Any:
    if not _is_integer(a):
        return wide_numpy(lambda x, y: np.trunc(x / y))(a, b)
    quotient = np.floor_divide(a, b)
    inexact = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    return quotient + inexact.astype(quotient.dtype)


def _trunc_mod(a: Scalar, b: Scalar) -> Scalar:
    return call("fmod", a, b) if a.dtype.is_float else _trunc_rem(a, b)


def _float_mod(a: Scalar, b: Scalar) -> Scalar:
    rest = call("fmod", a, b)
    return select(rest.not_equal(0) & ((rest < 0) ^ (b < 0)), rest + b, rest)


def _floor_mod(a: Scalar, b: Scalar) -> Scalar:
    return wide(_float_mod)(a, b) if a.dtype.is_float else _floor_rem(a, b)


def _numpy_floor_mod(a: Array, b: Array) -> Any:
    if _is_integer(a):
        return np.mod(a, b)
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _numpy_power(a: Array, b: Array) -> Any:
    """Integers wrap; a negative power of an integer is 0, but for the bases 1 and -1."""
    if not _is_integer(a):
        return np.power(a, b)
    unit = np.where(b % 2 == 0, a * a, a)
    inverse = np.where((a == 1) | (a == np.array(-1).astype(a.dtype)), unit, 0)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


def _numpy_shift(fn: Any) -> Any:
    """A shift by the width or more leaves nothing but the sign."""

    def apply(a: Array, b: Array) -> Any:
        inside = (b >= 0) & (b < a.dtype.itemsize * 8)
        fill = np.where(a < 0, -1, 0) if fn is np.right_shift else 0
        return np.where(inside, fn(a, np.where(inside, b, 0)), fill).astype(a.dtype)

    return apply


def _op(name: str) -> ScalarFn:
    return lambda a, b: scalar(name, a, b)


add = binary("add", np.add, _op("add"), NUMBER, quantised=Quantised.RESCALE)
subtract = binary("subtract", np.subtract, _op("sub"), NUMBER, quantised=Quantised.RESCALE)
multiply = binary("multiply", np.multiply, _op("mul"), NUMBER, quantised=Quantised.RESCALE)
divide = binary("divide", _numpy_divide, _divide, NUMBER)
floor_divide = binary("floor_divide", _numpy_floor_divide, _floor_divide, NUMBER)
trunc_divide = binary("trunc_divide", _numpy_trunc_divide, _trunc_divide, NUMBER)
mod = binary("mod", np.fmod, _trunc_mod, NUMBER)
trunc_mod = binary("trunc_mod", np.fmod, _trunc_mod, NUMBER)
floor_mod = binary("floor_mod", wide_numpy(_numpy_floor_mod), _floor_mod, NUMBER)
power = binary("power", _numpy_power, intrinsic("pow"), NUMBER, precision=Precision.NEVER)
atan2 = binary("atan2", np.arctan2, intrinsic("atan2"), FLOAT)
maximum = binary("maximum", np.maximum, _op("max"), NUMBER, exact=True, quantised=Quantised.PASS)
minimum = binary("minimum", np.minimum, _op("min"), NUMBER, exact=True, quantised=Quantised.PASS)
equal = binary("equal", np.equal, _op("eq"), ANY, result="bool")
not_equal = binary("not_equal", np.not_equal, _op("ne"), ANY, result="bool")
less = binary("less", np.less, _op("lt"), NUMBER, result="bool")
less_equal = binary("less_equal", np.less_equal, _op("le"), NUMBER, result="bool")
greater = binary("greater", np.greater, _op("gt"), NUMBER, result="bool")
greater_equal = binary("greater_equal", np.greater_equal, _op("ge"), NUMBER, result="bool")
logical_and = binary("logical_and", np.logical_and, _op("and"), BOOL)
logical_or = binary("logical_or", np.logical_or, _op("or"), BOOL)
logical_xor = binary("logical_xor", np.logical_xor, _op("xor"), BOOL)
bitwise_and = binary("bitwise_and", np.bitwise_and, _op("and"), BITS)
bitwise_or = binary("bitwise_or", np.bitwise_or, _op("or"), BITS)
bitwise_xor = binary("bitwise_xor", np.bitwise_xor, _op("xor"), BITS)
left_shift = binary("left_shift", _numpy_shift(np.left_shift), _op("shl"), INTEGER)
right_shift = binary("right_shift", _numpy_shift(np.right_shift), _op("shr"), INTEGER)


# --- where


def _infer_where(_: Any, types: Types) -> Type:
    condition, x, y = (tensor(t) for t in types)
    require("where.condition", condition.dtype.is_bool, lambda: f"the condition must be bool, got {condition.dtype}")
    chosen = tensor(broadcast_rule()(None, (x, y)))
    shape = tensor(broadcast_rule()(None, (type(condition)(condition.shape, x.dtype), chosen))).shape
    return type(chosen)(shape, chosen.dtype)


def _where_samples() -> Iterator[Sample]:
    condition = np.array([[True], [False]])
    for dtype in ANY.examples:
        values = special_values(dtype)
        yield exact(NO_ATTRS, condition, values, values[::-1].copy())
    for c, x, y in (((), (), ()), ((3,), (2, 1), ()), ((2, 3), (2, 3), (2, 3)), ((1, 4), (0, 1), (4,))):
        args = (random_array(c, "int8") > 0, random_array(x, "float32", 1), random_array(y, "float32", 2))
        yield exact(NO_ATTRS, *args)


where = OpDef(
    name="where",
    doc="x where the condition holds, else y; all three broadcast.",
    args=args("condition", "x", "y"),
    infer=_infer_where,
    reference=quiet(np.where),
    pattern=OpPattern.BROADCAST,
    axes=pointwise,
    compute=lambda _, args: broadcast_compute(select, args, "where"),
    quantised=Quantised.PASS,
    samples=_where_samples,
)
