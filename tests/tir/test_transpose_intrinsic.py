# SPDX-License-Identifier: Apache-2.0
"""The statement that transposes a square block: in the interpreter, the text form, the verifier, the simplifier."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir.expr import Buffer, Load, Var, as_expr
from aotc.tir.instruction_statements import transpose_square
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.simplify_statements import simplify_stmt
from aotc.tir.stmt import Destination, Execute, For, Kernel, Stmt

F32 = DType("float32")
X, Y = Buffer("x", F32, 4 * 12), Buffer("y", F32, 12 * 4)


def kernel(body: Stmt) -> Kernel:
    return Kernel(name="turn", inputs=(X,), outputs=(Y,), body=body)


def squares() -> Kernel:
    """A 4x12 matrix turned, one square of 4x4 after the other."""
    k = Var("k")
    return kernel(For(k, 3, transpose_square(4, Y, k * 16, 4, X, k * 4, 12)))


def test_a_matrix_is_turned() -> None:
    verify(squares())
    x = np.arange(48, dtype=np.float32)
    (y,) = run_kernel(squares(), [x])
    np.testing.assert_array_equal(y.reshape(12, 4), x.reshape(4, 12).T)


def test_text_reads_back() -> None:
    text = to_text(squares())
    assert "y[k * 16] = transpose_square(x[k * 4:40], 4, 12, 4)" in text
    again = parse_kernel(text)
    assert to_text(again) == text
    x = np.arange(48, dtype=np.float32)
    np.testing.assert_array_equal(run_kernel(again, [x])[0], run_kernel(squares(), [x])[0])


def test_places_are_simplified() -> None:
    k = Var("k")
    done = simplify_stmt(For(k, 1, transpose_square(4, Y, k * 16, 4, X, k * 4, 12)), {})
    assert isinstance(done, Execute) and isinstance(done.result, Destination) and isinstance(done.operands[0], Load)
    assert (done.result.index, done.operands[0].index) == (as_expr(0), as_expr(0))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (transpose_square(4, Y, 36, 4, X, 0, 12), r"y\[36 .. 51\] is outside"),
        (transpose_square(4, Y, 0, 4, X, 9, 12), r"x\[9 .. 48\] is outside"),
        (transpose_square(4, X, 0, 4, Y, 0, 12), "input x is written"),
        (transpose_square(4, Y, 0, 4, Y, 16, 4), "transpose_square reads and writes y"),
        (transpose_square(4, Y, 0, 3, X, 0, 12), "the rows that transpose_square accesses overlap"),
        (transpose_square(4, Buffer("z", F32, 16), 0, 4, X, 0, 12), "z is not declared"),
        (Execute("exp", Destination(Y, as_expr(0)), (Load(X, as_expr(0)),)), "exp is a function of values"),
        (Execute("spin", Destination(Y, as_expr(0)), ()), "there is no instruction spin"),
    ],
)
def test_broken_ones_are_refused(body: Execute, message: str) -> None:
    with pytest.raises(AotcError, match=message):
        verify(kernel(body))
