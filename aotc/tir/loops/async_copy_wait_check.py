# SPDX-License-Identifier: Apache-2.0
"""Check that memory filled by asynchronous copies (cp.async) is read only after the thread has
waited for the copy, and a barrier.

Input: the statements of a thread. Output: the first error, or None:

    xs[4 * t] = copy_async(x[4 * t:4])  wait 0  sync  y[t] = xs[255 - t]    # None; without either, xs is read too early
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from aotc.tir import (
    INDEX,
    Buffer,
    Const,
    Expr,
    Interval,
    Var,
    assigned_registers,
    bounds,
    constant_trip_count,
    ranges_inside_loops,
)
from aotc.tir.loops.loop_dependence import direct_accesses
from aotc.tir.stmt import GPU_LOOP_KINDS, Block, Declare, Execute, For, If, Stmt, Store, While, direct_child_stmts

#: A buffer, with the indices of the first and last element of an access.
_AccessRange: TypeAlias = tuple[Buffer, float, float]
#: For each destination of an unfinished copy, the number of groups that were ended since the latest
#: copy to it began.
_CopyAges: TypeAlias = Mapping[_AccessRange, float]
#: Age of a copy that this thread has waited for, which is not yet visible to the other threads of
#: the block.
_AWAITED_COPY_AGE: Final = math.inf


def async_copy_violation(stmt: Stmt) -> str | None:
    """Return an error message if memory is read or overwritten before an asynchronous copy to it is
    complete; None if not.
    """
    copies = _AsyncCopyTracker(assigned_registers(stmt))
    copies.copy_ages_after_stmt(stmt, {})
    return copies.problem


@dataclass(slots=True)
class _AsyncCopyTracker:
    """Walks the statements of a GPU thread and tracks the asynchronous copies in flight.

    changing   registers that are assigned to after their declaration
    problem    the first error
    ranges     the ranges of variables
    """

    changing: frozenset[Var]
    problem: str | None = None
    ranges: dict[Var, Interval] = field(default_factory=dict)

    def access_range(self, buffer: Buffer, index: Expr, lanes: int) -> _AccessRange:
        """Return the buffer, with the first and last element that an access of `lanes` elements can
        reach.
        """
        low, high = bounds(index, self.ranges)
        return buffer, low, high + lanes - 1

    def copy_ages_after_stmt(self, stmt: Stmt, ages: _CopyAges) -> _CopyAges:
        """Return the state of the asynchronous copies in flight after a statement, given that
        before it.

        Set `problem` if the statement accesses memory to which a copy is in flight.
        """
        for buffer, index, elements in direct_accesses(stmt, stores=False):
            if any(_may_overlap(self.access_range(buffer, index, elements), other) for other in ages):
                self.problem = self.problem or f"{buffer.name} is read before an asynchronous copy to it is complete"
        match stmt:
            case Store() | Execute():
                return self.copy_ages_after_instruction(stmt, self.copy_ages_after_store(stmt, ages))
            case Declare(var=var, value=value) if var.dtype == INDEX and var not in self.changing:
                self.ranges[var] = bounds(value, self.ranges)
            case Block():
                for inner in stmt.stmts:
                    ages = self.copy_ages_after_stmt(inner, ages)
                return ages
            case If():
                ends = [self.copy_ages_after_stmt(s, ages) for s in direct_child_stmts(stmt)]
                return _merge_copy_ages(*ends, *([] if stmt.orelse is not None else [ages]))
            case For(kind=kind, body=body) if kind in GPU_LOOP_KINDS:
                self.ranges |= ranges_inside_loops([stmt], self.ranges)
                return self.copy_ages_after_stmt(body, {})
            case For() | While():
                self.ranges |= ranges_inside_loops([stmt], self.ranges) if isinstance(stmt, For) else {}
                return self.copy_ages_after_loop(stmt, ages)
        return ages

    def copy_ages_after_instruction(self, stmt: Store | Execute, ages: _CopyAges) -> _CopyAges:
        """Return the state of the asynchronous copies in flight after the thread has waited for
        copies, or for the other threads.
        """
        if not isinstance(stmt, Execute):
            return ages
        if stmt.effects.awaits_copies:
            (groups,) = stmt.operands
            pending = groups.value if isinstance(groups, Const) else math.inf
            return {b: age + 1 if age < pending else _AWAITED_COPY_AGE for b, age in ages.items()}
        return {b: age for b, age in ages.items() if not (stmt.effects.barrier and age == _AWAITED_COPY_AGE)}

    def copy_ages_after_store(self, stmt: Store | Execute, ages: _CopyAges) -> _CopyAges:
        """Return the state of the asynchronous copies in flight after a store; an asynchronous
        store begins a copy.

        Set `problem` if a copy to the stored elements is in flight.
        """
        begins = isinstance(stmt, Execute) and stmt.effects.asynchronous
        for buffer, index, elements in direct_accesses(stmt, reads=False):
            place = self.access_range(buffer, index, elements)
            if any(age >= (1 if begins else 0) and _may_overlap(place, other) for other, age in ages.items()):
                self.problem = self.problem or f"{buffer.name} is written before an asynchronous copy to it is complete"
            ages = {**ages, place: 0} if begins else ages
        return ages

    def copy_ages_after_loop(self, loop: For | While, ages: _CopyAges) -> _CopyAges:
        """Return the state of the asynchronous copies in flight after a loop: iterate its body
        until a fixpoint is reached.
        """
        while True:
            end = self.copy_ages_after_stmt(loop.body, ages)
            begin = _merge_copy_ages(ages, end)
            if begin == ages:
                return end if isinstance(loop, For) and constant_trip_count(loop) else begin
            ages = begin


def _may_overlap(a: _AccessRange, b: _AccessRange) -> bool:
    """Return True if two ranges of elements of buffers may overlap."""
    return a[0] is b[0] and a[1] <= b[2] and b[1] <= a[2]


def _merge_copy_ages(*ends: _CopyAges) -> _CopyAges:
    """Merge the states of asynchronous copies at a join of control flow: the smallest age of each
    copy.
    """
    return {place: min(end[place] for end in ends if place in end) for end in ends for place in end}
