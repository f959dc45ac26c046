# SPDX-License-Identifier: Apache-2.0
"""Pack inner loops that are shorter than a vector: several iterations of the outer loop become one
longer inner loop.

    for i in 0..99:                          for e in 0..24: row[e] = exp(b[e % 3])
      for j in 0..3:                   ->    for i in 0..96 by 8:
        y[3 * i + j] = x[3 * i + j]            for e in 0..24: y[3 * i + e] = x[3 * i + e] * row[e]
          * exp(b[j])                        the rounds from 96 on as before

Consecutive outer iterations must write adjacent elements. What they read must be adjacent as well,
or independent of the outer iteration: then it is computed once into a row that covers whole
vectors, before the loop.
"""

import math
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import (
    bounds,
    linear_form,
    new_private_scratch_buffer,
    operands,
    rename_declared_vars,
    substitute,
    vars_and_buffers_in,
    with_operands,
)
from aotc.tir.expr import INDEX, Buffer, Const, Expr, Load, Var, loads_in
from aotc.tir.loops.loop_dependence import Ranges, constant_loop_range, straight_line_stmts
from aotc.tir.stmt import Block, For, Stmt, Store, forall, map_exprs, modified_vars_and_buffers

#: Least number of packed iterations that make up for computing the rows beforehand.
_MIN_PACKED_ITERATIONS: Final = 4
#: Largest number of elements of a row, and of iterations of the packed inner loop.
_MAX_ROW_ELEMENTS: Final = 256


class _ApartError(Exception):
    """Raised if consecutive iterations of the outer loop do not access adjacent elements, so that
    the nest cannot be packed.
    """


def pack_outer_iterations_into_inner_loop(
    outer_loop: For, lanes: int, ranges: Ranges, aliased_buffers: AbstractSet[Buffer]
) -> tuple[Stmt, list[Buffer]] | None:
    """Return the packed form of a nest of two loops, with the scratch rows it needs; None if the
    nest cannot be packed.

    outer_loop         the outer loop, whose body is the inner loop
    lanes              elements of a vector
    ranges             ranges of the variables around the nest
    aliased_buffers    buffers that may share memory with another buffer
    """
    inner, rounds = outer_loop.body, constant_loop_range(outer_loop)
    if not isinstance(inner, For) or {outer_loop.kind, inner.kind} != {"independent"}:
        return None
    short = constant_loop_range(inner)
    many = lanes // math.gcd(len(short), lanes)
    if short.start != 0 or not 1 < len(short) < lanes or len(rounds) < _MIN_PACKED_ITERATIONS * many:
        return None
    if (
        {outer_loop.step, inner.step} != {1}
        or straight_line_stmts(inner) is None
        or len(short) * many > _MAX_ROW_ELEMENTS
    ):
        return None
    known = {**ranges, inner.var: (0, len(short) - 1)}
    packer = _PackedLoopRewriter(
        outer_loop.var, inner.var, len(short), many, known, modified_vars_and_buffers(inner.body) | aliased_buffers
    )
    try:
        body = map_exprs(inner.body, packer.rewrite_expr_for_packed_loop)
    except _ApartError:
        return None
    end = rounds.start + len(rounds) // many * many
    most = forall(outer_loop.var, end, forall(inner.var, len(short) * many, body), begin=rounds.start, step=many)
    rest = () if end == rounds.stop else (replace(outer_loop, begin=Const(end, INDEX)),)
    return Block((*packer.loops_filling_precomputed_rows(), rename_declared_vars(most), *rest)), [*packer.rows.values()]


@frozen
class _PackedLoopRewriter:
    """Rewrites expressions of the inner loop for the packed loop.

    outer, inner   variables of the loops
    short          iterations of the inner loop
    many           outer iterations that are packed into one
    ranges         ranges of the known variables
    changing       variables and buffers that the loop body changes
    rows           for an expression, the scratch row with its values for all values of `inner`
    """

    outer: Var
    inner: Var
    short: int
    many: int
    ranges: Ranges
    changing: AbstractSet[Var | Buffer]
    rows: dict[Expr, Buffer] = field(default_factory=dict)

    def rewrite_expr_for_packed_loop(self, expr: Expr) -> Expr:
        """Return an expression of the inner loop as an expression of the packed loop; raise
        _ApartError if there is none.
        """
        if isinstance(expr, Load) or expr.dtype != INDEX:
            if self.inner in vars_and_buffers_in(expr) and self.is_outer_loop_invariant_and_in_bounds(expr):
                return self.load_from_precomputed_row(expr)
            return with_operands(expr, tuple(map(self.rewrite_expr_for_packed_loop, operands(expr))))
        form = linear_form(expr, {})
        of_round, of_one = form.coefficient(self.outer), form.coefficient(self.inner)
        if of_round is None or of_one is None or of_round != self.short * of_one:
            raise _ApartError
        return expr

    def is_outer_loop_invariant_and_in_bounds(self, expr: Expr) -> bool:
        """Return True if an expression has one value in all outer iterations, and all its loads are
        within their buffers.
        """
        limits = [(bounds(n.index, self.ranges), n.buffer.size) for n in loads_in(expr)]
        inside = all(low >= 0 and high < size for (low, high), size in limits)
        return (
            inside
            and self.outer not in vars_and_buffers_in(expr)
            and self.changing.isdisjoint(vars_and_buffers_in(expr))
        )

    def load_from_precomputed_row(self, expr: Expr) -> Expr:
        """Return the load of an expression's value from its row; the row is created at the first
        use.
        """
        if expr not in self.rows:
            self.rows[expr] = new_private_scratch_buffer("row", expr.dtype, self.short * self.many, "stack")
        return Load(self.rows[expr], self.inner)

    def loops_filling_precomputed_rows(self) -> list[Stmt]:
        """Return the loops that fill the rows: the values of one outer iteration are computed, then
        copied repeatedly.
        """
        loops: list[Stmt] = []
        for value, row in self.rows.items():
            first, at = Var(self.inner.name), Var(self.inner.name)
            first_store = Store(row, first, substitute(value, {self.inner: first}))
            again = Store(row, at, Load(row, at - self.short))
            loops += [For(first, self.short, first_store), For(at, row.size, again, begin=self.short)]
        return loops
