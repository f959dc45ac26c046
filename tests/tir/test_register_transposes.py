# SPDX-License-Identifier: Apache-2.0
"""Transposing copies transpose square blocks in registers; the interpreter and compiled C give the
transposed matrix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.loops.loop_nest_rewrites import tile_transposing_loops
from aotc.tir.loops.loop_vectorization import vectorize_kernel
from aotc.tir.stmt import Execute, Kernel, walk_stmts
from aotc.tir.target import X86_64, X86_64_V3, X86_64_V4, Target
from tests.codegen.batch import gnu_c_for, run_batch
from tests.targets.machines import native_targets

TARGETS = {"x86-64": X86_64, "x86-64-v3": X86_64_V3, "x86-64-v4": X86_64_V4}
#: Rows and columns of the matrix that is read: smaller than a square, whole squares, remainders on
#: one side or both, and tiles with whole and partial tiles.
SHAPES = [(3, 40), (16, 16), (16, 21), (24, 23), (8, 100), (32, 48), (64, 49), (37, 75)]


def transpose(rows: int, columns: int, dtype: str = "float32", value: str = "{}") -> Kernel:
    """Return the kernel that transposes two matrices of rows x columns elements, in tiles if they
    are large.
    """
    size = rows * columns
    kernel = parse_kernel(f"""kernel "transpose" {{
  input x: {dtype}[{2 * size}]
  output y: {dtype}[{2 * size}]
  for n in 0..2 independent {{
    for i in 0..{columns} independent {{
      for j in 0..{rows} independent {{
        y[n * {size} + i * {rows} + j] = {value.format(f"x[n * {size} + j * {columns} + i]")}
      }}
    }}
  }}
}}
""")
    return Kernel(
        name="transpose", inputs=kernel.inputs, outputs=kernel.outputs, body=tile_transposing_loops(kernel.body, 16)
    )


def matrices(rows: int, columns: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.arange(2 * rows * columns).reshape(2, rows, columns).astype(dtype)


def square_sides(kernel: Kernel) -> set[int]:
    extents = (s.extents[0] for s in walk_stmts(kernel.body) if isinstance(s, Execute))
    return {extent.rows for extent in extents if extent is not None}


@pytest.mark.parametrize("target", TARGETS)
def test_results(target: str, tmp_path: Path) -> None:
    jobs = []
    cases = [(rows, columns, dtype) for rows, columns in SHAPES for dtype in ("float32", "int64")]
    for rows, columns, dtype in cases:
        kernel = vectorize_kernel(transpose(rows, columns, dtype), TARGETS[target])
        verify(kernel)
        x = matrices(rows, columns, dtype)
        (actual,) = run_kernel(kernel, [x.reshape(-1)])
        np.testing.assert_array_equal(actual, x.transpose(0, 2, 1).reshape(-1))
        jobs.append((kernel, [x.reshape(-1)]))
    if target not in native_targets():
        pytest.skip(f"this processor cannot run code for {target}")
    results = run_batch(jobs, tmp_path, *TARGETS[target].cflags, dialect=gnu_c_for(TARGETS[target]))
    for (actual,), (rows, columns, dtype) in zip(results, cases, strict=True):
        expected = matrices(rows, columns, dtype).transpose(0, 2, 1)
        np.testing.assert_array_equal(actual, expected.reshape(-1), err_msg=f"{rows} x {columns}")


@pytest.mark.parametrize(
    ("target", "shape", "dtype", "sides"),
    [
        (X86_64_V4, (64, 49), "float32", {16}),  # tiles
        (X86_64_V3, (64, 49), "float32", {8}),
        (X86_64_V4, (24, 23), "float32", {16, 4, 8}),  # the remainders are smaller squares
        (X86_64_V4, (64, 49), "int64", {8}),
        (X86_64_V4, (3, 40), "float32", set()),  # shorter than the smallest square
        (X86_64_V4, (64, 49), "int16", set()),  # elements too small for shuffles
    ],
)
def test_sides_of_squares(target: Target, shape: tuple[int, int], dtype: str, sides: set[int]) -> None:
    assert square_sides(vectorize_kernel(transpose(*shape, dtype), target)) == sides


def test_other_loops_keep_their_form() -> None:
    assert not square_sides(vectorize_kernel(transpose(64, 49, value="{} + 1.0"), X86_64_V4))
    kernel = transpose(64, 64)
    shared = Kernel(name="k", inputs=kernel.inputs, outputs=kernel.outputs, body=kernel.body, inplace=((0, 0),))
    assert not square_sides(vectorize_kernel(shared, X86_64_V4))


def test_a_band_of_a_matrix_is_no_rectangle() -> None:
    kernel = parse_kernel("""kernel "band" {
  input x: float32[1024]
  output y: float32[1024]
  for i in 0..1024 independent {
    y[i] = 0.0
  }
  for i in 0..16 independent {
    for j in i..i + 16 independent {
      y[i * 32 + j] = x[j * 32 + i]
    }
  }
}
""")
    vectorized = vectorize_kernel(kernel, X86_64_V4)
    assert not square_sides(vectorized)
    x = np.arange(1024, dtype="float32")
    np.testing.assert_array_equal(run_kernel(vectorized, [x])[0], run_kernel(kernel, [x])[0])
