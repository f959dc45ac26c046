# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the approximations that FastMath inserts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from passes.graphs import module_of, var

from aotc.relay.interpreter import evaluate
from aotc.relay.op.elementwise_unary import fast_erf, fast_exp, fast_tanh
from aotc.relay.op.opdef import OpDef


@pytest.mark.parametrize(
    ("fast", "exact", "limit", "relative", "absolute"),
    [(fast_exp, math.exp, 80.0, 1e-6, 0), (fast_tanh, math.tanh, 20.0, 0, 1e-6), (fast_erf, math.erf, 20.0, 0, 2e-6)],
)
def test_accuracy(fast: OpDef, exact: Callable[[float], float], limit: float, relative: float, absolute: float) -> None:
    values = np.linspace(-limit, limit, 100_001).astype(np.float32)
    x = var("x", values.size)
    got: Any = evaluate(module_of(fast(x), x), values)
    expected = [exact(float(v)) for v in values]
    np.testing.assert_allclose(got, expected, rtol=relative, atol=absolute)


def test_limits() -> None:
    x = var("x", 3)
    values = np.array([np.inf, -np.inf, np.nan], np.float32)
    high, low, nothing = evaluate(module_of(fast_exp(x), x), values)
    assert np.isfinite(high) and 0 < low < 1e-37 and np.isnan(nothing)
    for fast in (fast_tanh, fast_erf):
        got = evaluate(module_of(fast(x), x), values)
        np.testing.assert_allclose(got, [1, -1, np.nan], atol=2e-6)
