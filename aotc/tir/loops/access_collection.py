# SPDX-License-Identifier: Apache-2.0
"""Collect the access relations of a statement: the addresses of its loads and stores, with the loops
and conditions around them.

Input: statements over flat buffers, and the ranges of the variables around them. Output: for each
buffer, its accesses as linear forms over loop variables:

    for i in 0..8 { let n: int64 = 16 * i  for j in 3..16 step 2 { if j < 12 { y[n + j:2] = ... } } }
    # y: 16 * i + j, 2 lanes; 0 <= i <= 7, j in 3, 5, ..., 15, j < 12
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from aotc.ir import frozen
from aotc.tir import Binary, Buffer, Expr, LinearForm, Var, bounds_of_linear_form, linear_form
from aotc.tir.expr import INDEX, Select, substitute, vars_and_buffers_in, walk_once
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.buffer_access import Access, Condition, ExactLoop
from aotc.tir.loops.loop_dependence import (
    Ranges,
    assigned_registers,
    direct_accesses,
    is_replaceable_by_value,
    is_stored_before_first_load,
    loop_var_interval,
    operands_of_nested_min_max,
    read_buffers,
    written_buffers,
)
from aotc.tir.simplify import SimplifierScope
from aotc.tir.stmt import Block, Declare, For, If, Stmt, While, direct_child_stmts

#: The access relation of each buffer.
Accesses: TypeAlias = "dict[Buffer, AccessRelation]"


def collect_accesses(
    stmt: Stmt,
    ranges: Ranges,
    accesses_of_buffer: Accesses,
    *,
    reads: bool = True,
    stores: bool = True,
    expands_registers: bool = False,
    around: For | None = None,
) -> None:
    """Append the accesses of a statement to `accesses_of_buffer`, for the buffers that are keys of
    `accesses_of_buffer`.

    reads                include loads
    stores               include stores
    expands_registers    replace registers in indices and loop bounds by their values, and keep the
                         conditions around accesses; a loop that begins at an expression other than a
                         sum of variables, quotients and remainders, such as max(lo - 4 * i, 0),
                         contributes the range of its variable only
    around               a loop around the statement, whose bounds limit its variable
    """
    changing = assigned_registers(stmt) | written_buffers(stmt)
    linearizer = _IndexLinearizer(dict(ranges), expands_registers, changing)
    if around is not None:
        linearizer.limit_variable(around)
    kinds = tuple(is_write for is_write, included in ((True, stores), (False, reads)) if included)

    def collect(stmt: Stmt, conditions: tuple[Condition, ...], loops: tuple[ExactLoop, ...] | None) -> None:
        if isinstance(stmt, For):
            loop = linearizer.enter_loop(stmt)
            loops = (*loops, loop) if loops is not None and loop is not None else None
        elif isinstance(stmt, (If, While)):
            loops = None
        if expands_registers and isinstance(stmt, Declare) and is_replaceable_by_value(stmt, changing):
            linearizer.registers[stmt.var] = substitute(stmt.value, linearizer.registers)
        for is_write in kinds if not isinstance(stmt, Block) else ():
            for buffer, index, lanes in direct_accesses(stmt, reads=not is_write, stores=is_write):
                if buffer in accesses_of_buffer:
                    access = linearizer.access_at_index(index, lanes, is_write, conditions, loops)
                    accesses_of_buffer[buffer].accesses.append(access)
        for number, child in enumerate(direct_child_stmts(stmt)):
            inner = conditions
            if expands_registers and isinstance(stmt, If):
                # one statement object may be both branches
                inner = (*conditions, *linearizer.unchanging_condition(stmt.cond, number == 0))
            collect(child, inner, loops)

    collect(stmt, (), ())


@frozen(eq=False)
class ContextLinearizer:
    """Converts indices inside loops, after declarations and under conditions to accesses."""

    linearizer: _IndexLinearizer
    conditions: tuple[Condition, ...]

    @staticmethod
    def from_context(
        context: Iterable[For | Declare | Expr], ranges: Ranges, changing: frozenset[Var | Buffer]
    ) -> ContextLinearizer:
        """Return the linearizer of a context.

        context     the loops, declarations and conditions around an access, the outermost first
        ranges      the ranges of variables around them
        changing    registers and buffers that change: conditions and bounds that use them are left out
        """
        linearizer = _IndexLinearizer(dict(ranges), True, changing)
        conditions: tuple[Condition, ...] = ()
        for item in context:
            if isinstance(item, For):
                linearizer.enter_loop(item)
            elif not isinstance(item, Declare):
                conditions = (*conditions, *linearizer.unchanging_condition(item, True))
            elif is_replaceable_by_value(item, changing):
                linearizer.registers[item.var] = substitute(item.value, linearizer.registers)
        return ContextLinearizer(linearizer, conditions)

    def load_at_index(self, index: Expr, lanes: int) -> Access:
        """Return the load of `lanes` elements from `index` on."""
        return self.linearizer.access_at_index(index, lanes, False, self.conditions, None)


def _is_var_or_divmod(atom: Expr) -> bool:
    """Return True for a variable, a quotient, and a remainder."""
    return isinstance(atom, Var) or (isinstance(atom, Binary) and atom.op in ("floordiv", "floormod"))


def is_written_before_read(buffer: Buffer, stmts: Sequence[Stmt], ranges: Ranges, fixed: Container[Var] = ()) -> bool:
    """Return True if a sequence of statements reads only elements of a scratch buffer that it has
    written before.

    fixed    variables that have one value in all statements, such as the numbers of a kernel
    """
    filled = AccessRelation()
    for stmt in stmts:
        if buffer in read_buffers(stmt) and not is_stored_before_first_load(buffer, stmt):
            reads = {buffer: AccessRelation()}
            collect_accesses(stmt, ranges, reads, stores=False)
            if not filled.covers(reads[buffer], fixed):
                return False
        collect_accesses(stmt, {}, {buffer: filled}, reads=False)
    return True


@dataclass
class _IndexLinearizer:
    """Converts index expressions to linear forms while walking a loop nest.

    The variable of a loop that begins at 5 * i is represented as 5 * i + v, with a new variable v
    that begins at 0.

    ranges              the ranges of the variables
    expands_registers   see `collect_accesses`
    changing            registers and buffers that the statements change
    lasts               for a loop variable, upper bounds that are linear forms of other variables
    firsts              for a loop variable, lower bounds that are linear forms of other variables
    steps               for a loop variable, the distance of its values, if it is not 1
    registers           the values of index registers, and of shifted loop variables, which replace
                        them
    shifted_loop_vars   without `expands_registers`, the values of shifted loop variables: their begin
                        plus the new variable
    """

    ranges: Ranges
    expands_registers: bool
    changing: frozenset[Var | Buffer]
    lasts: dict[Var, list[LinearForm]] = field(default_factory=dict)
    firsts: dict[Var, list[LinearForm]] = field(default_factory=dict)
    steps: dict[Var, int] = field(default_factory=dict)
    shifted_loop_vars: dict[Var, LinearForm] = field(default_factory=dict)
    registers: dict[Var, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # the linear forms of indices that many accesses share are computed once
        self._scope = SimplifierScope(self.ranges)

    def enter_loop(self, loop: For) -> ExactLoop | None:
        """Add the variable of a loop, with its range and bounds, before the accesses in its body
        are converted.

        Return the loop if its values are known exactly, else None.
        """
        loop = replace(
            loop, begin=self._replace_registers_by_values(loop.begin), end=self._replace_registers_by_values(loop.end)
        )
        if loop.var in self.ranges:  # another loop uses this variable, too: accesses found there keep their ranges
            self.ranges, self.lasts, self.steps = dict(self.ranges), dict(self.lasts), dict(self.steps)
            self.firsts = dict(self.firsts)
            self.firsts.pop(loop.var, None)
            self.shifted_loop_vars.pop(loop.var, None)
            self.registers.pop(loop.var, None)
            self.steps.pop(loop.var, None)
        low, high = loop_var_interval(loop, self.ranges)
        if low == high and vars_and_buffers_in(loop.end):
            high += loop.step  # a literal would not say that the end of the loop is greater than its begin
        self.ranges[loop.var] = low, high
        self._scope = SimplifierScope(self.ranges)
        var, begin = loop.var, self.linear_form_of_index(loop.begin)
        is_begin_sum = not self.expands_registers or all(map(_is_var_or_divmod, begin.terms))
        is_begin_sum = is_begin_sum and not self._changes(begin)
        is_begin_known = is_begin_sum or not begin.terms
        if begin.terms and is_begin_sum:
            var = Var(loop.var.name, INDEX)
            shifted = begin.add_multiple(LinearForm({var: 1}))
            if self.expands_registers:
                self.registers[loop.var] = shifted.to_expr()
            else:
                self.shifted_loop_vars[loop.var] = shifted
        else:
            if begin.terms:
                firsts = [self.linear_form_of_index(e) for e in operands_of_nested_min_max("max", loop.begin)]
                self.firsts[var] = [first for first in firsts if first.terms and self._is_useful_limit(first)]
            begin = LinearForm()
        if loop.step > 1 and is_begin_sum:
            self.steps[var] = loop.step
        lasts = [
            self.linear_form_of_index(end).add_multiple(begin, -1).add_multiple(LinearForm(const=-1))
            for end in operands_of_nested_min_max("min", loop.end)
        ]
        # bounds without variables are in the ranges already
        limits = lasts
        if len(lasts) > 1 and not any(v in self.lasts for v in vars_and_buffers_in(loop.end)):
            # a minimum that has one value in all iterations may be an extent, by which indices are multiplied
            minimum = self.linear_form_of_index(loop.end).add_multiple(begin, -1)
            limits = [*lasts, minimum.add_multiple(LinearForm(const=-1))]
        self.lasts[var] = [last for last in limits if last.terms and self._is_useful_limit(last)]
        if begin.terms:
            high = max(0, min(bounds_of_linear_form(last, self.ranges)[1] for last in lasts))
            self.ranges[var] = (0, high if high == math.inf else high // loop.step * loop.step)
            self._scope = SimplifierScope(self.ranges)
        if not is_begin_known or len(lasts) != 1 or self._changes(lasts[0]):
            return None
        return ExactLoop(var, int(self.ranges[var][0]), lasts[0], loop.step)

    def limit_variable(self, loop: For) -> None:
        """Add the bounds of a loop whose variable keeps its range: limits that are linear forms of other
        variables.
        """
        lasts = [self.linear_form_of_index(end) for end in operands_of_nested_min_max("min", loop.end)]
        firsts = [self.linear_form_of_index(begin) for begin in operands_of_nested_min_max("max", loop.begin)]
        before = LinearForm(const=-1)
        self.lasts[loop.var] = [f.add_multiple(before) for f in lasts if f.terms and not self._changes(f)]
        self.firsts[loop.var] = [f for f in firsts if f.terms and not self._changes(f)]

    def _is_useful_limit(self, form: LinearForm) -> bool:
        """Return True if a limit of a loop variable may help a proof: it does not change, and contains no Select."""
        choices = (n for atom in form.terms for n in walk_once(atom) if isinstance(n, Select))
        return not self._changes(form) and next(choices, None) is None

    def _changes(self, form: LinearForm) -> bool:
        """Return True if the statements may change the value of a linear form."""
        return bool(self.changing) and any(n in self.changing for atom in form.terms for n in vars_and_buffers_in(atom))

    def _replace_registers_by_values(self, expr: Expr) -> Expr:
        return substitute(expr, self.registers) if self.registers else expr

    def linear_form_of_index(self, index: Expr) -> LinearForm:
        """Return an index as a linear form, with registers and shifted loop variables replaced."""
        form = linear_form(self._replace_registers_by_values(index), self._scope)
        if not self.shifted_loop_vars:
            return form
        for var in [a for a in form.terms if isinstance(a, Var) and a in self.shifted_loop_vars]:
            factor = form.terms[var]
            form = form.add_multiple(LinearForm({var: factor}), -1).add_multiple(self.shifted_loop_vars[var], factor)
        return form

    def unchanging_condition(self, cond: Expr, holds: bool) -> Iterator[Condition]:
        """Yield a condition, with registers replaced by their values; nothing if the statements may
        change its value.
        """
        cond = self._replace_registers_by_values(cond)
        if self.changing.isdisjoint(vars_and_buffers_in(cond)):
            yield cond, holds

    def access_at_index(
        self,
        index: Expr,
        lanes: int,
        is_write: bool,
        conditions: tuple[Condition, ...],
        loops: tuple[ExactLoop, ...] | None,
    ) -> Access:
        """Return the access to `lanes` consecutive elements from `index` on.

        conditions   the conditions around it
        loops        the loops around it, if every execution of all their iterations reaches it; else None
        """
        form = self.linear_form_of_index(index)
        return Access(form, lanes, self.ranges, self.lasts, self.firsts, self.steps, conditions, is_write, loops)
