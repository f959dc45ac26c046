# SPDX-License-Identifier: Apache-2.0
"""Operators of one tensor, element by element.  A new one is one row.

exp(x)                                 # Call(exp, [x]), typed like x
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from aotc.ir import DType, Precision, Quantised
from aotc.relay.op.opdef import Array, OpDef, Scalar
from aotc.relay.op.rows import NumpyFn, either, intrinsic, unary, wide
from aotc.relay.op.samples import ANY, BITS, BOOL, FLOAT, NUMBER, WITH_ZERO
from aotc.tir import call, const, maximum, minimum, select


def _rounded(name: str, fn: NumpyFn) -> OpDef:
    """The operator that rounds floats by `fn`, and leaves integers as they are."""

    def rounded(x: Any) -> Any:
        return fn(x) if DType(str(x.dtype)).is_float else x

    return unary(name, rounded, rounded, NUMBER, exact=True)


def _sign(x: Scalar) -> Scalar:
    if not x.dtype.is_signed:
        return minimum(x, 1)
    # NaN stays
    negative = select(x < 0, const(-1, x.dtype), select(x.equal(0), const(0, x.dtype), x))
    return select(x > 0, const(1, x.dtype), negative)


def _relu(x: Scalar) -> Scalar:
    return maximum(x, 0) if x.dtype.is_signed else x


def logistic(x: Scalar) -> Scalar:
    """The sigmoid function of one element."""
    # far below zero it underflows gradually, as it should; 1 / (1 + exp(-x)) would jump to zero where exp overflows
    e = call("exp", minimum(x, math.log(x.dtype.max) - 1.0))
    return e / (1.0 + e)


def _erf(x: Array) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


#: Functions of floats that keep the digits of a narrow argument.
_STEADY: Final = ("sqrt", "sin", "cos", "atan", "tanh")


def _function(name: str) -> OpDef:
    """The operator of floats that is an intrinsic, in numpy of that name, or with "arc" for inverse functions."""
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
    "nn.relu", lambda x: np.maximum(x, x.dtype.type(0)), _relu, WITH_ZERO, exact=True, quantised=Quantised.PASS
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
copy = unary("copy", _identity, _identity, ANY, exact=True, quantised=Quantised.PASS)
