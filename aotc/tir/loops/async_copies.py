# SPDX-License-Identifier: Apache-2.0
"""Where memory holds what is copied there asynchronously: after a `Wait` for it, and a `Sync`.

In: the statements of a thread.  Out: what is wrong with them.

    xs[4 * t] = async x[4 * t:4]  wait 0  sync  y[t] = xs[255 - t]    # None; without either, xs is read too early
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from aotc.tir import INDEX, Buffer, Expr, Interval, Var, assigned, bounds, extent_of, inside, loads
from aotc.tir.stmt import LAUNCHED, Block, Declare, For, If, Intrinsic, Stmt, Store, Sync, Wait, While, stmt_children

#: A buffer, and the first and last of some of its elements.
_Place: TypeAlias = tuple[Buffer, float, float]
#: For memory on its way, how many times the thread has waited since it began the latest copy there.
_Ages: TypeAlias = Mapping[_Place, float]
#: What has landed, though other threads may not know.
_LANDED: Final = math.inf


def why_not_landed(stmt: Stmt) -> str | None:
    """What is read, or written anew, before it has landed; None if nothing is."""
    copies = _Copies(assigned(stmt))
    copies.after(stmt, {})
    return copies.problem


@dataclass(slots=True)
class _Copies:
    changing: frozenset[Var]
    problem: str | None = None
    ranges: dict[Var, Interval] = field(default_factory=dict)

    def place(self, buffer: Buffer, index: Expr, lanes: int) -> _Place:
        low, high = bounds(index, self.ranges)
        return buffer, low, high + lanes - 1

    def after(self, stmt: Stmt, ages: _Ages) -> _Ages:
        """The ages behind a statement."""
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
        begins = isinstance(stmt, Store) and stmt.asynchronous
        lanes = stmt.value.lanes if isinstance(stmt, Store) else (stmt.size - 1) * stmt.stride + stmt.size
        place = self.place(stmt.buffer, stmt.index, lanes)
        if any(age >= (1 if begins else 0) and _meet(place, other) for other, age in ages.items()):
            self.problem = self.problem or f"{stmt.buffer.name} is written before what is copied there has landed"
        return {**ages, place: 0} if begins else ages

    def rounds(self, loop: For | While, ages: _Ages) -> _Ages:
        """The ages behind a loop: what any of its rounds may begin with, then one more."""
        while True:
            end = self.after(loop.body, ages)
            begin = _earliest(ages, end)
            if begin == ages:
                return end if isinstance(loop, For) and extent_of(loop) else begin
            ages = begin


def _meet(a: _Place, b: _Place) -> bool:
    """Whether two places may have an element in common."""
    return a[0] is b[0] and a[1] <= b[2] and b[1] <= a[2]


def _earliest(*ends: _Ages) -> _Ages:
    """What holds at the least where one of several ends was come from."""
    return {place: min(end[place] for end in ends if place in end) for end in ends for place in end}
