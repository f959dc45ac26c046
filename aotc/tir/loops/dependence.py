# SPDX-License-Identifier: Apache-2.0
"""Whether the iterations of a loop may run in any order, or side by side.  A For in, a verdict out.

independent(for i in 0..n: y[i] = x[i] * 2)               # True
independent(for i in 1..n: y[i] = y[i - 1])               # False
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aotc.tir.expr import Binary, Buffer, Expr, Load, walk
from aotc.tir.simplify import linear
from aotc.tir.stmt import Assign, Block, Comment, Declare, For, Stmt, Store, stmt_exprs

ASSOCIATIVE = frozenset({"add", "mul", "min", "max", "and", "or"})
"""Operations that a loop may accumulate with."""


def straight_line(loop: For) -> tuple[Stmt, ...] | None:
    """The statements of an innermost loop without branches; None for another."""
    stmts = loop.body.stmts if isinstance(loop.body, Block) else (loop.body,)
    return stmts if all(isinstance(s, (Store, Declare, Assign, Comment)) for s in stmts) else None


def accumulations(loop: For) -> list[Assign]:
    """The assignments to registers that live on after an iteration."""
    stmts = straight_line(loop) or ()
    inside = {s.var for s in stmts if isinstance(s, Declare)}
    return [s for s in stmts if isinstance(s, Assign) and s.var not in inside]


def accumulates(stmt: Assign, loop: For) -> bool:
    """Whether a statement is `r = r op value`, and nothing else in the loop touches r."""
    value = stmt.value
    if not (isinstance(value, Binary) and value.op in ASSOCIATIVE and stmt.var in (value.a, value.b)):
        return False
    stmts = straight_line(loop) or ()
    reads = sum(n is stmt.var for s in stmts for e in stmt_exprs(s) for n in walk(e))
    return reads == 1 and sum(isinstance(s, (Assign, Declare)) and s.var is stmt.var for s in stmts) == 1


def stores_independent(loop: For) -> bool:
    """Whether each iteration of a straight-line loop stores elsewhere, and reads what is stored only there."""
    stmts = straight_line(loop)
    if stmts is None:
        return False
    changing = {s.var for s in stmts if isinstance(s, (Declare, Assign))}
    places: dict[Buffer, Expr] = {}
    for stmt in stmts:
        if isinstance(stmt, Store):
            factor = linear(stmt.index, {}).coefficient(loop.var)
            if not factor or places.setdefault(stmt.buffer, stmt.index) != stmt.index:
                return False
            if stmt.value.lanes > abs(factor) * loop.step:
                return False
            if any(isinstance(n, Load) or n in changing for n in walk(stmt.index)):
                return False
    return all(load.lanes == 1 and places[load.buffer] == load.index for load in loads(stmts) if load.buffer in places)


def independent(loop: For) -> bool:
    """Whether the iterations of an innermost loop without branches can run in any order."""
    return straight_line(loop) is not None and not accumulations(loop) and stores_independent(loop)


def loads(stmts: Sequence[Stmt]) -> Iterator[Load]:
    """Every load directly in the statements."""
    for stmt in stmts:
        for expr in stmt_exprs(stmt):
            yield from (n for n in walk(expr) if isinstance(n, Load))
