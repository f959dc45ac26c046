# SPDX-License-Identifier: Apache-2.0
"""What is done to bodies before they are printed: loads in front of selections, and which loops stay guarded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.bodies import has_guarded_access, prepared
from aotc_codegen.c.dialect import GNU_C
from aotc_codegen.c.flags import OPTIMISE
from aotc_codegen.c.kernel_table import emit_kernels
from aotc_codegen.c.printer import GUARD, print_kernel

from aotc.ir.dtype import DType
from aotc.relay.backend.kernels import lower_function
from aotc.tir.expr import Binary, Buffer, Expr, Load, Select, Var, all_of, const, select
from aotc.tir.interp import run_kernel
from aotc.tir.stmt import Assign, Block, Declare, For, If, Kernel, Stmt, Store, walk_stmts
from aotc.tir.target import get_target
from tests.codegen.batch import run_batch
from tests.targets.fused import fused

F32 = DType("float32")
X, S, Y = Buffer("x", F32, 64), Buffer("s", F32, 64), Buffer("y", F32, 64)
ZERO = const(0.0, "float32")
AT = Var("at")


def kernel(body: Callable[[Expr], Stmt], begin: int = 0) -> Kernel:
    """A loop over the elements of X, S and Y."""
    i = Var("i")
    return Kernel(name="k", inputs=(X, S), outputs=(Y,), body=For(i, const(64), body(i), begin=const(begin)))


def chosen(i: Expr, at: Expr) -> Expr:
    return Select(Load(X, i) < ZERO, Load(S, at), Load(X, i))


def text(k: Kernel) -> str:
    return print_kernel(k, GNU_C).text("k")


def test_a_load_that_is_safe_comes_first() -> None:
    made = text(kernel(lambda i: Store(Y, i, chosen(i, i))))
    assert "float s_e = s[i];" in made and "? s_e : x[i]" in made
    assert made.index("s_e = s[i]") < made.index("y[i] = ")


def test_a_load_that_is_done_in_any_case_stays() -> None:
    made = text(kernel(lambda i: Store(Y, i, Select(Load(X, i) < ZERO, ZERO, Load(X, i)))))
    assert "_e" not in made


def test_a_load_in_front_of_a_store_behind_it_comes_first() -> None:
    t = Var("t", F32)
    made = kernel(lambda i: Block((Declare(t, chosen(i, i)), Store(Y, i, t + ZERO))))
    assert "s_e = s[i]" in text(made)
    i, acc = Var("i"), Var("acc", F32)
    loop = For(i, const(64), Assign(acc, Binary("add", acc, chosen(i, i))))
    body = Block((Declare(acc, ZERO), loop, Store(Y, const(0), acc)))
    assert "s_e" not in text(Kernel(name="k", inputs=(X, S), outputs=(Y,), body=body))  # no store in the loop


@pytest.mark.parametrize(
    "body",
    [
        lambda i: Store(Y, i, chosen(i, i * 2)),
        lambda i: Store(Y, i, select(all_of(const(0) < i, Load(S, i * 2 - 1) < ZERO), ZERO, Load(X, i))),
        lambda i: If(Load(X, i) < ZERO, Store(Y, i, Load(S, i * 2))),
        lambda i: If(Load(X, i) < ZERO, For(j := Var("j"), const(4), Store(Y, i, Load(S, i + j * 2)))),
        lambda i: Block((Declare(AT, i * 2), If(Load(X, i) < ZERO, Store(Y, AT, ZERO)))),
        lambda i: Store(Y, i, chosen(i, i // 2 - 1)),
    ],
    ids=["outside", "and", "if", "short", "register", "divided"],
)
def test_what_cannot_come_first_is_guarded(body: Callable[[Expr], Stmt]) -> None:
    made = kernel(body)
    assert has_guarded_access(prepared(made)) and "s_e" not in text(made)


@pytest.mark.parametrize(
    "body",
    [
        lambda i: Store(Y, i, chosen(i, i)),
        lambda i: If(Load(X, const(0)) < ZERO, Store(Y, i, Load(S, i + 1))),
        lambda i: If(Load(X, i) < ZERO, For(Var("j"), const(17), Store(Y, i, Load(S, i)))),
        lambda i: If(i < const(3), Store(Y, i, Load(S, i, 4))),
        lambda i: If(i < const(3), Block((Store(Y, i, Load(S, i)), For(Var("j"), const(17), Store(Y, i, ZERO))))),
    ],
    ids=["safe", "neighbours", "long", "vectors", "outer"],
)
def test_what_compilers_do_not_mask_is_not_guarded(body: Callable[[Expr], Stmt]) -> None:
    assert not has_guarded_access(prepared(kernel(body)))


def test_bodies_mean_the_same() -> None:
    changed = 0
    for seed in range(60):
        f = fused(seed)
        before = lower_function(f.function, "k", get_target("x86-64-v3"))
        after = replace(before, body=prepared(before))
        changed += sum(1 for _ in walk_stmts(after.body)) != sum(1 for _ in walk_stmts(before.body))
        for a, b in zip(run_kernel(before, f.inputs), run_kernel(after, f.inputs), strict=True):
            np.testing.assert_array_equal(a, b)
    assert changed > 5


def test_guarded_kernels_have_files_of_their_own(tmp_path: Path) -> None:
    plain = kernel(lambda i: Store(Y, i, chosen(i, i)))
    guarded = kernel(lambda i: Store(Y, i, chosen(i, i * 2)))
    emit_kernels([plain, guarded], tmp_path, version="1")
    files = [f.read_text(encoding="utf-8") for f in sorted((tmp_path / "src").glob("aotc_kernels_*.c"))]
    assert sorted(f"\n{GUARD}\n" in f for f in files) == [False, True]
    assert all(f"\n{GUARD}\n" not in f or f.index(GUARD) < f.index("void ") for f in files)


def test_a_guarded_load_is_never_done_in_vain(tmp_path: Path) -> None:
    """The element behind the end is not read, and the loop is right whatever gcc makes of it."""
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    s = np.arange(64, dtype=np.float32)
    made = kernel(lambda i: Store(Y, i, chosen(i, i + 1)))
    (found,) = run_batch([(made, [x, s])], tmp_path, *OPTIMISE)[0]
    np.testing.assert_array_equal(found, np.where(x < 0, np.append(s[1:], 0), x))
