# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a contraction's definition: one scalar accumulator, no tiling."""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir import frozen
from aotc.tir import Buffer, Expr, Load, Var, all_of, cast, const, select, te
from aotc.tir.stmt import Assign, Block, Declare, If, Stmt, loop_nest

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


def accumulate_all_products(contraction: te.Contraction, a: Buffer, b: Buffer, accumulator: Var) -> Stmt:
    """Return the reduction loops that add all products of one output element to the register
    `accumulator`.

    Products with indices out of range are skipped, or use `contraction.fill` as the data if that is
    not 0.
    """
    places = [
        *zip(contraction.a_index, contraction.a.shape, strict=True),
        *zip(contraction.b_index, contraction.b.shape, strict=True),
    ]
    inside = all_of(*(test for index, extent in places for test in (index >= 0, index < extent)))
    left = cast(Load(a, te.flat_index(contraction.a.shape, contraction.a_index)), contraction.dtype)
    right = cast(Load(b, te.flat_index(contraction.b.shape, contraction.b_index)), contraction.dtype)
    left = select(inside, left, contraction.fill) if contraction.fill else left
    update: Stmt = Assign(accumulator, accumulator + left * right)
    update = update if contraction.fill else If(inside, update)
    return loop_nest(contraction.reduce_axes, update, kind="reduction")


def build_untiled_contraction(contraction: te.Contraction, a: Buffer, b: Buffer, store: StoreFn) -> ContractionNest:
    """Return the nest of loops over the output axes, with one scalar accumulator for each element."""
    acc = Var("acc", contraction.dtype)
    finish = store(tuple(var for var, _ in contraction.axes), acc)
    body = Block((Declare(acc, const(0, contraction.dtype)), accumulate_all_products(contraction, a, b, acc), finish))
    return ContractionNest(loop_nest(contraction.axes, body, "independent"))
