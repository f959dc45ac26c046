# SPDX-License-Identifier: Apache-2.0
"""Inner loops that are shorter than vectors, packed: rounds of the loop around them become one longer loop.

    for i in 0..99:                          for e in 0..24: row[e] = exp(b[e % 3])
      for j in 0..3:                   ->    for i in 0..96 by 8:
        y[3 * i + j] = x[3 * i + j]            for e in 0..24: y[3 * i + e] = x[3 * i + e] * row[e]
          * exp(b[j])                        the rounds from 96 on as before

What is written lies side by side.  What is read lies so, too, or does not change from round to round: then it is
computed once, for as many rounds as make whole vectors.
"""

import math
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import bounds, linear, mentioned, operands, private_buffer, refreshed, substitute, with_operands
from aotc.tir.expr import INDEX, Buffer, Const, Expr, Load, Var, loads_in
from aotc.tir.loops.loop_dependence import Ranges, counted, straight_line
from aotc.tir.stmt import Block, For, Stmt, Store, changed, forall, map_exprs

#: Longer loops that pay for computing beforehand what does not change from round to round.
_PAYS: Final = 4
#: Values that are computed beforehand, at most.
_MOST: Final = 256


class _ApartError(Exception):
    """What a loop reads or writes does not lie as its rounds follow each other."""


def packed(nest: For, lanes: int, ranges: Ranges, shared: AbstractSet[Buffer]) -> tuple[Stmt, list[Buffer]] | None:
    """The longer loop with what is around it, and its scratch; None for a nest that it cannot be made of.

    lanes     of vectors for the inner loop
    ranges    of the variables around the nest
    shared    buffers that may be the memory of another one
    """
    inner, rounds = nest.body, counted(nest)
    if not isinstance(inner, For) or {nest.kind, inner.kind} != {"independent"}:
        return None
    short = counted(inner)
    many = lanes // math.gcd(len(short), lanes)
    if short.start != 0 or not 1 < len(short) < lanes or len(rounds) < _PAYS * many:
        return None
    if {nest.step, inner.step} != {1} or straight_line(inner) is None or len(short) * many > _MOST:
        return None
    known = {**ranges, inner.var: (0, len(short) - 1)}
    packer = _Packer(nest.var, inner.var, len(short), many, known, changed(inner.body) | shared)
    try:
        body = map_exprs(inner.body, packer.value)
    except _ApartError:
        return None
    end = rounds.start + len(rounds) // many * many
    most = forall(nest.var, end, forall(inner.var, len(short) * many, body), begin=rounds.start, step=many)
    rest = () if end == rounds.stop else (replace(nest, begin=Const(end, INDEX)),)
    return Block((*packer.filled(), refreshed(most), *rest)), [*packer.rows.values()]


@frozen
class _Packer:
    """Makes expressions of the longer loop.

    outer, inner    variables of the loops
    short, many     iterations of the inner one, and rounds of it that are packed
    ranges          of the variables that are known
    changing        variables and buffers that a round gives other values
    rows            for an expression, the scratch that holds its values for `inner`
    """

    outer: Var
    inner: Var
    short: int
    many: int
    ranges: Ranges
    changing: AbstractSet[Var | Buffer]
    rows: dict[Expr, Buffer] = field(default_factory=dict)

    def value(self, expr: Expr) -> Expr:
        """An expression of an iteration of the inner loop, in the longer loop."""
        if isinstance(expr, Load) or expr.dtype != INDEX:
            if self.inner in mentioned(expr) and self.is_steady(expr):
                return self.held(expr)
            return with_operands(expr, tuple(map(self.value, operands(expr))))
        form = linear(expr, {})
        of_round, of_one = form.coefficient(self.outer), form.coefficient(self.inner)
        if of_round is None or of_one is None or of_round != self.short * of_one:
            raise _ApartError
        return expr

    def is_steady(self, expr: Expr) -> bool:
        """Whether an expression has one value in all rounds, and may be computed where no condition is known."""
        limits = [(bounds(n.index, self.ranges), n.buffer.size) for n in loads_in(expr)]
        inside = all(low >= 0 and high < size for (low, high), size in limits)
        return inside and self.outer not in mentioned(expr) and self.changing.isdisjoint(mentioned(expr))

    def held(self, expr: Expr) -> Expr:
        if expr not in self.rows:
            self.rows[expr] = private_buffer("row", expr.dtype, self.short * self.many, "stack")
        return Load(self.rows[expr], self.inner)

    def filled(self) -> list[Stmt]:
        """What fills the scratch."""
        made: list[Stmt] = []
        for value, row in self.rows.items():
            first, at = Var(self.inner.name), Var(self.inner.name)
            own = Store(row, first, substitute(value, {self.inner: first}))
            again = Store(row, at, Load(row, at - self.short))
            made += [For(first, self.short, own), For(at, row.size, again, begin=self.short)]
        return made
