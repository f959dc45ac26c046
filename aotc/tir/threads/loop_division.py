# SPDX-License-Identifier: Apache-2.0
"""Dividing the iterations of a nest of loops among the threads of a team.

In: a nest whose iterations are independent.  Out: a nest over one thread's share of them:

    for i in 0..3: for j in 0..4: ...                        # 12 units
    lo = 12 * part / parts; hi = 12 * (part + 1) / parts     # all of i = 0 first, or all of j = 0 first

Units are counted by the time that they take: every thread has as much to do, give or take half a unit.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from aotc.ir import frozen
from aotc.tir import PART, PARTS, Block, Declare, For, If, Stmt, extent_of, is_innermost, stmts_of
from aotc.tir.expr import INDEX, Binary, Expr, Var, all_of, as_expr, maximum, minimum

#: Iterations of an innermost loop that stay together: whole vectors, which the C compiler rounds in its own way.
_RUN: Final = 64


@frozen(eq=False)
class Leaf:
    """What can be divided: a loop by iterations, or consecutive statements as a whole (`loop` is None)."""

    stmts: tuple[Stmt, ...]
    loop: For | None = None

    @property
    def units(self) -> int:
        return 1 if self.loop is None else extent_of(self.loop)


@frozen(eq=False)
class Nest:
    """Loops one in the other, and what is divided in the last one; all else in them every thread does.

    inner_first    the units of a thread follow one another in the leaf's loop, not in the outermost one
    weight         the time of a unit, relative to those of other nests
    """

    loops: tuple[For, ...]
    leaf: Leaf
    inner_first: bool = False
    weight: int = 1

    @property
    def rounds(self) -> int:
        """Iterations of the outer loops."""
        return math.prod(map(extent_of, self.loops))

    @property
    def in_runs(self) -> bool:
        """Whether the leaf is an innermost loop, which is divided into whole runs of `_RUN` iterations."""
        return not self.loops and self.leaf.loop is not None and is_innermost(self.leaf.loop)

    @property
    def units(self) -> int:
        """The number of units that are divided."""
        return -(-self.leaf.units // _RUN) if self.in_runs else self.rounds * self.leaf.units

    @property
    def key(self) -> Var | None:
        """The variable whose range differs most between threads."""
        inner = () if self.leaf.loop is None else (self.leaf.loop,)
        order = (*inner, *self.loops) if self.inner_first else (*self.loops, *inner)
        return next((loop.var for loop in order if extent_of(loop) > 1), None)

    def share(self, low: Expr, high: Expr) -> Stmt:
        """The units from `low` to `high`, of which some may lie before the first or after the last one."""
        if self.inner_first:
            return self._inner_first(maximum(low, 0), minimum(high, self.units))
        run = _RUN if self.in_runs else 1
        return self._counted(self.loops, low * run, high * run)

    def _counted(self, loops: Sequence[For], low: Expr, high: Expr) -> Stmt:
        """One after the other; bounds of inner loops clipped in the first and last round."""
        if not loops:
            # a round that is entered does its only unit
            return Block(self.leaf.stmts) if self.loops and self.leaf.loop is None else self._of_leaf(low, high)
        loop, *rest = loops
        inside = self.leaf.units * math.prod(map(extent_of, rest))
        done = _iteration(loop) * inside
        body = self._inside(loop, rest, self._counted(rest, low - done, high - done))
        return _between(loop, _quotient(low, inside), _quotient(high + (inside - 1), inside), body)

    def _inner_first(self, low: Expr, high: Expr) -> Stmt:
        """All rounds, in each the iterations of the leaf whose units (iteration * rounds + round) are in the share."""
        number = as_expr(0)
        for loop in self.loops:
            number = number * extent_of(loop) + _iteration(loop)
        bounds = (_quotient(limit - number + (self.rounds - 1), self.rounds) for limit in (low, high))
        made = self._of_leaf(*bounds)
        for k, loop in reversed(list(enumerate(self.loops, 1))):
            made = replace(loop, body=self._inside(loop, self.loops[k:], made))
        return made

    def _of_leaf(self, low: Expr, high: Expr) -> Stmt:
        loop = self.leaf.loop
        if loop is None:
            return If(all_of(low <= 0, high > 0), Block(self.leaf.stmts))
        return _between(loop, low, high, loop.body)

    def _inside(self, loop: For, rest: Sequence[For], made: Stmt) -> Block:
        """The body of a loop with its divided part replaced."""
        first, *others = (rest[0],) if rest else self.leaf.stmts
        return Block(made if s is first else s for s in stmts_of(loop.body) if s not in others)


def _iteration(loop: For) -> Expr:
    """Which iteration of a loop it is, from 0 on."""
    return _quotient(loop.var - loop.begin, loop.step)


def _between(loop: For, low: Expr, high: Expr, body: Stmt) -> For:
    """The iterations from `low` to `high`, as far as there are any."""
    begin, end = (loop.begin + n * loop.step for n in (maximum(low, 0), minimum(high, extent_of(loop))))
    return replace(loop, begin=begin, end=end, body=body)


def alone(loops: Sequence[For], leaf: Leaf) -> tuple[For, ...]:
    """The loops and the leaf with nothing else in them."""
    if not loops:
        return ()
    inside = alone(loops[1:], leaf)
    return replace(loops[0], body=inside[0] if inside else Block(leaf.stmts)), *inside


def divided(parts: Sequence[Sequence[Nest]]) -> Block:
    """A thread's share of all units of some nests; the units of a part are counted from nest to nest."""
    found: list[Stmt] = []
    for nests in parts:
        low, high = Var("lo", INDEX), Var("hi", INDEX)
        total, counted = _counted_through(nests)
        found += [Declare(low, _share(total, PART)), Declare(high, _share(total, PART + 1))]
        for nest, weight, at in counted:
            found.append(nest.share(*(_units_before(weight, limit - at) for limit in (low, high))))
    return Block(found)


def _counted_through(nests: Sequence[Nest]) -> tuple[int, list[tuple[Nest, int, int]]]:
    """The weight of all units, and for each nest the weight of one of its units and of all before it."""
    common = math.gcd(*(nest.weight for nest in nests))
    weights = [nest.weight // common for nest in nests]
    *starts, total = accumulate((n.units * weight for n, weight in zip(nests, weights, strict=True)), initial=0)
    return total, list(zip(nests, weights, starts, strict=True))


def largest_share(parts: Sequence[Sequence[Nest]], threads: int) -> float:
    """The largest share of a thread in the weight of all units; 0.5 where two threads have equal shares."""
    most = max(sum(_weight_of_share(nests, part, threads) for nests in parts) for part in range(threads))
    return most / sum(nest.units * nest.weight for nests in parts for nest in nests)


def _weight_of_share(nests: Sequence[Nest], part: int, threads: int) -> int:
    """The weight of the units that `divided` gives to thread `part`."""
    (total, counted), mine = _counted_through(nests), 0
    for nest, weight, at in counted:
        limits = (total * p // threads - at for p in (part, part + 1))
        low, high = (min(max((2 * x + weight) // (2 * weight), 0), nest.units) for x in limits)
        mine += (high - low) * nest.weight
    return mine


def _share(total: int, part: Expr) -> Expr:
    return Binary("truncdiv", part * total, PARTS)


def _units_before(weight: int, limit: Expr) -> Expr:
    """How many units of a weight lie before a limit, at least with their first half."""
    return limit if weight == 1 else _quotient(limit * 2 + weight, 2 * weight)


def _quotient(value: Expr, divisor: int) -> Expr:
    """Rounded to zero: what is negative is clipped to 0 anyway."""
    return value if divisor == 1 else Binary("truncdiv", value, as_expr(divisor))
