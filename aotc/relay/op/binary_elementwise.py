# SPDX-License-Identifier: Apache-2.0
"""Broadcasting operators of two tensors, one definition each, and `where`.

add(x, y)                              # shapes broadcast as in numpy; data types must match

Integers wrap around. Integer division and remainder by zero give 0. `divide` truncates integer
quotients, as C does.
"""

from functools import partial
from operator import truediv
from typing import Any

import numpy as np

from aotc.ir import NO_ATTRS, DType, OpPattern, Precision, Quantized, TensorType, Type, Types, args, require
from aotc.relay.op.elementwise_table import NumpyFn, binary, broadcast, choose, either, elementwise, intrinsic, wide
from aotc.relay.op.opdef import Array, OpDef, Samples, Scalar
from aotc.relay.op.sample_arguments import (
    ANY,
    BITS,
    BOOL,
    FLOAT,
    INTEGER,
    NUMBER,
    Kind,
    exact,
    random_array,
    special_values,
)
from aotc.relay.op.type_rules import broadcast_rule, pointwise, tensor
from aotc.tir import binary as scalar
from aotc.tir import const, select


def _by_kind(floats: NumpyFn, integers: NumpyFn) -> Any:
    """Return a function that applies `floats` to floats and `integers` to integers, scalar
    expressions or arrays.
    """
    return lambda a, b: (floats if DType(str(a.dtype)).is_float else integers)(a, b)


def _safe(op: str, by_minus_one: NumpyFn) -> NumpyFn:
    """Return integer division `op` without undefined cases: division by zero gives 0, minimum / -1
    wraps.
    """

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


_floor, _trunc, _fmod = map(intrinsic, ("floor", "trunc", "fmod"))
_nonzero = either(lambda x: x.not_equal(0), lambda x: x != 0)
_floored = wide(lambda x, y: _floor(x / y))
_truncated = wide(lambda x, y: _trunc(x / y))


def _float_mod(a: Any, b: Any) -> Any:
    rest = _fmod(a, b)
    return choose(_nonzero(rest) & ((rest < 0) ^ (b < 0)), rest + b, rest)


_TRUNC_MOD = _by_kind(_fmod, _trunc_rem)


def _numpy_power(a: Array, b: Array) -> Any:
    """Return integer powers with wraparound; a negative exponent gives 0 except for the bases 1 and
    -1.
    """
    unit = np.where(b % 2 == 0, a * a, a)
    inverse = np.where((a == 1) | (a == np.array(-1).astype(a.dtype)), unit, 0)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


def _numpy_shift(fn: Any) -> Any:
    """Return a shift function in which a shift by the bit width or more gives 0, or -1 for negative
    right shifts.
    """

    def apply(a: Array, b: Array) -> Any:
        inside = (b >= 0) & (b < a.dtype.itemsize * 8)
        fill = np.where(a < 0, -1, 0) if fn is np.right_shift else 0
        return np.where(inside, fn(a, np.where(inside, b, 0)), fill).astype(a.dtype)

    return apply


def _plain(name: str, operation: str, kind: Kind, **facets: Any) -> OpDef:
    """Return an OpDef for an operator with the same name in numpy, computed by a tir `operation`."""
    return binary(name, getattr(np, name), partial(scalar, operation), kind, **facets)


def _compared(name: str, operation: str, kind: Kind = NUMBER) -> OpDef:
    return _plain(name, operation, kind, result="bool")


add = _plain("add", "add", NUMBER, quantized=Quantized.RESCALE)
subtract = _plain("subtract", "sub", NUMBER, quantized=Quantized.RESCALE)
multiply = _plain("multiply", "mul", NUMBER, quantized=Quantized.RESCALE)
divide = binary("divide", _by_kind(truediv, _numpy_trunc_divide), _by_kind(truediv, _trunc_div), NUMBER)
floor_divide = binary("floor_divide", _by_kind(_floored, np.floor_divide), _by_kind(_floored, _floor_div), NUMBER)
trunc_divide = binary(
    "trunc_divide", _by_kind(_truncated, _numpy_trunc_divide), _by_kind(_truncated, _trunc_div), NUMBER
)
mod = binary("mod", np.fmod, _TRUNC_MOD, NUMBER)
trunc_mod = binary("trunc_mod", np.fmod, _TRUNC_MOD, NUMBER)
floor_mod = binary("floor_mod", _by_kind(wide(_float_mod), np.mod), _by_kind(wide(_float_mod), _floor_rem), NUMBER)
power = binary("power", _by_kind(np.power, _numpy_power), intrinsic("pow"), NUMBER, precision=Precision.NEVER)
atan2 = binary("atan2", np.arctan2, intrinsic("atan2"), FLOAT)
maximum = _plain("maximum", "max", NUMBER, exact=True, quantized=Quantized.PASS)
minimum = _plain("minimum", "min", NUMBER, exact=True, quantized=Quantized.PASS)
equal, not_equal = _compared("equal", "eq", ANY), _compared("not_equal", "ne", ANY)
less, less_equal = _compared("less", "lt"), _compared("less_equal", "le")
greater, greater_equal = _compared("greater", "gt"), _compared("greater_equal", "ge")
logical_and, logical_or, logical_xor = (_plain(f"logical_{op}", op, BOOL) for op in ("and", "or", "xor"))
bitwise_and, bitwise_or, bitwise_xor = (_plain(f"bitwise_{op}", op, BITS) for op in ("and", "or", "xor"))
left_shift = binary("left_shift", _numpy_shift(np.left_shift), partial(scalar, "shl"), INTEGER)
right_shift = binary("right_shift", _numpy_shift(np.right_shift), partial(scalar, "shr"), INTEGER)


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
    quantized=Quantized.PASS,
    samples=_where_samples,
)
