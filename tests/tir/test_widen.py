# SPDX-License-Identifier: Apache-2.0
"""Loops over float16 get vectors, and give the same bits: from the interpreter, and from C with and without F16C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.tir.expr import INDEX, Buffer, Load, Var, as_expr, cast, maximum
from aotc.tir.interp import run_kernel
from aotc.tir.schedule.widen import widen
from aotc.tir.stmt import Assign, Block, Declare, For, Kernel, Store, walk_stmts
from aotc.tir.verify import verify
from tests.codegen.batch import run_batch
from tests.targets.machines import machine, native_targets

HALF, SINGLE = DType("float16"), DType("float32")
FLAGS = [()] + [machine(t).target.cflags for t in native_targets() if t.endswith(("v3", "v4"))]


def pooled(extent: int, begin: int = 0, *, open_end: bool = False) -> Kernel:
    """y[i] = max(-1, x[i], x[i + 1] * x[i] + x[i]) from `begin` on, each operation rounded."""
    x, y, i, r = Buffer("x", HALF, extent + 1), Buffer("y", HALF, extent), Var("i"), Var("r", HALF)
    n = Var("n", INDEX)
    here = Load(x, i)
    body = Block(
        (
            Declare(r, maximum(here, -1.0)),
            Assign(r, maximum(r, Load(x, i + 1) * here + here)),
            Store(y, i, r),
        )
    )
    clear = For(j := Var("j"), extent, Store(y, j, cast(as_expr(0.0), "float16")))
    loop = For(i, n if open_end else extent, body, begin=begin, kind="vector")
    return Kernel(name="k", inputs=(x,), outputs=(y,), body=Block((clear, Declare(n, as_expr(extent)), loop)))


def converted(to: DType, size: int) -> Kernel:
    """Numbers of the other type of the two as `to`."""
    x, y, i = Buffer("x", SINGLE if to == HALF else HALF, size), Buffer("y", to, size), Var("i")
    return Kernel(
        name="k", inputs=(x,), outputs=(y,), body=For(i, size, Store(y, i, cast(Load(x, i), to)), kind="vector")
    )


def steps(kernel: Kernel) -> list[int]:
    return [s.step for s in walk_stmts(kernel.body) if isinstance(s, For)]


def test_a_loop_is_cut_into_vectors_and_a_rest() -> None:
    assert steps(widen(pooled(64), 16))[1:] == [16]
    assert steps(widen(pooled(45), 16))[1:] == [16, 8, 4, 1]
    assert steps(widen(pooled(7), 16))[1:] == [4, 1]
    assert steps(widen(pooled(3), 16))[1:] == [1]
    assert steps(widen(pooled(45, open_end=True), 16))[1:] == [16, 1]


def test_what_has_no_narrow_floats_stays() -> None:
    x, y, i = Buffer("x", SINGLE, 64), Buffer("y", SINGLE, 64), Var("i")
    kernel = Kernel(name="k", inputs=(x,), outputs=(y,), body=For(i, 64, Store(y, i, Load(x, i)), kind="vector"))
    assert widen(kernel, 16) is kernel


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_the_same_bits(flags: tuple[str, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    exact = every[np.isfinite(every)].astype(np.float32)
    between = np.sort(np.repeat(exact, 2))
    halfway = (between[:-1] + between[1:]) / 2  # ties
    singles = np.concatenate([halfway, np.nextafter(halfway, np.inf, dtype=np.float32), rng.standard_normal(999)])
    singles = np.append(singles, [np.inf, -np.inf, np.nan, 65519.9, 65520, 1e-45, -0.0]).astype(np.float32)
    jobs = [
        (converted(SINGLE, every.size), [every]),
        (converted(HALF, singles.size), [singles]),
        (pooled(45), [rng.standard_normal(46).astype(np.float16)]),
        (pooled(45, 3, open_end=True), [rng.standard_normal(46).astype(np.float16)]),
        (pooled(6), [rng.standard_normal(7).astype(np.float16)]),
    ]
    for lanes in (4, 16):
        wide = [(widen(kernel, lanes), inputs) for kernel, inputs in jobs]
        (folder := tmp_path / str(lanes)).mkdir()
        for (kernel, inputs), (plain, _), (found,) in zip(wide, jobs, run_batch(wide, folder, *flags), strict=True):
            verify(kernel)
            (expected,) = run_kernel(plain, inputs)
            np.testing.assert_array_equal(run_kernel(kernel, inputs)[0], expected)
            np.testing.assert_array_equal(found, expected)
            zero = found == 0
            np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))
