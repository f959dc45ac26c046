# SPDX-License-Identifier: Apache-2.0
"""Divide the iterations of a loop nest among the threads of a team.

Input: a nest of independent iterations. Output: a nest over the share of one thread, thread `part`
of `parts`:

    for i in 0..3: for j in 0..4: ...                        # 12 units
    lo = 12 * part / parts; hi = 12 * (part + 1) / parts     # all of i = 0 first, or all of j = 0 first

Units (iterations of the nest) are weighted by their estimated time: the shares of all threads have
equal weights, up to half a unit.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from aotc.ir import frozen
from aotc.tir import PART, PARTS, Block, Declare, For, If, Stmt, extent_of, is_innermost, stmts_of
from aotc.tir.expr import INDEX, Binary, Expr, Var, all_of, as_expr, maximum, minimum

#: Consecutive iterations of an innermost loop that are not divided: whole vectors, which the C
#: compiler may round differently from scalar remainder code.
_RUN: Final = 64


@frozen(eq=False)
class Leaf:
    """The innermost part of a loop nest that is divided among threads.

    It is a loop, divided by iterations, or consecutive statements that are one unit (`loop` is
    None).
    """

    stmts: tuple[Stmt, ...]
    loop: For | None = None

    @property
    def units(self) -> int:
        """Iterations of the leaf's loop, or 1 without a loop."""
        return 1 if self.loop is None else extent_of(self.loop)


@frozen(eq=False)
class Nest:
    """Nested loops with a divided leaf in the last of them; every thread executes all other
    statements in the loops.

    loops         the loops around the leaf, the outermost first
    leaf          the divided loop or statements
    inner_first   consecutive units are iterations of the leaf's loop in different iterations of
                  `loops`, so that each thread runs all iterations of `loops` with a part of the
                  leaf
    weight        the time of a unit, relative to other nests
    """

    loops: tuple[For, ...]
    leaf: Leaf
    inner_first: bool = False
    weight: int = 1

    @property
    def rounds(self) -> int:
        """The product of the trip counts of the loops around the leaf."""
        return math.prod(map(extent_of, self.loops))

    @property
    def in_runs(self) -> bool:
        """True if the divided loop is an innermost loop, which is divided into whole runs of `_RUN`
        iterations.
        """
        return not self.loops and self.leaf.loop is not None and is_innermost(self.leaf.loop)

    @property
    def units(self) -> int:
        """The number of units (iterations, or runs of them) that are divided among threads."""
        return -(-self.leaf.units // _RUN) if self.in_runs else self.rounds * self.leaf.units

    @property
    def key(self) -> Var | None:
        """The variable of the outermost divided loop, whose range differs most between threads;
        None without loops.
        """
        inner = () if self.leaf.loop is None else (self.leaf.loop,)
        order = (*inner, *self.loops) if self.inner_first else (*self.loops, *inner)
        return next((loop.var for loop in order if extent_of(loop) > 1), None)

    def share(self, low: Expr, high: Expr) -> Stmt:
        """Return the loop nest restricted to its units (iterations) from `low` to `high`, clipped
        to the units that exist.
        """
        if self.inner_first:
            return self._inner_first(maximum(low, 0), minimum(high, self.units))
        run = _RUN if self.in_runs else 1
        return self._counted(self.loops, low * run, high * run)

    def _counted(self, loops: Sequence[For], low: Expr, high: Expr) -> Stmt:
        """Return the loop nest over units `low` to `high` in loop order; inner bounds are clipped
        in the first and last iteration.
        """
        if not loops:
            # an iteration that is entered runs its only unit
            return Block(self.leaf.stmts) if self.loops and self.leaf.loop is None else self._of_leaf(low, high)
        loop, *rest = loops
        inside = self.leaf.units * math.prod(map(extent_of, rest))
        done = _iteration(loop) * inside
        body = self._inside(loop, rest, self._counted(rest, low - done, high - done))
        return _between(loop, _quotient(low, inside), _quotient(high + (inside - 1), inside), body)

    def _inner_first(self, low: Expr, high: Expr) -> Stmt:
        """Return all iterations of the outer loops, with the divided loop restricted to the units
        of a share.

        The number of a unit is iteration of the divided loop * rounds + round.
        """
        number = as_expr(0)
        for loop in self.loops:
            number = number * extent_of(loop) + _iteration(loop)
        bounds = (_quotient(limit - number + (self.rounds - 1), self.rounds) for limit in (low, high))
        made = self._of_leaf(*bounds)
        for k, loop in reversed(list(enumerate(self.loops, 1))):
            made = replace(loop, body=self._inside(loop, self.loops[k:], made))
        return made

    def _of_leaf(self, low: Expr, high: Expr) -> Stmt:
        """Return the divided loop restricted to iterations `low` to `high`; statements without a
        loop run if unit 0 is among them.
        """
        loop = self.leaf.loop
        if loop is None:
            return If(all_of(low <= 0, high > 0), Block(self.leaf.stmts))
        return _between(loop, low, high, loop.body)

    def _inside(self, loop: For, rest: Sequence[For], made: Stmt) -> Block:
        """Return the body of a loop around a divided part, with that part replaced by `made`."""
        first, *others = (rest[0],) if rest else self.leaf.stmts
        return Block(made if s is first else s for s in stmts_of(loop.body) if s not in others)


def _iteration(loop: For) -> Expr:
    """Return the number of the current iteration of a loop, counted from 0."""
    return _quotient(loop.var - loop.begin, loop.step)


def _between(loop: For, low: Expr, high: Expr, body: Stmt) -> For:
    """Return a loop over the iterations from `low` to `high`, clipped to those of `loop`, with
    another body.
    """
    begin, end = (loop.begin + n * loop.step for n in (maximum(low, 0), minimum(high, extent_of(loop))))
    return replace(loop, begin=begin, end=end, body=body)


def alone(loops: Sequence[For], leaf: Leaf) -> tuple[For, ...]:
    """Return the loops around a leaf (divided part) with all statements removed that are not part
    of the leaf.
    """
    if not loops:
        return ()
    inside = alone(loops[1:], leaf)
    return replace(loops[0], body=inside[0] if inside else Block(leaf.stmts)), *inside


def divided(parts: Sequence[Sequence[Nest]]) -> Block:
    """Return the statements of thread number `PART`: its share of the iterations of some loop
    nests.

    The units of the nests of one part are numbered consecutively and divided together; each part is
    divided by itself.
    """
    found: list[Stmt] = []
    for nests in parts:
        low, high = Var("lo", INDEX), Var("hi", INDEX)
        total, counted = _counted_through(nests)
        found += [Declare(low, _share(total, PART)), Declare(high, _share(total, PART + 1))]
        for nest, weight, at in counted:
            found.append(nest.share(*(_units_before(weight, limit - at) for limit in (low, high))))
    return Block(found)


def _counted_through(nests: Sequence[Nest]) -> tuple[int, list[tuple[Nest, int, int]]]:
    """Return the total weight of the units of all loop nests and, for each nest, the weight of one
    unit and of all units before.
    """
    common = math.gcd(*(nest.weight for nest in nests))
    weights = [nest.weight // common for nest in nests]
    *starts, total = accumulate((n.units * weight for n, weight in zip(nests, weights, strict=True)), initial=0)
    return total, list(zip(nests, weights, starts, strict=True))


def largest_share(parts: Sequence[Sequence[Nest]], threads: int) -> float:
    """Return the largest fraction of the work that one of `threads` threads gets (0.5 for two equal
    shares).
    """
    most = max(sum(_weight_of_share(nests, part, threads) for nests in parts) for part in range(threads))
    return most / sum(nest.units * nest.weight for nests in parts for nest in nests)


def _weight_of_share(nests: Sequence[Nest], part: int, threads: int) -> int:
    """Return the weight of the units that `divided` assigns to thread `part` of `threads`."""
    (total, counted), mine = _counted_through(nests), 0
    for nest, weight, at in counted:
        limits = (total * p // threads - at for p in (part, part + 1))
        low, high = (min(max((2 * x + weight) // (2 * weight), 0), nest.units) for x in limits)
        mine += (high - low) * nest.weight
    return mine


def _share(total: int, part: Expr) -> Expr:
    """Return the number of the first unit of thread `part`, as an expression of the number of
    threads.
    """
    return Binary("truncdiv", part * total, PARTS)


def _units_before(weight: int, limit: Expr) -> Expr:
    """Return the number of a loop nest's units that belong before a weight limit, rounded to the
    nearest unit.
    """
    return limit if weight == 1 else _quotient(limit * 2 + weight, 2 * weight)


def _quotient(value: Expr, divisor: int) -> Expr:
    """Divide, rounding toward zero, which is right as negative values are clipped to 0 afterwards."""
    return value if divisor == 1 else Binary("truncdiv", value, as_expr(divisor))
