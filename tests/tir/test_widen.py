# SPDX-License-Identifier: Apache-2.0
"""Loops over float16 get vectors, and give the same bits: from the interpreter, and from C with and without F16C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.tir.expr import INDEX, Buffer, Load, Var, as_expr, call, cast, maximum, select
from aotc.tir.interp import run_kernel
from aotc.tir.loops.widen import widen
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
    body = Block((Declare(r, maximum(here, -1.0)), Assign(r, maximum(r, Load(x, i + 1) * here + here)), Store(y, i, r)))
    clear = For(j := Var("j"), extent, Store(y, j, cast(as_expr(0.0), "float16")))
    loop = For(i, n if open_end else extent, body, begin=begin, kind="independent")
    return Kernel(name="k", inputs=(x,), outputs=(y,), body=Block((clear, Declare(n, as_expr(extent)), loop)))


def in_place(extent: int) -> Kernel:
    """y[i] = x[i] * 2, where y may be x."""
    x, y, i = Buffer("x", HALF, extent), Buffer("y", HALF, extent), Var("i")
    body = For(i, extent, Store(y, i, Load(x, i) * 2.0), kind="independent")
    return Kernel(name="k", inputs=(x,), outputs=(y,), body=body, inplace=((0, 0),))


def strided(extent: int, *, open_end: bool = False) -> Kernel:
    """y[i] = sqrt(abs(x[2 i + 1] * 3 + s[0])) + x[2 i] for large x[2 i + 2], rounded each time; z[i] = x[2 i] > 0."""
    x, s, y = Buffer("x", HALF, 2 * extent + 2), Buffer("s", HALF, 1), Buffer("y", HALF, extent)
    z, i, r, n = Buffer("z", DType("bool"), extent), Var("i"), Var("r", HALF), Var("n", INDEX)
    here, after, last = (Load(x, i * 2 + k) for k in range(3))
    root = call("sqrt", call("abs", after * 3.0 + Load(s, 0 * n)))
    body = Block(
        (
            Declare(r, root),
            Assign(r, r + select(last > 0.5, r, cast(i, "float16"))),
            Store(y, i, r + here),
            Store(z, i, here > 0.0),
        )
    )
    loop = For(i, n if open_end else extent, body, kind="independent")
    clear = For(j := Var("j"), extent, Store(y, j, cast(as_expr(0.0), "float16")))
    unset = For(k := Var("k"), extent, Store(z, k, as_expr(False)))
    return Kernel(
        name="k", inputs=(x, s), outputs=(y, z), body=Block((clear, unset, Declare(n, as_expr(extent)), loop))
    )


def converted(to: DType, size: int) -> Kernel:
    """Numbers of the other type of the two as `to`."""
    x, y, i = Buffer("x", SINGLE if to == HALF else HALF, size), Buffer("y", to, size), Var("i")
    return Kernel(
        name="k", inputs=(x,), outputs=(y,), body=For(i, size, Store(y, i, cast(Load(x, i), to)), kind="independent")
    )


def steps(kernel: Kernel) -> list[int]:
    return [s.step for s in walk_stmts(kernel.body) if isinstance(s, For)]


def test_a_loop_is_cut_into_vectors_and_a_rest() -> None:
    assert steps(widen(pooled(64), 16))[1:] == [16]
    assert steps(widen(pooled(45), 16))[1:] == [16]  # and a vector that overlaps with the one before
    assert steps(widen(pooled(3), 16))[1:] == [1]
    assert steps(widen(pooled(45, open_end=True), 16))[1:] == [16, 1]
    assert steps(widen(in_place(45), 16)) == [16, 8, 4, 1]
    assert steps(widen(in_place(7), 16)) == [4, 1]


def test_what_has_no_vector_form_is_computed_in_float32() -> None:
    made = widen(strided(600), 16)
    assert [b.size for b in made.stack] == [256, 2 * 255 + 3]
    assert all(b.dtype == SINGLE for b in made.stack)
    x, y, i = Buffer("x", HALF, 64), Buffer("y", HALF, 64), Var("i")
    places = [Load(x, i * 7 % 64), Load(x, 63 - i), Load(y, i)]  # no pattern, backwards, of what is written
    for value in places:
        body = For(i, 64, Store(y, i, call("sqrt", value)), kind="independent")
        kernel = Kernel(name="k", inputs=(x,), outputs=(y,), body=body)
        assert widen(kernel, 16).body is body or not widen(kernel, 16).stack


def test_what_has_no_narrow_floats_stays() -> None:
    x, y, i = Buffer("x", SINGLE, 64), Buffer("y", SINGLE, 64), Var("i")
    kernel = Kernel(name="k", inputs=(x,), outputs=(y,), body=For(i, 64, Store(y, i, Load(x, i)), kind="independent"))
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
        (in_place(45), [rng.standard_normal(45).astype(np.float16)]),
        (pooled(6), [rng.standard_normal(7).astype(np.float16)]),
    ]
    for kernel in (strided(600), strided(97, open_end=True), strided(5)):
        jobs.append((kernel, [rng.standard_normal(b.size).astype(np.float16) for b in kernel.inputs]))
    for lanes in (4, 16):
        wide = [(widen(kernel, lanes), inputs) for kernel, inputs in jobs]
        (folder := tmp_path / str(lanes)).mkdir()
        for (kernel, inputs), (plain, _), found in zip(wide, jobs, run_batch(wide, folder, *flags), strict=True):
            verify(kernel)
            for expected, seen, c in zip(run_kernel(plain, inputs), run_kernel(kernel, inputs), found, strict=True):
                np.testing.assert_array_equal(seen, expected)
                np.testing.assert_array_equal(c, expected)
                if c.dtype != bool:
                    np.testing.assert_array_equal(np.signbit(c[c == 0]), np.signbit(expected[c == 0]))
