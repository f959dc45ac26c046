# SPDX-License-Identifier: Apache-2.0
"""The einsum operator: construction, errors, and computation by kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc import relay
from aotc.ir.types import TensorType, TupleType
from aotc.relay.expr import Var
from aotc.relay.op import einsum
from tests.ops.onnxruntime_oracle import error_code, normal, var


def test_operands_may_be_a_tuple_of_any_kind() -> None:
    pair = Var("p", TupleType((TensorType((2, 3), "float32"), TensorType((3, 4), "float32"))))
    call = relay.einsum(pair, "ij,jk")
    assert str(call.checked_type) == "Tensor[(2, 4), float32]"
    x, y = normal(2, 3), normal(3, 4, seed=1)
    run = relay.create_executor("graph").evaluate(relay.Function([pair], call))
    np.testing.assert_allclose(run((x, y)).numpy(), x @ y, rtol=1e-5)


@pytest.mark.parametrize("equation", ["ij", "ij,jk,k", "ij,jk->iz", "ij,jk->ii", "i,jk", "ij,kk", "i1,jk"])
def test_equations_that_do_not_fit(equation: str) -> None:
    assert error_code(einsum.einsum, [var(2, 3), var(3, 4)], equation) == "einsum"


def test_operands_that_do_not_fit() -> None:
    assert error_code(einsum.einsum, [], "->") == "einsum"
    assert error_code(einsum.einsum, [var(2), var(2, dtype="int32")], "i,i") == "dtype-mismatch"
    assert error_code(einsum.einsum, [var(2, dtype="bool")], "i") == "dtype"


@pytest.mark.parametrize(("equation", "off", "expected"), [("ii->i", np.nan, [1, 2]), ("ii", 0, 3)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_off_the_diagonal_does_not_count(equation: str, off: float, expected: Any, dtype: str) -> None:
    x = np.array([[1, np.inf], [off, 2]], dtype)
    data = var(2, 2, dtype=dtype)
    run = relay.create_executor("graph").evaluate(relay.Function([data], relay.einsum([data], equation)))
    np.testing.assert_array_equal(run(x).numpy(), expected)
