# SPDX-License-Identifier: Apache-2.0
"""Operators of one tensor, element by element.  A new one is one row.

exp(x)                                 # Call(exp, [x]), typed like x
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from aotc.relay.op.opdef import Array, OpDef
from aotc.relay.op.rows import (
    ANY,
    BITS,
    BOOL,
    FLOAT,
    NUMBER,
    WITH_ZERO,
    ScalarFn,
    Unary,
    intrinsic,
    rows_of,
    wide,
    wide_numpy,
)
from aotc.tir.expr import Expr as Scalar
from aotc.tir.expr import call, const, maximum, minimum, select


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
abs = Unary.row("abs", np.abs, _abs, NUMBER, exact=True)
ceil = Unary.row("ceil", _keep_integers(np.ceil), _for_floats("ceil"), NUMBER, exact=True)
floor = Unary.row("floor", _keep_integers(np.floor), _for_floats("floor"), NUMBER, exact=True)
trunc = Unary.row("trunc", _keep_integers(np.trunc), _for_floats("trunc"), NUMBER, exact=True)
round = Unary.row("round", _keep_integers(np.rint), _for_floats("round_even"), NUMBER, exact=True)
sign = Unary.row("sign", np.sign, _sign, WITH_ZERO, exact=True)
negative = Unary.row("negative", np.negative, lambda x: -x, NUMBER, exact=True)
relu = Unary.row("nn.relu", lambda x: np.maximum(x, x.dtype.type(0)), _relu, WITH_ZERO, exact=True)
exp = Unary.row("exp", np.exp, intrinsic("exp"), FLOAT)
expm1 = Unary.row("expm1", np.expm1, intrinsic("expm1"), FLOAT)
log = Unary.row("log", np.log, intrinsic("log"), FLOAT)
log2 = Unary.row("log2", np.log2, intrinsic("log2"), FLOAT)
log10 = Unary.row("log10", np.log10, intrinsic("log10"), FLOAT)
log1p = Unary.row("log1p", np.log1p, intrinsic("log1p"), FLOAT)
sqrt = Unary.row("sqrt", np.sqrt, intrinsic("sqrt"), FLOAT)
rsqrt = Unary.row("rsqrt", wide_numpy(lambda x: 1 / np.sqrt(x)), intrinsic("rsqrt"), FLOAT)
sin = Unary.row("sin", np.sin, intrinsic("sin"), FLOAT)
cos = Unary.row("cos", np.cos, intrinsic("cos"), FLOAT)
tan = Unary.row("tan", np.tan, intrinsic("tan"), FLOAT)
asin = Unary.row("asin", np.arcsin, intrinsic("asin"), FLOAT)
acos = Unary.row("acos", np.arccos, intrinsic("acos"), FLOAT)
atan = Unary.row("atan", np.arctan, intrinsic("atan"), FLOAT)
sinh = Unary.row("sinh", np.sinh, intrinsic("sinh"), FLOAT)
cosh = Unary.row("cosh", np.cosh, intrinsic("cosh"), FLOAT)
tanh = Unary.row("tanh", np.tanh, intrinsic("tanh"), FLOAT)
asinh = Unary.row("asinh", np.arcsinh, intrinsic("asinh"), FLOAT)
acosh = Unary.row("acosh", np.arccosh, intrinsic("acosh"), FLOAT)
atanh = Unary.row("atanh", np.arctanh, intrinsic("atanh"), FLOAT)
erf = Unary.row("erf", wide_numpy(_erf), intrinsic("erf"), FLOAT)
sigmoid = Unary.row("sigmoid", wide_numpy(lambda x: 1 / (1 + np.exp(-x))), wide(logistic), FLOAT)
logical_not = Unary.row("logical_not", np.logical_not, lambda x: ~x, BOOL)
bitwise_not = Unary.row("bitwise_not", np.invert, lambda x: ~x, BITS)
isnan = Unary.row("isnan", np.isnan, intrinsic("isnan"), FLOAT, result="bool")
isinf = Unary.row("isinf", np.isinf, intrinsic("isinf"), FLOAT, result="bool")
isfinite = Unary.row("isfinite", np.isfinite, _is_finite, FLOAT, result="bool")
copy = Unary.row("copy", _identity, _identity, ANY, exact=True)

OPS: tuple[OpDef, ...] = rows_of(globals())
