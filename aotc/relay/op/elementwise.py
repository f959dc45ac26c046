# SPDX-License-Identifier: Apache-2.0
"""Operators of one tensor, element by element.  A new one is one row.

exp(x)                                 # Call(exp, [x]), typed like x
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from aotc.ir.op import Precision, Quantised
from aotc.relay.op.opdef import Array, Scalar
from aotc.relay.op.rows import ScalarFn, intrinsic, unary, wide, wide_numpy
from aotc.relay.op.samples import ANY, BITS, BOOL, FLOAT, NUMBER, WITH_ZERO
from aotc.tir import call, const, maximum, minimum, select


def _for_floats(name: str) -> ScalarFn:
    """An intrinsic that leaves integers as they are."""
    return lambda x: call(name, x) if x.dtype.is_float else x


def _keep_integers(fn: Any) -> Any:
    return lambda x: x if np.issubdtype(x.dtype, np.integer) else fn(x)


def _abs(x: Scalar) -> Scalar:
    return call("abs", x) if x.dtype.is_signed else x


def _sign(x: Scalar) -> Scalar:
    if not x.dtype.is_signed:
        return minimum(x, 1)
    negative = select(x < 0, const(-1, x.dtype), select(x.equal(0), const(0, x.dtype), x))  # NaN stays
    return select(x > 0, const(1, x.dtype), negative)


def _relu(x: Scalar) -> Scalar:
    return maximum(x, 0) if x.dtype.is_signed else x


def logistic(x: Scalar) -> Scalar:
    """The sigmoid function of one element."""
    # far below zero it underflows gradually, as it should; 1 / (1 + exp(-x)) would jump to zero where exp overflows
    e = call("exp", minimum(x, math.log(x.dtype.max) - 1.0))
    return e / (1.0 + e)


def _is_finite(x: Scalar) -> Scalar:
    return ~(call("isnan", x) | call("isinf", x))


def _erf(x: Array) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


def _identity(x: Any) -> Any:
    return x


# abs, round: Relay's names, wanted as attributes of this module
abs = unary("abs", np.abs, _abs, NUMBER, exact=True)
ceil = unary("ceil", _keep_integers(np.ceil), _for_floats("ceil"), NUMBER, exact=True)
floor = unary("floor", _keep_integers(np.floor), _for_floats("floor"), NUMBER, exact=True)
trunc = unary("trunc", _keep_integers(np.trunc), _for_floats("trunc"), NUMBER, exact=True)
round = unary("round", _keep_integers(np.rint), _for_floats("round_even"), NUMBER, exact=True)
sign = unary("sign", np.sign, _sign, WITH_ZERO, exact=True)
negative = unary("negative", np.negative, lambda x: -x, NUMBER, exact=True)
relu = unary(
    "nn.relu", lambda x: np.maximum(x, x.dtype.type(0)), _relu, WITH_ZERO, exact=True, quantised=Quantised.PASS
)
exp = unary("exp", np.exp, intrinsic("exp"), FLOAT, precision=Precision.NEVER)
expm1 = unary("expm1", np.expm1, intrinsic("expm1"), FLOAT, precision=Precision.NEVER)
log = unary("log", np.log, intrinsic("log"), FLOAT, precision=Precision.NEVER)
log2 = unary("log2", np.log2, intrinsic("log2"), FLOAT, precision=Precision.NEVER)
log10 = unary("log10", np.log10, intrinsic("log10"), FLOAT, precision=Precision.NEVER)
log1p = unary("log1p", np.log1p, intrinsic("log1p"), FLOAT, precision=Precision.NEVER)
sqrt = unary("sqrt", np.sqrt, intrinsic("sqrt"), FLOAT)
rsqrt = unary("rsqrt", wide_numpy(lambda x: 1 / np.sqrt(x)), intrinsic("rsqrt"), FLOAT, precision=Precision.NEVER)
sin = unary("sin", np.sin, intrinsic("sin"), FLOAT)
cos = unary("cos", np.cos, intrinsic("cos"), FLOAT)
tan = unary("tan", np.tan, intrinsic("tan"), FLOAT, precision=Precision.NEVER)
asin = unary("asin", np.arcsin, intrinsic("asin"), FLOAT, precision=Precision.NEVER)
acos = unary("acos", np.arccos, intrinsic("acos"), FLOAT, precision=Precision.NEVER)
atan = unary("atan", np.arctan, intrinsic("atan"), FLOAT)
sinh = unary("sinh", np.sinh, intrinsic("sinh"), FLOAT, precision=Precision.NEVER)
cosh = unary("cosh", np.cosh, intrinsic("cosh"), FLOAT, precision=Precision.NEVER)
tanh = unary("tanh", np.tanh, intrinsic("tanh"), FLOAT)
asinh = unary("asinh", np.arcsinh, intrinsic("asinh"), FLOAT, precision=Precision.NEVER)
acosh = unary("acosh", np.arccosh, intrinsic("acosh"), FLOAT, precision=Precision.NEVER)
atanh = unary("atanh", np.arctanh, intrinsic("atanh"), FLOAT, precision=Precision.NEVER)
erf = unary("erf", wide_numpy(_erf), intrinsic("erf"), FLOAT, precision=Precision.NEVER)
sigmoid = unary("sigmoid", wide_numpy(lambda x: 1 / (1 + np.exp(-x))), wide(logistic), FLOAT)
logical_not = unary("logical_not", np.logical_not, lambda x: ~x, BOOL)
bitwise_not = unary("bitwise_not", np.invert, lambda x: ~x, BITS)
isnan = unary("isnan", np.isnan, intrinsic("isnan"), FLOAT, result="bool")
isinf = unary("isinf", np.isinf, intrinsic("isinf"), FLOAT, result="bool")
isfinite = unary("isfinite", np.isfinite, _is_finite, FLOAT, result="bool")
copy = unary("copy", _identity, _identity, ANY, exact=True, quantised=Quantised.PASS)
