# SPDX-License-Identifier: Apache-2.0
"""Approximations of elementary functions for float32 and narrower; float64 is computed in full.

fast_exp(x)                            # exp within [-87, 88], and exp of the nearer end beyond: never infinite
fast_tanh(x)                           # a rational function, within 1e-6
fast_erf(x)                            # a rational function, within 2e-6

The coefficients are least-squares fits, weighted for the relative error, of odd
rational functions at Chebyshev points of [-9, 9] (tanh) and [-4, 4] (erf), beyond which
both are 1 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.ir.op import Precision
from aotc.relay.op.opdef import OpDef
from aotc.relay.op.rows import NumpyFn, either, greater, intrinsic, lesser, unary, wide
from aotc.relay.op.samples import FLOAT

_TANH = (
    (0.999999977, 0.133774455, 0.00349138535, 2.05422158e-05, 1.32669164e-08),
    (1.0, 0.467107593, 0.0258608619, 0.000327885659, 7.73957678e-07),
)
_ERF = (
    (1.12837912, 0.378139052, 0.0744311068, 0.01075915, 0.00026820511, -1.49906306e-06),
    (1.0, 0.66844657, 0.188807655, 0.029363086, 0.00251662826),
)
_EXP = intrinsic("exp")
_EXP_RANGE = (-87.0, 88.0)
Fit = tuple[Sequence[float], Sequence[float]]


def _polynomial(coefficients: Sequence[float], t: Any) -> Any:
    """The sum of coefficients[k] * t^k by Horner's rule, of a scalar expression or an array."""
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
    """exp of a float32 scalar or array, neither infinite nor subnormal; of others, exp."""
    low, high = _EXP_RANGE
    return _EXP(greater(lesser(x, high), low) if x.dtype == "float32" else x)


fast_exp = unary("fast_exp", wide(clamped_exp), wide(clamped_exp), FLOAT, precision=Precision.NEVER)
fast_tanh = _rational("tanh", np.tanh, 9.0, _TANH)
fast_erf = _rational("erf", lambda x: np.vectorize(math.erf, otypes=[np.float64])(x), 4.0, _ERF, Precision.NEVER)
