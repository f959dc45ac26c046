# SPDX-License-Identifier: Apache-2.0
"""Reductions as loop nests.  A stage whose anchor is a te.Reduce in, a statement out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aotc.ir.dtype import DType
from aotc.tir import te
from aotc.tir.expr import Expr, Var, binary, const
from aotc.tir.schedule.stages import Stage
from aotc.tir.stmt import Assign, Block, Declare, If, Stmt, loops

if TYPE_CHECKING:
    from aotc.tir.schedule.lower import Lowering

_COMBINE = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "and": "and", "or": "or"}


def identity(combiner: str, dtype: DType) -> Expr:
    """The value that changes nothing when combined: what a reduction over nothing gives."""
    match combiner:
        case "sum" | "or":
            return const(0, dtype)
        case "prod":
            return const(1, dtype)
        case "and":
            return const(-1 if dtype.is_integer and dtype.is_signed else dtype.max, dtype)
        case "min":
            return const(math.inf if dtype.is_float else dtype.max, dtype)
        case _:
            return const(-math.inf if dtype.is_float else dtype.min, dtype)


def reduce_nest(lowering: Lowering, stage: Stage, depth: int) -> Stmt:
    """The statement that computes a reduction's stage inside its outer `depth` loops."""
    anchor = stage.anchor
    if not isinstance(anchor, te.Reduce):
        raise TypeError(f"{anchor.name} is not a reduction")
    acc = Var(anchor.name, anchor.dtype)
    body = lowering.body(stage)
    value = body.expr(anchor.body, {})
    update: Stmt = Block((*body.statements, Assign(acc, binary(_COMBINE[anchor.combiner], acc, value))))
    if anchor.guard is not None:
        body = lowering.body(stage)
        guard = body.expr(anchor.guard, {})
        update = Block((*body.statements, If(guard, update)))
    nest = Block(
        (
            Declare(acc, identity(anchor.combiner, anchor.dtype)),
            loops(anchor.reduce_axes, update),
            lowering.finish(stage, acc),
        )
    )
    return loops(stage.axes[depth:], nest)
