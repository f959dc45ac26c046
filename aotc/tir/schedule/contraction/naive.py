# SPDX-License-Identifier: Apache-2.0
"""A contraction as the plain loop nest of its definition."""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir import frozen
from aotc.tir import Buffer, Expr, Load, Var, all_of, cast, const, select, te
from aotc.tir.stmt import Assign, Block, Declare, If, Stmt, loops

StoreFn = Callable[[tuple[Expr, ...], Expr], Stmt]


@frozen
class ContractionNest:
    """The statement and the buffers it needs."""

    stmt: Stmt
    stack: tuple[Buffer, ...] = ()
    workspace: tuple[Buffer, ...] = ()
    shared: tuple[Buffer, ...] = ()


def build_contraction(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn) -> ContractionNest:
    """One scalar accumulator for each output element."""
    acc = Var("acc", c.dtype)
    inside = all_of(*(t for i, n in zip(c.a_index, c.a.shape, strict=True) for t in (i >= 0, i < n)))
    left = cast(Load(a, te.flat_index(c.a.shape, c.a_index)), c.dtype)
    right = cast(Load(b, te.flat_index(c.b.shape, c.b_index)), c.dtype)
    left = select(inside, left, c.fill) if c.fill else left
    update: Stmt = Assign(acc, acc + left * right)
    update = update if c.fill else If(inside, update)
    finish = store(tuple(var for var, _ in c.axes), acc)
    body = Block((Declare(acc, const(0, c.dtype)), loops(c.reduce_axes, update, kind="reduction"), finish))
    return ContractionNest(loops(c.axes, body, "independent"))
