# SPDX-License-Identifier: Apache-2.0
"""Check that memory filled by asynchronous copies (cp.async) is read only after a `Wait` for the
copy and a `Sync`.

Input: the statements of a thread. Output: the first error, or None:

    xs[4 * t] = async x[4 * t:4]  wait 0  sync  y[t] = xs[255 - t]    # None; without either, xs is read too early
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from aotc.tir import INDEX, Buffer, Expr, Interval, Var, assigned, bounds, extent_of, inside, loads
from aotc.tir.stmt import LAUNCHED, Block, Declare, For, If, Intrinsic, Stmt, Store, Sync, Wait, While, stmt_children

#: A buffer, with the indices of the first and last element of an access.
_Place: TypeAlias = tuple[Buffer, float, float]
#: For each destination of an unfinished copy, the number of `Wait` statements since the latest copy
#: to it began.
_Ages: TypeAlias = Mapping[_Place, float]
#: Age of a copy that this thread has waited for, which is not yet visible to the other threads of
#: the block.
_LANDED: Final = math.inf


def why_not_landed(stmt: Stmt) -> str | None:
    """Return an error message if memory is read or overwritten before an asynchronous copy to it is
    complete; None if not.
    """
    copies = _Copies(assigned(stmt))
    copies.after(stmt, {})
    return copies.problem


@dataclass(slots=True)
class _Copies:
    """Walks the statements of a GPU thread and tracks the asynchronous copies in flight.

    changing   registers that are assigned to after their declaration
    problem    the first error
    ranges     the ranges of variables
    """

    changing: frozenset[Var]
    problem: str | None = None
    ranges: dict[Var, Interval] = field(default_factory=dict)

    def place(self, buffer: Buffer, index: Expr, lanes: int) -> _Place:
        """Return the buffer, with the first and last element that an access of `lanes` elements can
        reach.
        """
        low, high = bounds(index, self.ranges)
        return buffer, low, high + lanes - 1

    def after(self, stmt: Stmt, ages: _Ages) -> _Ages:
        """Return the state of the asynchronous copies in flight after a statement, given that
        before it.

        Set `problem` if the statement accesses memory to which a copy is in flight.
        """
        for load in loads(stmt):
            if any(_meet(self.place(load.buffer, *load.span), other) for other in ages):
                self.problem = self.problem or f"{load.buffer.name} is read before what is copied there has landed"
        match stmt:
            case Store() | Intrinsic():
                return self.stored(stmt, ages)
            case Declare(var=var, value=value) if var.dtype == INDEX and var not in self.changing:
                self.ranges[var] = bounds(value, self.ranges)
            case Wait(groups=groups):
                return {b: age + 1 if age < groups else _LANDED for b, age in ages.items()}
            case Sync():
                return {b: age for b, age in ages.items() if age < _LANDED}
            case Block():
                for inner in stmt.stmts:
                    ages = self.after(inner, ages)
                return ages
            case If():
                ends = [self.after(s, ages) for s in stmt_children(stmt)]
                return _earliest(*ends, *([] if stmt.orelse is not None else [ages]))
            case For(kind=kind, body=body) if kind in LAUNCHED:
                self.ranges |= inside([stmt], self.ranges)
                return self.after(body, {})
            case For() | While():
                self.ranges |= inside([stmt], self.ranges) if isinstance(stmt, For) else {}
                return self.rounds(stmt, ages)
        return ages

    def stored(self, stmt: Store | Intrinsic, ages: _Ages) -> _Ages:
        """Return the state of the asynchronous copies in flight after a store; an asynchronous
        store begins a copy.

        Set `problem` if a copy to the stored elements is in flight.
        """
        begins = isinstance(stmt, Store) and stmt.asynchronous
        lanes = stmt.value.lanes if isinstance(stmt, Store) else (stmt.size - 1) * stmt.stride + stmt.size
        place = self.place(stmt.buffer, stmt.index, lanes)
        if any(age >= (1 if begins else 0) and _meet(place, other) for other, age in ages.items()):
            self.problem = self.problem or f"{stmt.buffer.name} is written before what is copied there has landed"
        return {**ages, place: 0} if begins else ages

    def rounds(self, loop: For | While, ages: _Ages) -> _Ages:
        """Return the state of the asynchronous copies in flight after a loop: iterate its body
        until a fixpoint is reached.
        """
        while True:
            end = self.after(loop.body, ages)
            begin = _earliest(ages, end)
            if begin == ages:
                return end if isinstance(loop, For) and extent_of(loop) else begin
            ages = begin


def _meet(a: _Place, b: _Place) -> bool:
    """Return True if two ranges of elements of buffers may overlap."""
    return a[0] is b[0] and a[1] <= b[2] and b[1] <= a[2]


def _earliest(*ends: _Ages) -> _Ages:
    """Merge the states of asynchronous copies at a join of control flow: the smallest age of each
    copy.
    """
    return {place: min(end[place] for end in ends if place in end) for end in ends for place in end}
