# SPDX-License-Identifier: Apache-2.0
"""Expressions with shared subexpressions: work grows with the number of nodes, not with the expanded tree.

`chain(n)` has n objects, and the tree that it stands for has 2^n leaves.  Calls of functions are counted: twice the
length may take eight times as many (the dtype of an object is that of its operands, which is asked for at each level),
where a walk over the tree would take 256 times as many.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotc.ir.dtype import DType
from aotc.tir.expr import (
    INDEX,
    Buffer,
    Expr,
    Load,
    Var,
    binary,
    cast,
    loads_in,
    select,
    substitute,
    vars_and_buffers_in,
    walk,
)
from aotc.tir.expr_occurrences import occurrences
from aotc.tir.functions.fma_contraction import contract_to_fma
from aotc.tir.loops.loop_kind_proof import why_loop_kind_unproven
from aotc.tir.loops.statement_vectorization import vectorize_stmt_or_none
from aotc.tir.simplify import bounds, linear_form, simplify
from aotc.tir.stmt import Assign, Block, Declare, For, Stmt, Store
from tests.call_counts import calls_of

I32 = DType("int32")
X, Y = Buffer("x", I32, 64), Buffer("y", I32, 64)
LANES = 16


def is_polynomial(prepare: Callable[[int], Callable[[], object]], length: int = 8) -> bool:
    prepare(length)()  # what is looked up once
    return calls_of(prepare(2 * length)) <= 8 * calls_of(prepare(length))


def chain(length: int, first: Expr) -> Expr:
    """first^(2^length), each square an object that is used twice."""
    for _ in range(length):
        first = first * first
    return first


def index_chain(length: int) -> Expr:
    return cast(chain(length, Load(X, Var("i"))), INDEX) + chain(length, Var("j")) * 4


WALKS: dict[str, Callable[[Expr], object]] = {
    "simplify": lambda e: simplify(e, {}),
    "linear": lambda e: linear_form(e, {}).coefficient(Var("k")),
    "bounds": lambda e: bounds(e, {}),
    "substitute": lambda e: substitute(e, {Var("k"): Var("l")}),
    "mentioned": lambda e: list(vars_and_buffers_in(e)),
    "loads_in": lambda e: list(loads_in(e)),
    "hash": hash,
    "occurrences": occurrences,
    "fused multiply-adds": contract_to_fma,
}


@pytest.mark.parametrize("name", WALKS)
def test_shared_parts_are_visited_once(name: str) -> None:
    def prepare(length: int) -> Callable[[], object]:
        made = index_chain(length)
        return lambda: WALKS[name](made)

    assert is_polynomial(prepare)


def squares(length: int, last: Callable[[Expr], Expr]) -> Callable[[], object]:
    """Vectors of a loop's body in which each register is the square of the one before."""
    lane, stmts = Var("lane"), list[Stmt]()
    value: Expr = Load(X, lane)
    for _ in range(length):
        register = Var("r", I32)
        stmts.append(Declare(register, value * value))
        value = register
    stmts.append(Store(Y, lane, last(value)))
    return lambda: vectorize_stmt_or_none(Block(tuple(stmts)), lane, LANES, {}, may_scalarize=True)


LAST: dict[str, Callable[[Expr], Expr]] = {
    "a number that indices are made of": lambda e: cast(cast(e, INDEX), "int32"),
    "a place that data gives": lambda e: Load(X, cast(e, INDEX)),
    "a condition": lambda e: select(e < 3, Load(X, cast(e, INDEX)), e),
}


@pytest.mark.parametrize("last", LAST)
def test_registers_that_are_written_out_are_visited_once(last: str) -> None:
    assert is_polynomial(lambda length: squares(length, LAST[last]))


def test_results_share_what_their_sources_share() -> None:
    """What is made of one object is one object again, so that the next walk stays short."""
    k, made = Var("k"), substitute(chain(3, Load(X, Var("i"))), {})
    assert made is substitute(made, {k: k})
    fresh = substitute(chain(3, Load(X, k)), {k: Var("l")})
    assert fresh.a is fresh.b
    simple = simplify(chain(3, Load(X, binary("add", k, 0) + k - k)), {})
    assert simple.a is simple.b


def test_occurrences_are_those_of_the_tree() -> None:
    """An object with two users occurs twice as often as each of them, and users come first."""
    i = Var("i")
    square = Load(X, i) * Load(X, i)
    expr = chain(2, square)
    counts = {id(node): times for node, times in occurrences(expr)}
    assert counts[id(expr)] == 1 and counts[id(square)] == 4 and counts[id(i)] == 8
    assert sum(counts.values()) == len(list(walk(expr)))
    order = [node for node, _ in occurrences(expr)]
    assert order[0] is expr and order[-1] is i


def test_each_use_of_a_shared_register_counts() -> None:
    """A sum that reads its register twice is no reduction, though both reads are one object."""
    total, i = Var("total", I32), Var("i")
    once = For(i, 8, Assign(total, total + Load(X, i)), kind="reduction")
    twice = For(i, 8, Assign(total, total + total * Load(X, i)), kind="reduction")
    assert why_loop_kind_unproven(once, {}, ()) is None
    assert why_loop_kind_unproven(twice, {}, ()) is not None
