# SPDX-License-Identifier: Apache-2.0
"""Scalar statements converted to vector statements: equal bits in the interpreter and in C."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.tir.expr import Buffer, Expr, Load, Pack, Var, binary, call, cast, maximum, minimum, select
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.loops.statement_vectorization import (
    MAX_OPERATIONS_IN_TILE,
    ScalarError,
    vectorize_stmt,
    vectorize_stmt_or_none,
)
from aotc.tir.stmt import Block, Declare, For, If, Kernel, Stmt, Store, all_exprs_in_stmt
from tests.codegen.batch import STRICT, build, run_batch, source_of

ODD = [0.0, -0.0, 1.5, -2.25, 6.0, 7.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38]
PAIRS = np.array(list(itertools.product(ODD, ODD)), np.float32)
LANES = 4

EPILOGUES: dict[str, Callable[[Expr, Expr], Expr]] = {
    "clip": lambda x, y: minimum(maximum(x + y, 0.0), 6.0),
    "relu_of_sum": lambda x, y: maximum(0.0, x + y),
    "extremes": lambda x, y: minimum(maximum(x, y), x),
    "leaky": lambda x, y: select(x > 0.0, x, x * y),
    "tests": lambda x, y: select(x.equal(y), x - y, select(x <= y, -x, y / x)),
    "hard_swish": lambda x, y: x * minimum(maximum(x + 3.0, 0.0), 6.0) / 6.0 + y,
}


def kernel_of(function: Callable[[Expr, Expr], Expr], dtype: str, turned: bool) -> Kernel:
    d = DType(dtype)
    a, b, out = (Buffer(name, d, len(PAIRS)) for name in ("a", "b", "out"))
    i, lane, register = Var("i"), Var("lane"), Var("r", d)
    index = i * LANES + lane
    body: Stmt = Block((Declare(register, Load(a, index)), Store(out, index, function(register, Load(b, index)))))
    if turned:
        made = vectorize_stmt_or_none(body, lane, LANES, {})
        assert made is not None
        body = made
    else:
        body = For(lane, LANES, body, kind="independent")
    kernel = Kernel(name="k", inputs=(a, b), outputs=(out,), body=For(i, len(PAIRS) // LANES, body))
    verify(kernel)
    return kernel


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_all_at_once_is_one_after_the_other(dtype: str, tmp_path: Path) -> None:
    arrays = [PAIRS[:, k].astype(dtype) for k in (0, 1)]
    plain = [run_kernel(kernel_of(f, dtype, False), arrays)[0] for f in EPILOGUES.values()]
    kernels = [kernel_of(f, dtype, True) for f in EPILOGUES.values()]
    compiled = run_batch([(kernel, arrays) for kernel in kernels], tmp_path)
    for name, kernel, (actual,), expected in zip(EPILOGUES, kernels, compiled, plain, strict=True):
        np.testing.assert_array_equal(run_kernel(kernel, arrays)[0], expected, err_msg=name)
        np.testing.assert_array_equal(actual, expected, err_msg=name)


@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_compilers_do_not_warn(cc: str, tmp_path: Path) -> None:
    if shutil.which(cc) is None:
        pytest.skip(f"{cc} is not installed")
    kernels = [kernel_of(f, dtype, True) for f in EPILOGUES.values() for dtype in ("float16", "float32")]
    assert build(source_of(kernels), tmp_path, *STRICT, cc=cc).exists()


REASONS = [
    "results of float32 that do not lie side by side",
    "elements of float32 that do not lie at equal distances",
    "pow of int32",
    "floordiv of int32",
    "a choice of float32 where only one of two places may be read",
    "a choice of float32 where only one of two places may be read",
    "statements under a condition of each element",
]


def why(stmt: Stmt, lane: Var) -> str:
    with pytest.raises(ScalarError) as caught:
        vectorize_stmt(stmt, lane, LANES, {})
    return str(caught.value)


def test_what_has_no_vector_form_is_left_alone() -> None:
    x, y = Buffer("x", DType("float32"), 64), Buffer("y", DType("float32"), 64)
    z = Buffer("z", DType("int32"), 64)
    lane, i = Var("lane"), Var("i")
    item = Load(x, i + lane)
    long: Expr = item
    for _ in range(MAX_OPERATIONS_IN_TILE + 1):
        long = long + 1.0
    refused: list[Stmt] = [
        Store(y, lane * 2, item),
        Store(y, lane, Load(x, binary("floormod", lane + i, 5))),
        Store(z, lane, call("pow", Load(z, lane), Load(z, lane))),
        Store(z, lane, binary("floordiv", Load(z, lane), 3)),
        Store(y, lane, select(item > 0.0, Load(x, cast(Load(z, 0 * i), "int64")), 0.0)),  # a place that data tells
        Store(y, lane, select(Load(z, lane) > 0, item, 0.0)),  # an integer may say that the place is outside
        If(lane > 2, Store(y, lane, item)),
    ]
    assert all(vectorize_stmt_or_none(stmt, lane, LANES, {}) is None for stmt in refused)
    assert [why(stmt, lane) for stmt in refused] == REASONS
    assert vectorize_stmt_or_none(Store(y, lane, long), lane, LANES, {}, max_operations=MAX_OPERATIONS_IN_TILE) is None
    assert vectorize_stmt_or_none(Store(y, lane, long), lane, LANES, {}) is not None
    assert vectorize_stmt_or_none(refused[-2], lane, LANES, {}, loads_in_bounds=True) is not None


def test_what_is_loaded_before_a_choice_may_be_chosen() -> None:
    """A register is loaded whatever a mask says; a place behind the choice might be outside of its buffer."""
    x, mask, y = Buffer("x", DType("float32"), 8), Buffer("mask", DType("bool"), 8), Buffer("y", DType("float32"), 8)
    lane, register = Var("lane"), Var("r", DType("float32"))
    body = Block((Declare(register, Load(x, lane)), Store(y, lane, select(Load(mask, lane), register * 0.5, -np.inf))))
    made = vectorize_stmt_or_none(body, lane, 8, {}, may_scalarize=True)
    assert made is not None and not any(isinstance(e, Pack) for e in all_exprs_in_stmt(made))
    assert vectorize_stmt_or_none(Store(y, lane, select(Load(mask, lane), Load(x, lane), 0.0)), lane, 8, {}) is None
    data = [np.arange(8, dtype=np.float32) + 1, np.arange(8) % 3 == 0]
    kernel = Kernel(name="k", inputs=(x, mask), outputs=(y,), body=made)
    np.testing.assert_array_equal(run_kernel(kernel, data)[0], np.where(data[1], data[0] / 2, -np.inf))


def test_a_scalar_is_repeated() -> None:
    x, y, lane = Buffer("x", DType("float32"), 8), Buffer("y", DType("float32"), 8), Var("lane")
    made = vectorize_stmt_or_none(Store(y, lane, Load(x, 3 * (lane - lane)) * 2.0), lane, 8, {})
    assert made is not None
    data = np.arange(8, dtype=np.float32) + 1
    kernel = Kernel(name="k", inputs=(x,), outputs=(y,), body=made)
    np.testing.assert_array_equal(run_kernel(kernel, [data])[0], np.full(8, 2, np.float32))
