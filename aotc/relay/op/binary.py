# SPDX-License-Identifier: Apache-2.0
"""Broadcasting operators of two tensors (and `where`).  A new one is one row.

add(x, y)                              # shapes broadcast as in numpy; data types must match

Integers wrap.  Division and remainder by zero give 0; `divide` truncates integers, as C does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.ir import NO_ATTRS, DType, OpPattern, Precision, Quantised, TensorType, Type, Types, args, require
from aotc.relay.op.opdef import Array, OpDef, Samples, Scalar
from aotc.relay.op.rows import NumpyFn, ScalarFn, binary, broadcast, elementwise, intrinsic, wide, wide_numpy
from aotc.relay.op.rules import broadcast_rule, pointwise, tensor
from aotc.relay.op.samples import ANY, BITS, BOOL, FLOAT, INTEGER, NUMBER, exact, random_array, special_values
from aotc.tir import binary as scalar
from aotc.tir import call, const, select


def _by_kind(floats: NumpyFn, integers: NumpyFn) -> Any:
    """`floats` of floats and `integers` of integers, be they scalar expressions or arrays."""
    return lambda a, b: (floats if DType(str(a.dtype)).is_float else integers)(a, b)


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


def _numpy_trunc_divide(a: Array, b: Array) -> Any:
    quotient = np.floor_divide(a, b)
    inexact = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    return quotient + inexact.astype(quotient.dtype)


def _rounded(rounding: str) -> ScalarFn:
    return wide(lambda x, y: call(rounding, x / y))


def _float_mod(a: Scalar, b: Scalar) -> Scalar:
    rest = call("fmod", a, b)
    return select(rest.not_equal(0) & ((rest < 0) ^ (b < 0)), rest + b, rest)


def _numpy_float_mod(a: Array, b: Array) -> Any:
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


_NUMPY_FLOOR = _by_kind(wide_numpy(lambda x, y: np.floor(x / y)), np.floor_divide)
_NUMPY_TRUNC = _by_kind(wide_numpy(lambda x, y: np.trunc(x / y)), _numpy_trunc_divide)
_TRUNC_MOD = _by_kind(intrinsic("fmod"), _trunc_rem)


def _numpy_power(a: Array, b: Array) -> Any:
    """Of integers, which wrap; a negative power is 0, but for the bases 1 and -1."""
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
divide = binary("divide", _by_kind(np.true_divide, _numpy_trunc_divide), _by_kind(_op("div"), _trunc_div), NUMBER)
floor_divide = binary("floor_divide", _NUMPY_FLOOR, _by_kind(_rounded("floor"), _floor_div), NUMBER)
trunc_divide = binary("trunc_divide", _NUMPY_TRUNC, _by_kind(_rounded("trunc"), _trunc_div), NUMBER)
mod = binary("mod", np.fmod, _TRUNC_MOD, NUMBER)
trunc_mod = binary("trunc_mod", np.fmod, _TRUNC_MOD, NUMBER)
floor_mod = binary(
    "floor_mod", wide_numpy(_by_kind(_numpy_float_mod, np.mod)), _by_kind(wide(_float_mod), _floor_rem), NUMBER
)
power = binary("power", _by_kind(np.power, _numpy_power), intrinsic("pow"), NUMBER, precision=Precision.NEVER)
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
    chosen = broadcast_rule()(None, (x, y))
    return broadcast_rule()(None, (TensorType(condition.shape, x.dtype), chosen))


def _where_samples() -> Samples:
    condition = np.array([[True], [False]])
    for dtype in ANY.examples:
        values = special_values(dtype)
        yield exact(NO_ATTRS, condition, values, values[::-1].copy())
    for c, x, y in (((), (), ()), ((3,), (2, 1), ()), ((2, 3), (2, 3), (2, 3)), ((1, 4), (0, 1), (4,))):
        yield exact(NO_ATTRS, random_array(c, "bool"), random_array(x, seed=1), random_array(y, seed=2))


where = OpDef(
    name="where",
    doc="x where the condition holds, else y; all three broadcast.",
    args=args("condition", "x", "y"),
    infer=_infer_where,
    reference=elementwise(np.where),
    pattern=OpPattern.BROADCAST,
    axes=pointwise,
    element=broadcast(select),
    quantised=Quantised.PASS,
    samples=_where_samples,
)
