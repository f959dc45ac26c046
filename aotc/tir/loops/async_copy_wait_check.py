# SPDX-License-Identifier: Apache-2.0
"""Check that memory filled by asynchronous copies (cp.async) is read only after the thread has
waited for the copy, and a barrier.

Input: the statements of a thread. Output: the first error, or None:

    xs[4 * t] = copy_async(x[4 * t:4])  wait 0  sync  y[t] = xs[255 - t]    # None; without either, xs is read too early
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from aotc.tir import INDEX, Buffer, Const, Expr, Var, assigned_registers, constant_trip_count
from aotc.tir.loops.access_collection import ContextLinearizer
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.loop_dependence import direct_accesses, written_buffers
from aotc.tir.stmt import GPU_LOOP_KINDS, Block, Declare, Execute, For, If, Stmt, Store, While, direct_child_stmts

#: The loops and index registers around an access, the outermost first.
_Context: TypeAlias = "tuple[For | Declare, ...]"
#: A buffer, the index of the first element and the number of elements of an access, and its context.
_Place: TypeAlias = "tuple[Buffer, Expr, int, _Context]"
#: For each destination of an unfinished copy, the number of groups that were ended since the latest
#: copy to it began.
_CopyAges: TypeAlias = Mapping[_Place, float]
#: Age of a copy that this thread has waited for, which is not yet visible to the other threads of
#: the block.
_AWAITED_COPY_AGE: Final = math.inf


def async_copy_violation(stmt: Stmt) -> str | None:
    """Return an error message if memory is read or overwritten before an asynchronous copy to it is
    complete; None if not.
    """
    copies = _AsyncCopyTracker(assigned_registers(stmt) | written_buffers(stmt))
    copies.copy_ages_after_stmt(stmt, {}, ())
    return copies.problem


@dataclass(slots=True)
class _AsyncCopyTracker:
    """Walks the statements of a GPU thread and tracks the asynchronous copies in flight.

    changing    registers that are assigned to after their declaration, and buffers that are written
    problem     the first error
    relations   the access relation of each place
    overlaps    pairs of places, and if they may have a common element
    """

    changing: frozenset[Var | Buffer]
    problem: str | None = None
    relations: dict[_Place, AccessRelation] = field(default_factory=dict)
    overlaps: dict[tuple[_Place, _Place], bool] = field(default_factory=dict)

    def may_overlap(self, a: _Place, b: _Place) -> bool:
        """Return True if two accesses may have a common element, in any two iterations and threads."""
        if a[0] is not b[0]:
            return False
        if (a, b) not in self.overlaps:
            self.overlaps[a, b] = not self.relation_of_place(a).is_disjoint_from(self.relation_of_place(b))
        return self.overlaps[a, b]

    def relation_of_place(self, place: _Place) -> AccessRelation:
        """Return the elements that an access reaches, as if all of them were written."""
        if place not in self.relations:
            _, index, lanes, context = place
            access = ContextLinearizer.from_context(context, {}, self.changing).load_at_index(index, lanes)
            self.relations[place] = AccessRelation([replace(access, is_write=True)])
        return self.relations[place]

    def copy_ages_after_stmt(self, stmt: Stmt, ages: _CopyAges, context: _Context) -> _CopyAges:
        """Return the state of the asynchronous copies in flight after a statement, given that
        before it, and the loops and index registers around it.

        Set `problem` if the statement accesses memory to which a copy is in flight.
        """
        for access in direct_accesses(stmt, stores=False):
            if any(self.may_overlap((*access, context), other) for other in ages):
                self.problem = self.problem or f"{access[0].name} is read before an asynchronous copy to it is complete"
        match stmt:
            case Store() | Execute():
                return self.copy_ages_after_instruction(stmt, self.copy_ages_after_store(stmt, ages, context))
            case Block():
                for inner in stmt.stmts:
                    ages = self.copy_ages_after_stmt(inner, ages, context)
                    if isinstance(inner, Declare) and inner.var.dtype == INDEX and inner.var not in self.changing:
                        context = (*context, inner)
                return ages
            case If():
                ends = [self.copy_ages_after_stmt(s, ages, context) for s in direct_child_stmts(stmt)]
                return _merge_copy_ages(*ends, *([] if stmt.orelse is not None else [ages]))
            case For(kind=kind, body=body) if kind in GPU_LOOP_KINDS:
                return self.copy_ages_after_stmt(body, {}, (*context, stmt))
            case For() | While():
                return self.copy_ages_after_loop(stmt, ages, (*context, stmt) if isinstance(stmt, For) else context)
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

    def copy_ages_after_store(self, stmt: Store | Execute, ages: _CopyAges, context: _Context) -> _CopyAges:
        """Return the state of the asynchronous copies in flight after a store; an asynchronous
        store begins a copy.

        Set `problem` if a copy to the stored elements is in flight.
        """
        begins = isinstance(stmt, Execute) and stmt.effects.asynchronous
        for access in direct_accesses(stmt, reads=False):
            place = (*access, context)
            if any(age >= (1 if begins else 0) and self.may_overlap(place, other) for other, age in ages.items()):
                self.problem = (
                    self.problem or f"{access[0].name} is written before an asynchronous copy to it is complete"
                )
            ages = {**ages, place: 0} if begins else ages
        return ages

    def copy_ages_after_loop(self, loop: For | While, ages: _CopyAges, context: _Context) -> _CopyAges:
        """Return the state of the asynchronous copies in flight after a loop: iterate its body
        until a fixpoint is reached.
        """
        while True:
            end = self.copy_ages_after_stmt(loop.body, ages, context)
            begin = _merge_copy_ages(ages, end)
            if begin == ages:
                return end if isinstance(loop, For) and constant_trip_count(loop) else begin
            ages = begin


def _merge_copy_ages(*ends: _CopyAges) -> _CopyAges:
    """Merge the states of asynchronous copies at a join of control flow: the smallest age of each
    copy.
    """
    return {place: min(end[place] for end in ends if place in end) for end in ends for place in end}
