# SPDX-License-Identifier: Apache-2.0
"""DivToMul: multiply by the reciprocal instead of dividing by a constant.

divide(%x, 4f)
multiply(%x, 0.25f)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.ir import DType
from aotc.relay.expr import Call, Constant, splat
from aotc.relay.op.binary import multiply
from aotc.relay.transform.base import Outcome, Rule, RulePass, WhyNot


def reciprocal(constant: Constant) -> Constant | None:
    """1 / constant in its data type; None where a reciprocal overflows or loses digits."""
    dtype: Any = constant.data.dtype
    one = constant.data.flat[:1] if constant.is_splat else constant.data
    with np.errstate(all="ignore"):
        values = np.asarray(1.0 / one.astype(np.float64)).astype(dtype)
        exact = values.astype(np.float64) * one.astype(np.float64)
    # a subnormal reciprocal may have too few digits: the quotient is then off by more than rounding
    if not np.all(np.isfinite(values.astype(np.float64))) or not np.all(np.abs(exact - 1.0) <= _epsilon(dtype)):
        return None
    if constant.is_splat:
        return splat(values[0], constant.data.shape, str(DType.of(values)), constant.span)
    return Constant(values.reshape(constant.data.shape), constant.span)


def _epsilon(dtype: Any) -> float:
    """The distance from 1 to the next number of a floating type."""
    one = np.ones((), dtype)
    step = 1.0
    while float((one + np.asarray(step / 2, dtype)).astype(np.float64)) != 1.0:
        step /= 2
    return step


def _rewrite(call: Call) -> Outcome:
    data, divisor = call.args
    if not isinstance(divisor, Constant):
        return None
    if not DType.of(divisor.data).is_float:
        return WhyNot("integers have no reciprocal")
    inverse = reciprocal(divisor)
    return WhyNot("a reciprocal is not finite or not precise") if inverse is None else multiply(data, inverse)


_RULE = Rule("x / c => x * (1 / c)", ("divide",), _rewrite)


class DivToMul(RulePass):
    """Turn divisions by floating-point constants into multiplications; results may differ in the last digit."""

    rules = (_RULE,)
    required = ("InferType", "FoldConstant")
