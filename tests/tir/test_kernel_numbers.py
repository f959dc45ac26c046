# SPDX-License-Identifier: Apache-2.0
"""Kernels with numbers: scalar parameters after the buffers."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify

SCALE = """
kernel "scale" {
  input x: float32[12]
  output y: float32[12]
  number rows: int64 in [0, 3]
  number n: int64 in [1, 4]
  number factor: float32 in [-0.5, 2.0]
  for i in 0..rows independent {
    for j in 0..n independent {
      y[i * n + j] = x[i * n + j] * factor
    }
  }
}
"""


def test_text_round_trips() -> None:
    text = to_text(parse_kernel(SCALE))
    assert to_text(parse_kernel(text)) == text
    assert "number factor: float32 in [-0.5, 2.0]" in text


@pytest.mark.parametrize(("rows", "n"), [(3, 4), (2, 3), (1, 1), (0, 4)])
def test_interpreter_takes_values(rows: int, n: int) -> None:
    x = np.full(12, np.nan, np.float32)
    x[: rows * n] = np.arange(rows * n)
    zeros = np.zeros(12, np.float32)
    (y,) = run_kernel(parse_kernel(SCALE), [x], numbers=[rows, n, 2.0], output_init=[zeros])
    np.testing.assert_array_equal(y[: rows * n], 2 * np.arange(rows * n))
    assert not y[rows * n :].any()


@pytest.mark.parametrize(
    ("values", "message"),
    [((2, 3), "has 3 numbers, got 2"), ((4, 3, 1.0), r"rows .* is in \[0, 3\], got 4"), ((1, 0, 1.0), r"n .* got 0")],
)
def test_interpreter_checks_values(values: tuple[float, ...], message: str) -> None:
    with pytest.raises(AotcError, match=message):
        run_kernel(parse_kernel(SCALE), [np.zeros(12, np.float32)], numbers=values)


def kernel_text(body: str, *numbers: str, size: int = 8) -> str:
    lines = "".join(f"number {number}\n" for number in numbers)
    return f'kernel "k" {{ input x: float32[8] output y: float32[{size}]\n{lines}{body} }}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (kernel_text("for i in 0..n { y[i] = x[i] }", "n: int64 in [1, 9]"), r"x\[0 .. 8\] is outside its 8"),
        (kernel_text("y[n] = x[0]", "n: int64 in [-1, 7]"), r"y\[-1 .. 7\] is outside"),
        (kernel_text("y[0] = x[0]", "n: int64 in [3, 2]"), r"number n is int64x1 in \[3, 2\]"),
        (kernel_text("y[0] = v", "v: bool in [false, true]"), "number v is bool"),
        (kernel_text("n = 3", "n: int64 in [0, 7]"), "number n is assigned"),
        (kernel_text("for i in 0..8 { y[i] = v }", "v: int32 in [0, 7]"), "int32 is stored to y"),
    ],
)
def test_verifier_refuses(text: str, message: str) -> None:
    with pytest.raises(AotcError, match=message):
        verify(parse_kernel(text))


@pytest.mark.parametrize(
    "text",
    [
        kernel_text("for i in 0..n independent { y[i] = x[i] }", "n: int64 in [0, 8]"),
        kernel_text("for i in 0..n independent { y[i] = x[i] * v }", "n: int64 in [0, 8]", "v: float32 in [0.0, 1.0]"),
        kernel_text("y[n - 1] = x[n // 2]", "n: int64 in [1, 8]"),
    ],
)
def test_verifier_accepts(text: str) -> None:
    verify(parse_kernel(text))
