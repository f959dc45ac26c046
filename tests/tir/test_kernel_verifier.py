# SPDX-License-Identifier: Apache-2.0
"""The verifier refuses every kind of invalid kernel with a reason."""

from __future__ import annotations

import pytest

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir import te
from aotc.tir.expr import (
    BOOL,
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Pack,
    Select,
    Unary,
    Var,
    as_expr,
    const,
    maximum,
    minimum,
)
from aotc.tir.kernel_verifier import verify
from aotc.tir.stmt import Assign, Block, Declare, For, If, Kernel, Stmt, Store, While

F32, I32 = DType("float32"), DType("int32")
X, Y, OTHER = Buffer("x", F32, 8), Buffer("y", F32, 8), Buffer("other", F32, 8)
K, R = Var("k"), Var("r", F32)
ONE = const(1.0, F32)


def at(index: Expr, value: Expr = ONE) -> Store:
    return Store(Y, index, value)


def refuse(body: Stmt, message: str) -> None:
    with pytest.raises(AotcError, match=message) as caught:
        verify(Kernel(name="k", inputs=(X,), outputs=(Y,), body=body))
    assert caught.value.code == "tir-verify"


def accept(body: Stmt) -> None:
    verify(Kernel(name="k", inputs=(X,), outputs=(Y,), body=body))


VALUES: list[tuple[Expr, str]] = [
    (Binary("add", ONE, const(1, I32)), "add of float32x1 and int32x1"),
    (Binary("floordiv", ONE, ONE), "floordiv of float32"),
    (Binary("nand", ONE, ONE), "no operation 'nand'"),
    (Select(ONE, ONE, ONE), "a selection by float32x1"),
    (Select(Const(True, BOOL), ONE, Broadcast(ONE, 4)), "a selection between"),
    (Broadcast(Broadcast(ONE, 4), 8), "broadcast of a vector"),
    (Pack((ONE, Const(True, BOOL))), "a pack of float32x1, boolx1"),
    (Call("fma", (ONE, ONE)), "fma with 2 operands"),
    (Call("pow", (ONE, Broadcast(ONE, 4))), "pow of operands of different types"),
    (Cast(F32, Unary("neg", Const(True, BOOL))), "neg of bool"),
    (Load(OTHER, const(0)), "buffer other is not declared"),
    (Load(X, const(8)), r"x\[8 .. 8\] is outside its 8 elements"),
    (Load(X, const(5), 4), r"x\[5 .. 8\] is outside"),
    (Load(X, Cast(DType("int64"), const(1, I32)).a), "x is indexed by int32x1"),
    (R, "r is used, but not declared"),
    (te.placeholder((1,), "float32", "t")[0], "an element of t"),
    (const(1, I32), "int32 is stored to y"),
]


@pytest.mark.parametrize(("value", "message"), VALUES)
def test_bad_values(value: Expr, message: str) -> None:
    refuse(at(const(0), value), message)


STATEMENTS: list[tuple[Stmt, str]] = [
    (Store(X, const(0), ONE), "input x is written"),
    (Assign(R, ONE), "r is assigned, but is not a register"),
    (Block((Declare(R, ONE), Declare(R, ONE))), "r is declared twice"),
    (Declare(R, const(1, I32)), "register r is float32x1, its value int32x1"),
    (Block((If(Const(True, BOOL), Declare(R, ONE)), at(const(0), R))), "r is used, but not declared"),
    (For(K, 4, For(K, 4, at(K))), "loop variable k is in use"),
    (For(K, 4, Assign(K, as_expr(1))), "k is assigned, but is not a register"),
    (For(K, 4, at(K), step=0), "has step 0"),
    (For(K, 4, at(K), kind="fast"), "kind 'fast'"),
    (For(R, 4, at(const(0))), "does not count in int64"),
    (If(ONE, at(const(0))), "a condition is float32x1"),
    (While(ONE, at(const(0))), "a condition is float32x1"),
    (For(K, 9, at(K)), r"y\[0 .. 8\] is outside"),
    (For(K, 8, at(K - 1)), r"y\[-1 .. 6\] is outside"),
    (For(K, 9, at(K, Broadcast(ONE, 4)), step=4), r"y\[0 .. 11\] is outside"),
]


ROW, J, N = Var("i"), Var("j"), Var("n")
PLACES: list[tuple[Stmt, str]] = [
    (For(K, 16, If(K < 12, at(K))), r"y\[0 .. 11\] is outside"),
    (For(K, 16, If(as_expr(3) < K, at(K - 4))), r"y\[0 .. 11\] is outside"),
    (For(K, 16, If(K < 8, at(K), at(K - 9))), r"y\[-1 .. 6\] is outside"),
    (For(K, 8, at(K, Select(K < 2, ONE, Load(X, K - 3)))), r"x\[-1 .. 4\] is outside"),
    (For(ROW, 3, For(J, minimum(4, ROW * -4 + 9), at(ROW * 4 + J))), r"y\[0 .. 8\] is outside"),
    (For(ROW, 2, For(J, ROW + 5, at(J + 3), begin=ROW)), r"y\[3 .. 8\] is outside"),
    (Block((Declare(N, as_expr(9)), For(K, N, at(K)))), r"y\[0 .. 8\] is outside"),
    (For(K, 3, at(K * 3, Broadcast(ONE, 4))), r"y\[0 .. 9\] is outside"),
]


@pytest.mark.parametrize(("body", "message"), [*STATEMENTS, *PLACES])
def test_bad_statements(body: Stmt, message: str) -> None:
    refuse(body, message)


SCRATCH = Buffer("scratch", F32, 8, "stack", private=True)
FILL = For(ROW, 8, Store(SCRATCH, ROW, Load(X, ROW)))
EARLY: list[Stmt] = [
    at(const(0), Load(SCRATCH, const(0))),
    Block((at(const(0), Load(SCRATCH, const(0))), FILL)),
    For(K, 4, Block((at(K, Load(SCRATCH, K)), Store(SCRATCH, K, ONE)))),
    If(Load(X, const(0)) < 1.0, at(const(0), Load(SCRATCH, const(0)))),
]


@pytest.mark.parametrize("body", EARLY)
def test_scratch_is_written_before_it_is_read(body: Stmt) -> None:
    with pytest.raises(AotcError, match="scratch is read before anything is written to it"):
        verify(Kernel(name="k", inputs=(X,), outputs=(Y,), body=body, stack=(SCRATCH,)))
    verify(Kernel(name="k", inputs=(X,), outputs=(Y,), body=Block((FILL, body)), stack=(SCRATCH,)))


def total(value: Expr, *more: Stmt) -> Stmt:
    """R changed in a loop that calls itself a reduction."""
    return Block((Declare(R, ONE), For(K, 8, Block((Assign(R, value), *more)), kind="reduction"), at(const(0), R)))


HERE = Load(X, K)
CLAIMS: list[tuple[Stmt, str]] = [
    (For(K, 7, at(K + 1, Load(Y, K)), kind="independent"), "independent: iterations may access the same elements of y"),
    (For(K, 8, at(K // 2), kind="independent"), "same elements of y"),
    (For(K, 4, at(K, Broadcast(ONE, 4)), kind="independent"), "same elements of y"),
    (For(ROW, 2, For(J, 5, at(ROW * 3 + J), kind="independent"), kind="independent"), "over i is not independent"),
    (For(J, 4, For(K, 4, Block((at(K), at(K + J))), kind="independent")), "loop over k is not independent"),
    (For(J, 3, For(K, 4, Block((at(K + J), at(K + 2 * J))), kind="independent")), "loop over k is not independent"),
    (
        Block((Declare(R, ONE), For(K, 8, Assign(R, R + HERE), kind="independent"))),
        "an iteration reads the value of register r from another iteration",
    ),
    (total(R - HERE), "over k is not reduction: an iteration reads the value of register r"),
    (total(R + R * HERE), "not reduction"),
    (total(R + HERE, Assign(R, R * 2.0)), "not reduction"),
    (total(R + HERE, at(K, R)), "not reduction"),
    (For(K, 8, at(const(0), Load(Y, const(1)) + HERE), kind="reduction"), "not reduction: iterations may access"),
]


@pytest.mark.parametrize(("body", "message"), CLAIMS)
def test_loops_that_are_not_what_they_say(body: Stmt, message: str) -> None:
    refuse(body, message)


def test_loops_that_are_what_they_say() -> None:
    accept(total(maximum(R, HERE), Assign(R, maximum(HERE * 2.0, R))))
    accept(total(R + HERE, at(K, HERE)))
    accept(For(K, 8, at(const(0), Load(Y, const(0)) + HERE), kind="reduction"))
    accept(For(ROW, 2, For(J, 4, at(ROW * 4 + J, Load(Y, ROW * 4 + J) + 1.0), kind="independent"), kind="independent"))
    accept(For(K, 8, at(K, Broadcast(ONE, 4)), step=4, kind="independent"))
    accept(For(J, 2, For(K, 4, Block((at(K + 4 * J), at(K + 4 * J, ONE))), kind="independent")))
    accept(For(ROW, 2, Block((For(J, 4, at(ROW * 4 + J)), For(J, 1, at(ROW * 4 + J)))), kind="independent"))
    fill = For(J, 4, Store(SCRATCH, J, Load(X, K * 4 + J)))
    both = For(K, 2, Block((fill, at(K, Load(SCRATCH, const(3))))), kind="independent")
    verify(Kernel(name="k", inputs=(X,), outputs=(Y,), body=both, stack=(SCRATCH,)))
    unread = For(K, 8, Block((Store(SCRATCH, const(0), HERE), at(K))), kind="independent")
    verify(Kernel(name="k", inputs=(X,), outputs=(Y,), body=unread, stack=(SCRATCH,)))


TURNED = (K * 2 + J) // 4 * 4 + K % 2 * 2 + J
"""Rows of 2 in 2 columns."""


@pytest.mark.parametrize(
    "index",
    [
        TURNED,
        K // 2 + K % 2 * 4 + J * 2,
        (K * 2 + J) // 4 * 4 + (K * 2 + J) % 4,
        (K * 2 + J) // 2 % 2 * 4 + (K * 2 + J) // 4 + (K * 2 + J) % 2 * 2,
    ],
)
def test_digits_tell_iterations_apart(index: Expr) -> None:
    accept(For(K, 4, For(J, 2, at(index), kind="independent"), kind="independent"))


@pytest.mark.parametrize("index", [K // 2 * 2 + J, K // 2 * 2 + K % 2 + J, (K * 2 + J) // 3 * 3 + K % 2 + J, K % 4 + J])
def test_digits_that_meet(index: Expr) -> None:
    refuse(For(K, 4, For(J, 2, at(index)), kind="independent"), "same elements of y")


def test_places_of_few_iterations_are_compared_one_by_one() -> None:
    turned = (K + 2) // 4 * 4 + (K // 2 + 1) % 2 * 2 + K % 2  # K + 2, as digits of a position further on
    accept(For(K, 6, Store(Y, turned, ONE), kind="independent"))
    refuse(For(K, 6, Store(Y, turned // 2, ONE), kind="independent"), "same elements of y")


def test_loops_that_count_with_one_variable() -> None:
    long_first = Block((For(J, 5, at(ROW * 3 + J)), For(J, 1, at(ROW * 3 + J))))
    refuse(For(ROW, 2, long_first, kind="independent"), "same elements of y")


def test_what_may_be_in_range_is_accepted() -> None:
    accept(For(K, 9, If(K < 8, at(K))))
    accept(For(K, 9, at(K % 8, Select(K < 8, Load(X, K), ONE))))
    accept(For(K, 7, at(K, Broadcast(ONE, 4)), step=4))
    accept(For(K, 0, at(K + 100)))
    accept(Block((Declare(R, ONE), For(K, 8, Assign(R, R + 1.0)), at(const(0), R))))
    accept(Block((For(K, 8, at(K)), For(K, 8, at(K)))))


def test_all_problems_are_reported() -> None:
    with pytest.raises(AotcError) as caught:
        verify(Kernel(name="k", inputs=(X, X), outputs=(OTHER,), body=Block((at(const(0)), Store(X, const(0), ONE)))))
    messages = " ".join(d.message for d in caught.value.diagnostics)
    assert "declared twice" in messages
    assert "y is not declared" in messages
    assert "x is written" in messages


def test_buffers_stand_where_their_scope_says() -> None:
    with pytest.raises(AotcError, match="of scope param stands as stack"):
        verify(Kernel(name="k", inputs=(), outputs=(Y,), body=at(const(0)), stack=(X,)))
    with pytest.raises(AotcError, match="no output 0 or input 3"):
        verify(Kernel(name="k", inputs=(), outputs=(Y,), body=at(const(0)), inplace=((0, 3),)))
