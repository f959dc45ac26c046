# SPDX-License-Identifier: Apache-2.0
"""Where memory holds what is copied there asynchronously: after a `Wait` for it, and a `Sync`.

In: the statements of a thread.  Out: what is wrong with them.

    xs[4 * t] = async x[4 * t:4]  wait 0  sync  y[t] = xs[255 - t]    # None; without either, xs is read too early
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from aotc.tir.expr import Buffer
from aotc.tir.loops.dependence import extent_of, loads
from aotc.tir.stmt import LAUNCHED, Block, For, If, Intrinsic, Stmt, Store, Sync, Wait, While, stmt_children

#: For memory on its way, how many times the thread has waited since it began the latest copy there.
_Ages: TypeAlias = Mapping[Buffer, float]
#: What has landed, though other threads may not know.
_LANDED: Final = math.inf


def why_not_landed(stmt: Stmt) -> str | None:
    """What is read, or written anew, before it has landed; None if nothing is."""
    copies = _Copies()
    copies.after(stmt, {})
    return copies.problem


@dataclass(slots=True)
class _Copies:
    problem: str | None = None

    def after(self, stmt: Stmt, ages: _Ages) -> _Ages:
        """The ages behind a statement."""
        for buffer in (load.buffer for load in loads(stmt) if load.buffer in ages):
            self.problem = self.problem or f"{buffer.name} is read before what is copied there has landed"
        match stmt:
            case Store(buffer=buffer) | Intrinsic(buffer=buffer):
                begins = isinstance(stmt, Store) and stmt.asynchronous
                if ages.get(buffer, -1) >= (1 if begins else 0):
                    self.problem = self.problem or f"{buffer.name} is written before what is copied there has landed"
                return {**ages, buffer: 0} if begins else ages
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
                return self.after(body, {})
            case For() | While():
                return self.rounds(stmt, ages)
        return ages

    def rounds(self, loop: For | While, ages: _Ages) -> _Ages:
        """The ages behind a loop: what any of its rounds may begin with, then one more."""
        while True:
            end = self.after(loop.body, ages)
            begin = _earliest(ages, end)
            if begin == ages:
                return end if isinstance(loop, For) and extent_of(loop) else begin
            ages = begin


def _earliest(*ends: _Ages) -> _Ages:
    """What holds at the least where one of several ends was come from."""
    return {buffer: min(end[buffer] for end in ends if buffer in end) for end in ends for buffer in end}
