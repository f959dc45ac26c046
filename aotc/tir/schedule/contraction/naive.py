# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a contraction's definition: one scalar accumulator, no tiling."""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir import frozen
from aotc.tir import Buffer, Expr, Load, Var, all_of, cast, const, select, te
from aotc.tir.stmt import Assign, Block, Declare, If, Stmt, loops

StoreFn = Callable[[tuple[Expr, ...], Expr], Stmt]


@frozen
class ContractionNest:
    """The statements of a contraction, with the stack, workspace and shared-memory buffers that
    they need.
    """

    stmt: Stmt
    stack: tuple[Buffer, ...] = ()
    workspace: tuple[Buffer, ...] = ()
    shared: tuple[Buffer, ...] = ()


def products(c: te.Contraction, a: Buffer, b: Buffer, acc: Var) -> Stmt:
    """Return the reduction loops that add all products of one output element to the register `acc`.

    Products with indices out of range are skipped, or use `c.fill` as the data if that is not 0.
    """
    places = [*zip(c.a_index, c.a.shape, strict=True), *zip(c.b_index, c.b.shape, strict=True)]
    inside = all_of(*(test for index, extent in places for test in (index >= 0, index < extent)))
    left = cast(Load(a, te.flat_index(c.a.shape, c.a_index)), c.dtype)
    right = cast(Load(b, te.flat_index(c.b.shape, c.b_index)), c.dtype)
    left = select(inside, left, c.fill) if c.fill else left
    update: Stmt = Assign(acc, acc + left * right)
    update = update if c.fill else If(inside, update)
    return loops(c.reduce_axes, update, kind="reduction")


def build_contraction(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn) -> ContractionNest:
    """Return the nest of loops over the output axes, with one scalar accumulator for each element."""
    acc = Var("acc", c.dtype)
    finish = store(tuple(var for var, _ in c.axes), acc)
    body = Block((Declare(acc, const(0, c.dtype)), products(c, a, b, acc), finish))
    return ContractionNest(loops(c.axes, body, "independent"))
