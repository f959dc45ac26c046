# SPDX-License-Identifier: Apache-2.0
"""What the blocks and threads of a device are to each other.

In: a loop over blocks, or over threads, and the ranges of the variables around it.  Out: what is wrong with its kind.

    for b in 0..4 block: for t in 0..256 thread: for n in 256 * b + t..9999 step 1024: y[n] = x[n]    # None
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import replace
from itertools import combinations
from typing import Final

from aotc.tir.expr import INDEX, Binary, Buffer, Const, Expr, Var
from aotc.tir.loops.counted import are_counted_apart
from aotc.tir.loops.dependence import (
    Accesses,
    Ranges,
    collect,
    differ,
    disjoint,
    inside,
    loads,
    range_of,
    read,
    written,
)
from aotc.tir.loops.digits import Access
from aotc.tir.loops.phases import Phases
from aotc.tir.simplify import Linear, conjuncts, half_space, linear
from aotc.tir.stmt import Block, For, If, Stmt, stmt_children

_OPPOSITES: Final = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


def why_not_at_once(loop: For, ranges: Ranges, fixed: Iterable[Var], own: Container[Buffer]) -> str | None:
    """What speaks against running all iterations of a loop over blocks or threads at once; None if nothing does.

    ranges   of the variables around it, as far as they are known
    fixed    all variables around it
    own      memory of which each iteration has its own, or that nothing reads
    """
    phases = Phases.of(loop, inside([loop], ranges), own)
    ranges, fixed = phases.ranges, {*fixed, *phases.rounds}
    for phase in phases.found:
        accesses: Accesses = {buffer: [] for buffer in written(phase) if buffer not in own}
        collect(phase, ranges, accesses, closely=True)
        for buffer, found in accesses.items():
            apart = differ(found, loop, fixed) or _are_dealt_out(buffer, replace(loop, body=phase), ranges, fixed)
            if not apart and not are_counted_apart(buffer, phase, loop, ranges, fixed):
                return f"iterations may touch the same elements of {buffer.name}"
    return phases.problem


def _are_dealt_out(buffer: Buffer, loop: For, ranges: Ranges, fixed: Container[Var]) -> bool:
    """Whether loops inside deal out iterations with places of their own: `for n in 256 * b + t..9999 step 1024`.

    Each loop tells by the value of its variable which iteration of `loop` has it, and by a place which value uses it.
    """
    parts: list[list[Access]] = []
    stack: list[tuple[Stmt, Ranges]] = [(loop.body, ranges)]
    while stack:
        stmt, known = stack.pop()
        if buffer not in written(stmt) | read(stmt):
            continue
        if any(load.buffer is buffer for load in loads(stmt)):
            return False
        match stmt:
            case For(step=step) if step > 1:
                low, high = range_of(stmt, known)
                if high == math.inf:
                    return False
                turn = Var(stmt.var.name)
                counter = linear(stmt.begin, known).plus(Linear({turn: step}))
                turns = {**known, turn: (0, (high - low) // step)}
                found: Accesses = {buffer: []}
                collect(stmt.body, {**known, stmt.var: (low, high)}, found, closely=True)
                values = _within(replace(stmt, step=1), {stmt.var: (low, high)})
                told = differ([Access(counter, 1, turns, {})], _within(loop, known), fixed)
                if not (told and differ(found[buffer], values, fixed)):
                    return False
                parts.append(found[buffer])
            case For():
                stack.append((stmt.body, inside([stmt], known)))
            case If():
                stack += [(s, _narrowed(known, stmt.cond, s is stmt.then)) for s in stmt_children(stmt)]
            case Block():
                stack += [(s, known) for s in stmt.stmts]
            case _:
                return False
    return all(disjoint(a, b) for a, b in combinations(parts, 2))


def _within(loop: For, ranges: Ranges) -> For:
    """A loop over the range of its variable, if that is finite."""
    low, high = ranges[loop.var]
    finite = -math.inf < low and high < math.inf
    return replace(loop, begin=Const(int(low), INDEX), end=Const(int(high) + 1, INDEX)) if finite else loop


def _narrowed(ranges: Ranges, cond: Expr, holds: bool) -> Ranges:
    """The ranges of variables where a condition holds, or does not."""
    if not holds:
        match cond:
            case Binary(op="lt" | "le" | "gt" | "ge" as op):
                cond = Binary(_OPPOSITES[op], cond.a, cond.b)
            case _:
                return ranges
    for half in filter(None, (half_space(part, ranges) for part in conjuncts(cond))):
        for var, factor in half.terms.items():
            if len(half.terms) == 1 and isinstance(var, Var) and var in ranges:
                low, high = ranges[var]
                edge = -(half.const // factor) if factor > 0 else half.const // -factor
                ranges = {**ranges, var: (max(low, edge), high) if factor > 0 else (low, min(high, edge))}
    return ranges
