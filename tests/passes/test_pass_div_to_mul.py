# SPDX-License-Identifier: Apache-2.0
"""DivToMul: which divisions become multiplications."""

from __future__ import annotations

import numpy as np
import pytest
from passes.graphs import checked, const, module_of, noise, ops, var

from aotc.relay.expr import Constant, Expr, splat_constant
from aotc.relay.op.binary_elementwise import divide
from aotc.relay.op.elementwise_unary import exp
from aotc.relay.transform import DivToMul, FoldConstant


@pytest.mark.parametrize(
    "divisor", [const(4.0), const([3.0, -7.0, 0.1]), noise(2, 1, positive=True), splat_constant(3.0, (2, 3), "float32")]
)
def test_constants(divisor: Constant) -> None:
    x = var("x", 2, 3)
    module = checked(DivToMul(), module_of(divide(x, divisor), x))
    assert ops(module) == {"multiply": 1}


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types(dtype: str) -> None:
    x = var("x", 3, dtype=dtype)
    module = checked(DivToMul(), module_of(divide(x, const(3.0, dtype)), x), rtol=2e-3)
    assert ops(module) == {"multiply": 1}


@pytest.mark.parametrize("divisor", [0.0, 1e-39, np.inf, np.nan, [1.0, 0.0, 2.0]])
def test_reciprocals_that_are_none(divisor: object) -> None:
    x = var("x", 3)
    module = module_of(divide(x, const(divisor)), x)
    assert ops(DivToMul()(module)) == {"divide": 1}


def test_integers_and_unknown_divisors_stay() -> None:
    n = var("n", 3, dtype="int32")
    assert ops(checked(DivToMul(), module_of(divide(n, const(2, "int32")), n))) == {"divide": 1}
    x = var("x", 3)
    body: Expr = divide(x, exp(x))
    assert ops(checked(DivToMul(), module_of(body, x)))["divide"] == 1


def test_constants_that_folding_finds() -> None:
    x = var("x", 3)
    module = FoldConstant()(module_of(divide(x, exp(const(1.0))), x))
    assert ops(checked(DivToMul(), module)) == {"multiply": 1}
