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
from aotc.tir import (
    THREAD_COUNT,
    THREAD_NUMBER,
    Block,
    Declare,
    For,
    If,
    Stmt,
    block_stmts_or_self,
    is_innermost,
    known_trip_count,
)
from aotc.tir.expr import INDEX, Binary, Expr, Var, all_of, as_expr, maximum, minimum

#: Consecutive iterations of an innermost loop that are not divided: whole vectors, which the C
#: compiler may round differently from scalar remainder code.
_ITERATIONS_PER_RUN: Final = 64


@frozen(eq=False)
class DividedLeaf:
    """The innermost part of a loop nest that is divided among threads.

    It is a loop, divided by iterations, or consecutive statements that are one unit (`loop` is
    None).
    """

    stmts: tuple[Stmt, ...]
    loop: For | None = None

    @property
    def leaf_loop_iteration_count(self) -> int:
        """Iterations of the leaf's loop, or 1 without a loop."""
        return 1 if self.loop is None else known_trip_count(self.loop)


@frozen(eq=False)
class DividedNest:
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
    leaf: DividedLeaf
    inner_first: bool = False
    weight: int = 1

    @property
    def iterations_of_loops_around_leaf(self) -> int:
        """The product of the trip counts of the loops around the leaf."""
        return math.prod(map(known_trip_count, self.loops))

    @property
    def is_divided_in_runs(self) -> bool:
        """True if the divided loop is an innermost loop, which is divided into whole runs of
        `_ITERATIONS_PER_RUN` iterations.
        """
        return not self.loops and self.leaf.loop is not None and is_innermost(self.leaf.loop)

    @property
    def work_units_divided_among_threads(self) -> int:
        """The number of units (iterations, or runs of them) that are divided among threads."""
        return (
            -(-self.leaf.leaf_loop_iteration_count // _ITERATIONS_PER_RUN)
            if self.is_divided_in_runs
            else self.iterations_of_loops_around_leaf * self.leaf.leaf_loop_iteration_count
        )

    @property
    def outermost_divided_var(self) -> Var | None:
        """The variable of the outermost divided loop, whose range differs most between threads;
        None without loops.
        """
        inner = () if self.leaf.loop is None else (self.leaf.loop,)
        order = (*inner, *self.loops) if self.inner_first else (*self.loops, *inner)
        return next((loop.var for loop in order if known_trip_count(loop) > 1), None)

    def restrict_to_units(self, first_unit: Expr, end_unit: Expr) -> Stmt:
        """Return the loop nest restricted to its units (iterations) from `first_unit` to
        `end_unit`, clipped to the units that exist.
        """
        if self.inner_first:
            return self._restrict_inner_loop_to_units(
                maximum(first_unit, 0), minimum(end_unit, self.work_units_divided_among_threads)
            )
        run = _ITERATIONS_PER_RUN if self.is_divided_in_runs else 1
        return self._restrict_to_units_in_loop_order(self.loops, first_unit * run, end_unit * run)

    def _restrict_to_units_in_loop_order(self, loops: Sequence[For], first_unit: Expr, end_unit: Expr) -> Stmt:
        """Return the loop nest over units `first_unit` to `end_unit` in loop order; inner bounds
        are clipped in the first and last iteration.
        """
        if not loops:
            # an iteration that is entered runs its only unit
            return (
                Block(self.leaf.stmts)
                if self.loops and self.leaf.loop is None
                else self._restrict_leaf_to_iterations(first_unit, end_unit)
            )
        loop, *rest = loops
        inside = self.leaf.leaf_loop_iteration_count * math.prod(map(known_trip_count, rest))
        done = _iteration_number(loop) * inside
        body = self._replace_divided_part_of_body(
            loop, rest, self._restrict_to_units_in_loop_order(rest, first_unit - done, end_unit - done)
        )
        return _restrict_loop_to_iterations(
            loop, _divide_truncating(first_unit, inside), _divide_truncating(end_unit + (inside - 1), inside), body
        )

    def _restrict_inner_loop_to_units(self, first_unit: Expr, end_unit: Expr) -> Stmt:
        """Return all iterations of the outer loops, with the divided loop restricted to the units
        of a share.

        The number of a unit is iteration of the divided loop * rounds + round.
        """
        number = as_expr(0)
        for loop in self.loops:
            number = number * known_trip_count(loop) + _iteration_number(loop)
        bounds = (
            _divide_truncating(
                limit - number + (self.iterations_of_loops_around_leaf - 1), self.iterations_of_loops_around_leaf
            )
            for limit in (first_unit, end_unit)
        )
        new_stmt = self._restrict_leaf_to_iterations(*bounds)
        for k, loop in reversed(list(enumerate(self.loops, 1))):
            new_stmt = replace(loop, body=self._replace_divided_part_of_body(loop, self.loops[k:], new_stmt))
        return new_stmt

    def _restrict_leaf_to_iterations(self, low: Expr, high: Expr) -> Stmt:
        """Return the divided loop restricted to iterations `low` to `high`; statements without a
        loop run if unit 0 is among them.
        """
        loop = self.leaf.loop
        if loop is None:
            return If(all_of(low <= 0, high > 0), Block(self.leaf.stmts))
        return _restrict_loop_to_iterations(loop, low, high, loop.body)

    def _replace_divided_part_of_body(self, loop: For, inner_loops: Sequence[For], replacement: Stmt) -> Block:
        """Return the body of a loop around a divided part, with that part replaced by
        `replacement`.
        """
        first, *rest_stmts = (inner_loops[0],) if inner_loops else self.leaf.stmts
        return Block(replacement if s is first else s for s in block_stmts_or_self(loop.body) if s not in rest_stmts)


def _iteration_number(loop: For) -> Expr:
    """Return the number of the current iteration of a loop, counted from 0."""
    return _divide_truncating(loop.var - loop.begin, loop.step)


def _restrict_loop_to_iterations(loop: For, first_iteration: Expr, end_iteration: Expr, body: Stmt) -> For:
    """Return a loop over the iterations from `first_iteration` to `end_iteration`, clipped to those
    of `loop`, with another body.
    """
    begin, end = (
        loop.begin + n * loop.step
        for n in (maximum(first_iteration, 0), minimum(end_iteration, known_trip_count(loop)))
    )
    return replace(loop, begin=begin, end=end, body=body)


def loops_stripped_to_leaf_stmts(loops: Sequence[For], leaf: DividedLeaf) -> tuple[For, ...]:
    """Return the loops around a leaf (divided part) with all statements removed that are not part
    of the leaf.
    """
    if not loops:
        return ()
    inside = loops_stripped_to_leaf_stmts(loops[1:], leaf)
    return replace(loops[0], body=inside[0] if inside else Block(leaf.stmts)), *inside


def thread_share_of_nests(parts: Sequence[Sequence[DividedNest]]) -> Block:
    """Return the statements of thread number `THREAD_NUMBER`: its share of the iterations of some
    loop nests.

    The units of the nests of one part are numbered consecutively and divided together; each part is
    divided by itself.
    """
    stmts: list[Stmt] = []
    for nests in parts:
        low, high = Var("lo", INDEX), Var("hi", INDEX)
        total, counted = _total_unit_and_preceding_weights(nests)
        stmts += [
            Declare(low, _first_unit_of_thread(total, THREAD_NUMBER)),
            Declare(high, _first_unit_of_thread(total, THREAD_NUMBER + 1)),
        ]
        for nest, weight, at in counted:
            stmts.append(
                nest.restrict_to_units(*(_units_before_weight_limit(weight, limit - at) for limit in (low, high)))
            )
    return Block(stmts)


def thread_share_of_loop_of_run_time_extent(loop: For) -> Block:
    """Return the iterations of a loop that are the share of thread number `THREAD_NUMBER`, for a loop that counts by 1
    and whose number of iterations is known at run time only.
    """
    low, high, count = Var("lo", INDEX), Var("hi", INDEX), loop.end - loop.begin
    shares = [Declare(low, _first_unit_of_thread(count, THREAD_NUMBER))]
    shares.append(Declare(high, _first_unit_of_thread(count, THREAD_NUMBER + 1)))
    begin, end = loop.begin + maximum(low, 0), loop.begin + minimum(high, count)
    return Block((*shares, replace(loop, begin=begin, end=end)))


def _total_unit_and_preceding_weights(nests: Sequence[DividedNest]) -> tuple[int, list[tuple[DividedNest, int, int]]]:
    """Return the total weight of the units of all loop nests and, for each nest, the weight of one
    unit and of all units before.
    """
    common = math.gcd(*(nest.weight for nest in nests))
    weights = [nest.weight // common for nest in nests]
    *starts, total = accumulate(
        (n.work_units_divided_among_threads * weight for n, weight in zip(nests, weights, strict=True)), initial=0
    )
    return total, list(zip(nests, weights, starts, strict=True))


def largest_thread_share(parts: Sequence[Sequence[DividedNest]], thread_count: int) -> float:
    """Return the largest fraction of the work that one of `thread_count` threads gets (0.5 for two
    equal shares).
    """
    most = max(
        sum(_weight_of_thread_share(nests, part, thread_count) for nests in parts) for part in range(thread_count)
    )
    return most / sum(nest.work_units_divided_among_threads * nest.weight for nests in parts for nest in nests)


def _weight_of_thread_share(nests: Sequence[DividedNest], thread_number: int, thread_count: int) -> int:
    """Return the weight of the units that `thread_share_of_nests` assigns to one thread."""
    (total, counted), mine = _total_unit_and_preceding_weights(nests), 0
    for nest, weight, at in counted:
        limits = (total * p // thread_count - at for p in (thread_number, thread_number + 1))
        low, high = (
            min(max((2 * x + weight) // (2 * weight), 0), nest.work_units_divided_among_threads) for x in limits
        )
        mine += (high - low) * nest.weight
    return mine


def _first_unit_of_thread(total: "int | Expr", thread_number: Expr) -> Expr:
    """Return the number of the first unit of thread `thread_number`, as an expression of the number
    of threads.
    """
    return Binary("truncdiv", thread_number * total, THREAD_COUNT)


def _units_before_weight_limit(weight: int, limit: Expr) -> Expr:
    """Return the number of a loop nest's units that belong before a weight limit, rounded to the
    nearest unit.
    """
    return limit if weight == 1 else _divide_truncating(limit * 2 + weight, 2 * weight)


def _divide_truncating(value: Expr, divisor: int) -> Expr:
    """Divide, rounding toward zero, which is right as negative values are clipped to 0 afterwards."""
    return value if divisor == 1 else Binary("truncdiv", value, as_expr(divisor))
