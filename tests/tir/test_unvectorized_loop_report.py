# SPDX-License-Identifier: Apache-2.0
"""Reports of loops that stay scalar, and loops that are not reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotc.ir.dtype import DType
from aotc.tir.expr import INDEX, Buffer, Expr, Load, Var, as_expr, binary
from aotc.tir.loops.loop_vectorization import vectorize_kernel
from aotc.tir.loops.unvectorized_loop_report import scalar_loops
from aotc.tir.stmt import Assign, Block, Declare, For, If, Kernel, Stmt, Store, forall
from aotc.tir.target import X86_64_V3, C

SINGLE = DType("float32")
X, Y, Z = Buffer("x", SINGLE, 256), Buffer("y", SINGLE, 256), Buffer("z", INDEX, 256)
AT = Buffer("at", INDEX, 256)


def said(body: Stmt, inplace: tuple[tuple[int, int], ...] = ()) -> list[tuple[str, str]]:
    kernel = Kernel(name="k", inputs=(X, AT), outputs=(Y, Z), body=body, inplace=inplace)
    assert scalar_loops(kernel, C) == ()
    found = scalar_loops(vectorize_kernel(kernel, X86_64_V3), X86_64_V3)
    return [(loop.loop, loop.reason) for loop in found]


def quotient(at: Var) -> Stmt:
    return Store(Z, at, binary("floordiv", Load(AT, at), Load(AT, at + 1)))


def total(extent: int) -> Stmt:
    k, acc = Var("k"), Var("acc", SINGLE)
    loop = For(k, extent, Assign(acc, acc + Load(X, k)), kind="reduction")
    return Block((Declare(acc, as_expr(0.0)), loop, Store(Y, as_expr(0), acc)))


def short(extent: int, rows: int = 9, sums: int = 0) -> Stmt:
    i, j = Var("i"), Var("j")
    value: Expr = Load(X, i * 5 + j)
    for _ in range(sums):
        value = value + Load(X, j)
    return forall(i, rows, forall(j, extent, Store(Y, i * (252 // rows) + j, value)))


def moved() -> Stmt:
    i = Var("i")
    return forall(i, 63, Block((Store(Y, i, Load(X, i) + 1.0), Store(Y, i + 64, Load(X, i + 1)))))


def over(make: Callable[[Var], Stmt], extent: int = 64, kind: str = "independent") -> Stmt:
    return For(i := Var("i"), extent, make(i), kind=kind)


CASES: dict[str, tuple[Stmt, list[tuple[str, str]]]] = {
    "a function": (over(quotient), [("i", "floordiv of int64")]),
    "once for equal ones": (Block((over(quotient), over(quotient))), [("i", "floordiv of int64")]),
    "a condition": (
        over(lambda i: If(Load(AT, i) > 0, Store(Y, i, Load(X, i)))),
        [("i", "statements under a condition of each element")],
    ),
    "elements that lie apart": (over(lambda i: Store(Y, i, Load(X, i * 4))), []),
    "a short loop": (
        short(3, 20, sums=40),
        [("i, j", "fewer elements than a vector has, 3; results of float32 that do not lie side by side")],
    ),
    "a short loop that is written out": (short(3, 20), [("i", "results of float32 that do not lie side by side")]),
    "a sum": (total(100), [("k", "a value of float32 that is carried from element to element")]),
    "vectors": (over(lambda i: Store(Y, i, Load(X, i) + 1.0), 61), []),
    "vectors inside": (short(16), []),
    "what vectors leave over": (short(27), []),
    "few iterations": (over(quotient, 12), []),
    "one after the other": (over(quotient, kind="serial"), []),
}


@pytest.mark.parametrize("case", CASES)
def test_scalar_loops_say_why(case: str) -> None:
    body, expected = CASES[case]
    assert said(body) == expected


def test_memory_that_two_share() -> None:
    assert said(moved(), ((0, 0),)) == [("i", "results that may lie where other elements are read")]


def test_a_remainder_of_unknown_length_is_none() -> None:
    n = Var("n", INDEX)
    body = Block((Declare(n, Load(AT, as_expr(0))), forall(i := Var("i"), n, Store(Y, i, Load(X, i) + 1.0))))
    assert said(body) == []


def test_loops_are_named_from_the_outside() -> None:
    assert said(forall(Var("n"), 9, over(quotient))) == [("n, i", "floordiv of int64")]
