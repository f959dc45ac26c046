# SPDX-License-Identifier: Apache-2.0
"""Kernels with numbers: scalar parameters after the buffers."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.kernel_files import c_number_argument
from aotc_codegen.c.kernel_library_project import c_functions_calling_kernels_by_addresses

from aotc.ir.diagnostics import AotcError
from aotc.tir.expr import const
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from tests.codegen.batch import STRICT, build, source_of
from tests.tir.programs import program_of

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


def test_compiled_kernels_take_numbers(tmp_path: Path) -> None:
    """Numbers follow the buffers in C; a table of kernels passes addresses of both."""
    kernel = parse_kernel(SCALE)
    entry, through_table = "void call0(void *const *a) { call_kernel0(a); }", c_functions_calling_kernels_by_addresses
    source = "\n".join([source_of([kernel]), *through_table({"kernel0": kernel}), entry])
    library = ctypes.CDLL(str(build(source, tmp_path, "-O0", *STRICT)))
    for rows, n in ((3, 4), (2, 3), (0, 4)):
        x, y = np.arange(12, dtype=np.float32), np.zeros(12, np.float32)
        values = [np.array(rows), np.array(n), np.array(2.0, np.float32)]
        addresses = (ctypes.c_void_p * 5)(*(a.ctypes.data for a in (x, y, *values)))
        library.call0(addresses)
        np.testing.assert_array_equal(y, np.where(np.arange(12) < rows * n, 2 * x, 0))


def test_steps_hold_values() -> None:
    kernel = parse_kernel(SCALE)
    values = (const(2), const(3), const(0.5, "float32"))
    program = program_of(kernel)
    program = replace(program, body=(replace(program.steps[0], numbers=values),))
    assert 'call "scale" ("x", "y", 2, 3, 0.5)' in str(program)
    assert [c_number_argument(value) for value in values] == ["2", "3", "0.5f"]
