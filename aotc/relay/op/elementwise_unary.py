# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators of one tensor, one definition each.

exp(x)                                 # Call(exp, [x]), with the type of x
fast_exp(x)                            # exp of x clamped to [-87, 88]: never infinite
fast_tanh(x)                           # a rational function, within 1e-6
fast_erf(x)                            # a rational function, within 2e-6

The approximations are odd rational functions. Their coefficients are least-squares fits, weighted
for relative error, at Chebyshev points of [-9, 9] (tanh) and [-4, 4] (erf); both functions are 1 in
float32 above these ranges. For float64 the exact functions are used.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import DType, Precision, Quantized
from aotc.relay.op.elementwise_table import NumpyFn, either, greater, intrinsic, lesser, unary, wide
from aotc.relay.op.operator_definition import ANY, BITS, BOOL, FLOAT, NUMBER, WITH_ZERO, Array, OpDef, Scalar
from aotc.tir import call, const, maximum, minimum, select


def _rounded(name: str, fn: NumpyFn) -> OpDef:
    """Return an operator that rounds floats by `fn` and leaves integers unchanged."""

    def rounded(x: Any) -> Any:
        return fn(x) if DType(str(x.dtype)).is_float else x

    return unary(name, rounded, rounded, NUMBER, exact=True)


def _sign(x: Scalar) -> Scalar:
    if not x.dtype.is_signed:
        return minimum(x, 1)
    # NaN is preserved
    negative = select(x < 0, const(-1, x.dtype), select(x.equal(0), const(0, x.dtype), x))
    return select(x > 0, const(1, x.dtype), negative)


def _relu(x: Scalar) -> Scalar:
    return maximum(x, 0) if x.dtype.is_signed else x


def logistic(x: Scalar) -> Scalar:
    """Return the logistic function (sigmoid) of a scalar expression."""
    # underflows gradually for large negative x; 1 / (1 + exp(-x)) would jump to zero when exp
    # overflows
    e = call("exp", minimum(x, math.log(x.dtype.max) - 1.0))
    return e / (1.0 + e)


def _erf(x: Array) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


#: Functions that are well-conditioned, so that they may be computed in float16.
_STEADY: Final = ("sqrt", "sin", "cos", "atan", "tanh")


def _function(name: str) -> OpDef:
    """Return the float operator of an intrinsic; numpy's function has its name, or "arc" for "a" in
    inverse functions.
    """
    numpy = getattr(np, f"arc{name[1:]}" if name.startswith("a") else name)
    return unary(name, numpy, intrinsic(name), FLOAT, precision=None if name in _STEADY else Precision.NEVER)


def _identity(x: Any) -> Any:
    return x


# abs, round: Relay's names, wanted as attributes of this module
abs = unary("abs", np.abs, lambda x: call("abs", x) if x.dtype.is_signed else x, NUMBER, exact=True)
ceil, floor, trunc = (_rounded(name, intrinsic(name)) for name in ("ceil", "floor", "trunc"))
round = _rounded("round", either(intrinsic("round_even"), np.rint))
sign = unary("sign", np.sign, _sign, WITH_ZERO, exact=True)
negative = unary("negative", np.negative, lambda x: -x, NUMBER, exact=True)
relu = unary(
    "nn.relu", lambda x: np.maximum(x, x.dtype.type(0)), _relu, WITH_ZERO, exact=True, quantized=Quantized.PASS
)
exp, expm1, log, log2, log10, log1p, sqrt = map(_function, ["exp", "expm1", "log", "log2", "log10", "log1p", "sqrt"])
rsqrt = unary("rsqrt", wide(lambda x: 1 / np.sqrt(x)), intrinsic("rsqrt"), FLOAT, precision=Precision.NEVER)
sin, cos, tan, asin, acos, atan = map(_function, ["sin", "cos", "tan", "asin", "acos", "atan"])
sinh, cosh, tanh, asinh, acosh, atanh = map(_function, ["sinh", "cosh", "tanh", "asinh", "acosh", "atanh"])
erf = unary("erf", wide(_erf), intrinsic("erf"), FLOAT, precision=Precision.NEVER)
sigmoid = unary("sigmoid", wide(lambda x: 1 / (1 + np.exp(-x))), wide(logistic), FLOAT)
logical_not = unary("logical_not", np.logical_not, lambda x: ~x, BOOL)
bitwise_not = unary("bitwise_not", np.invert, lambda x: ~x, BITS)
isnan = unary("isnan", np.isnan, intrinsic("isnan"), FLOAT, result="bool")
isinf = unary("isinf", np.isinf, lambda x: call("abs", x) > x.dtype.max, FLOAT, result="bool")
isfinite = unary("isfinite", np.isfinite, lambda x: call("abs", x) <= x.dtype.max, FLOAT, result="bool")
copy = unary("copy", _identity, _identity, ANY, exact=True, quantized=Quantized.PASS)


# --- approximations for float32 and narrower


_FAST_TANH = (
    (0.999999977, 0.133774455, 0.00349138535, 2.05422158e-05, 1.32669164e-08),
    (1.0, 0.467107593, 0.0258608619, 0.000327885659, 7.73957678e-07),
)
_FAST_ERF = (
    (1.12837912, 0.378139052, 0.0744311068, 0.01075915, 0.00026820511, -1.49906306e-06),
    (1.0, 0.66844657, 0.188807655, 0.029363086, 0.00251662826),
)
_EXP = intrinsic("exp")
_EXP_RANGE = (-87.0, 88.0)
Fit = tuple[Sequence[float], Sequence[float]]


def _polynomial(coefficients: Sequence[float], t: Any) -> Any:
    """Return the sum of coefficients[k] * t^k by Horner's rule, for a scalar expression or an
    array.
    """
    total = t * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        total = total * t + c
    return total


def _ratio(fit: Fit, x: Any) -> Any:
    t = x * x
    return x * _polynomial(fit[0], t) / _polynomial(fit[1], t)


def _rational(name: str, exact: NumpyFn, limit: float, fit: Fit, precision: Precision | None = None) -> OpDef:
    of_others = either(intrinsic(name), exact)

    def fast(x: Any) -> Any:
        return _ratio(fit, greater(lesser(x, limit), -limit)) if x.dtype == "float32" else of_others(x)

    return unary(f"fast_{name}", wide(fast), wide(fast), FLOAT, precision=precision)


def clamped_exp(x: Any) -> Any:
    """Return exp of a scalar or array; float32 arguments are clamped so that the result is finite
    and normal.
    """
    low, high = _EXP_RANGE
    return _EXP(greater(lesser(x, high), low) if x.dtype == "float32" else x)


fast_exp = unary("fast_exp", wide(clamped_exp), wide(clamped_exp), FLOAT, precision=Precision.NEVER)
fast_tanh = _rational("tanh", np.tanh, 9.0, _FAST_TANH)
fast_erf = _rational("erf", lambda x: np.vectorize(math.erf, otypes=[np.float64])(x), 4.0, _FAST_ERF, Precision.NEVER)
