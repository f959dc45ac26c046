# SPDX-License-Identifier: Apache-2.0
"""Thread coarsening: let one thread execute several neighboring iterations, with memory accesses of
up to 16 bytes.

Input: a loop with its body. Output: a loop of fewer iterations:

    for i in 0..4096: y[i] = max(x[i] + b[i // 64], 0)
    ->  for four in 0..1024:
          piece[0:4] = x[4 * four : 4]
          for k in 0..4: made[k] = max(piece[k] + b[four // 16], 0)
          y[4 * four : 4] = made[0:4]

Computations stay scalar; registers that differ between the iterations become small arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from aotc.ir import DType
from aotc.tir import (
    Gpu,
    all_of,
    operands,
    rename_declared_vars,
    substitute,
    substitute_in_stmt,
    vars_and_buffers_in,
    with_operands,
)
from aotc.tir.device.kernel_fission import ParallelNest
from aotc.tir.device.shared_memory_transpose import replace_loads
from aotc.tir.expr import INDEX, Buffer, Const, Expr, Load, Select, Var, loads_in, unary
from aotc.tir.loops.divmod_simplification import simplify_divmods_in_form
from aotc.tir.loops.gpu_vector_access_predicate import MAX_ACCESS_BYTES, is_single_instruction_vector_access
from aotc.tir.loops.loop_dependence import (
    Ranges,
    assigned_registers,
    direct_loads,
    known_trip_count,
    operands_of_nested_min_max,
    ranges_inside_loops,
)
from aotc.tir.simplify import LinearForm, bounds, comparison_as_nonnegative_form, linear_form, simplify
from aotc.tir.stmt import (
    Assign,
    Block,
    Declare,
    For,
    If,
    Stmt,
    Store,
    bind_to_new_register,
    block_stmts_or_self,
    map_exprs,
    rebuild_stmt,
    walk_stmts,
)

_INDEX_ZERO: Final[Expr] = Const(0, INDEX)
#: Largest number of iterations of a loop over a window that is unrolled.
_MAX_UNROLLED_WINDOW_ITERATIONS: Final = 7


@dataclass(slots=True)
class Coarsening:
    """A loop each of whose iterations executes `lanes` neighboring iterations of the original loop.

    loop                   the loop over groups of iterations
    lanes                  iterations per group
    ranges                 ranges of variables
    changing               registers that are assigned to after their declaration
    transaction_bytes      bytes of a memory transaction of the GPU
    lane                   variable of the iteration within a group
    values                 for original registers, their values as index expressions or array
                           elements
    stack                  the arrays
    vector_access_count    number of accesses of several elements
    element_access_count   number of accesses of one element although its neighbors are accessed as
                           well
    """

    loop: For
    lanes: int
    ranges: Ranges
    changing: frozenset[Var]
    transaction_bytes: int
    lane: Var = field(default_factory=lambda: Var("lane"))
    values: dict[Var, Expr] = field(default_factory=dict)
    stack: list[Buffer] = field(default_factory=list)
    vector_access_count: int = 0
    element_access_count: int = 0

    @staticmethod
    def coarsen_last_loop(loops: Sequence[For], body: Block, lanes: int, gpu: Gpu) -> ParallelNest | None:
        """Return a nest with its last loop coarsened; None if no access would become wider.

        One more thread executes the iterations that remain after the last full group, one by one.
        """
        loop = loops[-1]
        whole, left = divmod(known_trip_count(loop), lanes)
        if lanes < 2 or not whole or loop.begin != _INDEX_ZERO or loop.step != 1:
            return None
        several = replace(loop, var=Var(loop.var.name), end=Const(whole, INDEX))
        ranges = ranges_inside_loops([*loops[:-1], several], {})
        coarsening = Coarsening(several, lanes, ranges, assigned_registers(body), gpu.costs.transaction_bytes)
        coarsening.ranges[coarsening.lane] = (0, lanes - 1)
        coarsening.values[loop.var] = several.var * lanes + coarsening.lane
        block = Block(coarsening.coarsen_stmt(body))
        if not coarsening.vector_access_count or coarsening.element_access_count:
            return None
        if left:
            lane = Var("lane")
            single_body = substitute_in_stmt(rename_declared_vars(body), {loop.var: several.var * lanes + lane})
            block = Block([If(several.var < whole, block, For(lane, left, single_body))])
            several = replace(several, end=Const(whole + 1, INDEX))
        return ParallelNest((*loops[:-1], several), block, (*coarsening.stack,))

    # statements

    def coarsen_stmt(self, stmt: Stmt) -> list[Stmt]:
        """Return a statement executed for all lanes: the neighboring iterations that one coarsened
        thread executes.
        """
        match stmt:
            case Block():
                return [new_stmt for s in stmt.stmts for new_stmt in self.coarsen_stmt(s)]
            case Declare():
                return self.coarsen_declaration(stmt)
            case Store():
                return self.coarsen_store(stmt)
            case For() if (windowed := self.unroll_sliding_window_loop(stmt)) is not None:
                return windowed
            case For():
                begin, end = self.expr_for_lane(stmt.begin), self.expr_for_lane(stmt.end)
                if not self.varies_between_lanes(begin) and not self.varies_between_lanes(end):
                    loop = replace(stmt, begin=begin, end=end, kind="serial")
                    self.ranges = ranges_inside_loops([loop], self.ranges)
                    return [replace(loop, body=Block(self.coarsen_stmt(stmt.body)))]
            case If(orelse=None) if not self.varies_between_lanes(cond := self.expr_for_lane(stmt.cond)):
                return [If(cond, Block(self.coarsen_stmt(stmt.then)))]
        return self.loop_over_lanes(self.stmt_for_single_lane(stmt))

    def coarsen_declaration(self, stmt: Declare) -> list[Stmt]:
        """Return a register declaration for all lanes (merged iterations): nothing for an index, an
        array if the values may differ.
        """
        var, value = stmt.var, self.expr_for_lane(stmt.value)
        if var not in self.changing and self.is_load_free_index(stmt.value):
            self.values[var] = value
            return []
        if var not in self.changing and not self.varies_between_lanes(value):
            return [replace(stmt, value=value)]
        array = self.new_per_lane_array(var.name, var.dtype)
        new_stmts = self.loop_over_lanes(Store(array, self.lane, value))
        self.values[var] = Load(array, self.lane)
        return new_stmts

    def coarsen_store(self, stmt: Store) -> list[Stmt]:
        """Return a store for all lanes (merged iterations), as one wide store if the elements are
        contiguous.
        """
        index, value = self.expr_for_lane(stmt.index), self.expr_for_lane(stmt.value)
        first = self.contiguous_first_index_counting_access(stmt.buffer, index)
        if first is None:
            return self.loop_over_lanes(Store(stmt.buffer, index, value))
        if (
            isinstance(value, Load)
            and (source := self.contiguous_first_index_counting_access(value.buffer, value.index)) is not None
        ):
            return self.wide_copy_stmts(stmt.buffer, first, value.buffer, source)
        array = self.new_per_lane_array("made", stmt.buffer.dtype)
        return [
            *self.loop_over_lanes(Store(array, self.lane, value)),
            *self.wide_copy_stmts(stmt.buffer, first, array, _INDEX_ZERO),
        ]

    def unroll_sliding_window_loop(self, loop: For) -> list[Stmt] | None:
        """Return a short sliding-window loop unrolled for all lanes, so that each input element is
        loaded once.

        Return None if the loop is not a sliding window over contiguous elements. Example, with four
        lanes:

        for k in max(1 - i, 0)..3: acc = acc + x[i + k - 1] * w[k]
        ->  if four > 0: window[0] = x[4 * four - 1]
            window[1:5] = x[4 * four : 4]; window[5] = x[4 * four + 4]
            if four > 0: acc[0] = acc[0] + window[0] * w[0]
            acc[1] = acc[1] + window[1] * w[0] ... acc[3] = acc[3] + window[5] * w[2]
        """
        begin, end, k = self.expr_for_lane(loop.begin), self.expr_for_lane(loop.end), loop.var
        low, high = bounds(begin, self.ranges)[0], bounds(end, self.ranges)[1]
        stmts = block_stmts_or_self(loop.body)
        if (
            low
            or not 1 < high <= _MAX_UNROLLED_WINDOW_ITERATIONS
            or loop.step > 1
            or not all(isinstance(s, Assign) for s in stmts)
        ):
            return None
        self.ranges = {**self.ranges, k: (0, high - 1)}
        body = [self.stmt_for_single_lane(s) for s in stmts]
        tests = [k >= e for e in operands_of_nested_min_max("max", begin)] + [
            k < e for e in operands_of_nested_min_max("min", end)
        ]
        tests = [test for test in tests if not isinstance(simplify(test, self.ranges), Const)]
        forms = {load: linear_form(load.index, self.ranges) for s in body for load in direct_loads(s)}
        along = {load: form for load, form in forms.items() if form.coefficient(self.lane)}
        window_forms = {load: form for load, form in along.items() if form.coefficient(k) == 1}
        step = next((int(form.coefficient(self.lane) or 0) for form in window_forms.values()), 0)
        halves = [half for test in tests if (half := comparison_as_nonnegative_form(test, self.ranges)) is not None]
        sums = (*window_forms.values(), *halves)
        follow = all(f.coefficient(self.lane) == step * (f.coefficient(k) or 0) for f in sums)
        if step < 1 or len(halves) < len(tests) or not follow:
            return None
        new_stmts: list[Stmt] = []
        windows: dict[Load, Expr] = {}
        for load in window_forms:
            window = Buffer("window", load.dtype, (self.lanes - 1) * step + int(high), "stack", MAX_ACCESS_BYTES)
            self.stack.append(window)
            new_stmts += self.load_window_into_array(window, load, tests, k)
            windows[load] = Load(window, self.lane * step + k)
        steady = [load for load in forms if self.is_in_bounds_and_same_for_all_lanes(load)]
        for n, lane in product(range(int(high)), range(self.lanes)):
            names: dict[Var, Expr] = {k: Const(n, INDEX), self.lane: Const(lane, INDEX)}
            if lane == 0:
                registers = {
                    load: bind_to_new_register(load.buffer.name, substitute(load, names), new_stmts) for load in steady
                }
            once = [_replace_loads_and_vars(s, {**windows, **registers}, names) for s in body]
            new_stmts += self.guard_stmts(
                [self.expr_for_window_element(test, k, n + lane * step) for test in tests], once
            )
        return new_stmts

    def is_in_bounds_and_same_for_all_lanes(self, load: Load) -> bool:
        """Return True if all lanes (merged iterations) load one common element, which is always
        within its buffer.
        """
        first, last = bounds(load.index, self.ranges)
        return not self.varies_between_lanes(load) and first >= 0 and last < load.buffer.size

    def load_window_into_array(
        self, window: Buffer, load: Load, conditions: Sequence[Expr], window_var: Var
    ) -> list[Stmt]:
        """Return statements that load a sliding window into an array, with wide loads where
        elements are known to be in bounds.
        """
        size, new_stmts, at = self.elements_per_wide_access(load.dtype), list[Stmt](), 0
        while at < window.size:
            tests = [
                self.expr_for_window_element(test, window_var, n)
                for n in range(at, min(at + size, window.size))
                for test in conditions
            ]
            first = self.expr_for_window_element(load.index, window_var, at)
            whole = (
                is_single_instruction_vector_access(load.buffer, linear_form(first, self.ranges), size)
                and at + size <= window.size
            )
            if whole and size > 1 and all(isinstance(test, Const) and test.value for test in tests):
                array = self.new_per_lane_array("piece", load.dtype)
                new_stmts += self.wide_copy_stmts(array, _INDEX_ZERO, load.buffer, first)
                new_stmts += [Store(window, Const(at + n, INDEX), Load(array, Const(n, INDEX))) for n in range(size)]
                at += size
                continue
            store = Store(window, Const(at, INDEX), Load(load.buffer, first))
            new_stmts += self.guard_stmts(tests[: len(conditions)], [store])
            at += 1
        return new_stmts

    def guard_stmts(self, conditions: Sequence[Expr], stmts: Sequence[Stmt]) -> Sequence[Stmt]:
        """Return statements under conditions; unconditional, or nothing, if the conditions are
        known to be true or false.
        """
        known = simplify(all_of(*conditions), self.ranges)
        if isinstance(known, Const):
            return stmts if known.value else ()
        return [If(known, Block(stmts))]

    def expr_for_window_element(self, expr: Expr, window_var: Var, element: int) -> Expr:
        """Return an expression for element `element` of a sliding window: `window_var` is that
        number, and the lane is 0.
        """
        return simplify(substitute(expr, {window_var: Const(element, INDEX), self.lane: _INDEX_ZERO}), self.ranges)

    def stmt_for_single_lane(self, stmt: Stmt) -> Stmt:
        """Return a statement for one lane (one of the merged iterations), with its registers
        replaced by array elements.
        """
        array = self.values.get(stmt.var) if isinstance(stmt, Assign) else None
        if isinstance(stmt, Assign) and isinstance(array, Load):
            return Store(array.buffer, self.lane, self.expr_for_lane(stmt.value))
        return rebuild_stmt(stmt, self.stmt_for_single_lane, self.expr_for_lane)

    def loop_over_lanes(self, stmt: Stmt) -> list[Stmt]:
        """Return a loop over the lanes around a statement, preceded by wide loads of the elements
        that it reads.
        """
        before: list[Stmt] = []
        if not isinstance(stmt, Store):
            loads = (load for s in walk_stmts(stmt) for load in direct_loads(s) if load.buffer not in self.stack)
            self.element_access_count += sum(
                linear_form(load.index, self.ranges).coefficient(self.lane) == 1 for load in loads
            )
        else:
            stmt = Store(stmt.buffer, stmt.index, self.replace_contiguous_loads(stmt.value, (), {}, before))
        return [*before, For(self.lane, self.lanes, stmt)]

    def wide_copy_stmts(self, target: Buffer, target_index: Expr, source: Buffer, source_index: Expr) -> list[Stmt]:
        """Return statements that copy one element per merged iteration from `source` to `target`,
        in wide memory accesses.
        """
        size = self.elements_per_wide_access(target.dtype)
        return [
            Store(target, target_index + k, Load(source, source_index + k, size)) for k in range(0, self.lanes, size)
        ]

    # expressions

    def expr_for_lane(self, expr: Expr) -> Expr:
        """Return an expression for one of the merged iterations, with indices simplified to linear
        forms where possible.
        """
        return self.linearize_indices(substitute(expr, self.values))

    def linearize_indices(self, expr: Expr) -> Expr:
        """Return an expression with the indices in it simplified to linear forms."""
        if expr.dtype == INDEX and expr.lanes == 1 and self.varies_between_lanes(expr) and not loads_in(expr):
            return simplify_divmods_in_form(linear_form(expr, self.ranges), self.ranges).to_expr()
        return with_operands(expr, tuple(map(self.linearize_indices, operands(expr))))

    def replace_contiguous_loads(
        self, expr: Expr, guards: Sequence[Expr], replacements: dict[Expr, Expr], wide_loads: list[Stmt]
    ) -> Expr:
        """Return an expression with loads of contiguous elements replaced by loads from arrays;
        wide loads are added to `wide_loads`.

        Loads under a condition (`guards`) stay under that condition.
        """
        if isinstance(expr, Select) and self.varies_between_lanes(expr.cond):
            return replace(expr, cond=self.replace_contiguous_loads(expr.cond, guards, replacements, wide_loads))
        if isinstance(expr, Select):
            sides = ((expr.a, expr.cond), (expr.b, unary("not", expr.cond)))
            return Select(
                expr.cond, *(self.replace_contiguous_loads(e, (*guards, cond), {}, wide_loads) for e, cond in sides)
            )
        if isinstance(expr, Load) and expr not in replacements:
            first = self.contiguous_first_index_counting_access(expr.buffer, expr.index)
            if first is not None:
                array = self.new_per_lane_array("piece", expr.dtype)
                copy_stmts = self.wide_copy_stmts(array, _INDEX_ZERO, expr.buffer, first)
                wide_loads += [If(all_of(*guards), Block(copy_stmts))] if guards else copy_stmts
                replacements[expr] = Load(array, self.lane)
        if expr in replacements:
            return replacements[expr]
        inner = (self.replace_contiguous_loads(e, guards, replacements, wide_loads) for e in operands(expr))
        return with_operands(expr, tuple(inner))

    def contiguous_first_index_counting_access(self, buffer: Buffer, index: Expr) -> Expr | None:
        """Return the index of the first lane's element if the lanes access contiguous, aligned
        elements; else None.

        Counts the access in `vector_access_count` or `element_access_count`.
        """
        form = linear_form(index, self.ranges)
        step = form.coefficient(self.lane)
        if buffer in self.stack or not step:
            return None
        if step != 1:
            self.element_access_count += abs(step) * buffer.dtype.itemsize < self.transaction_bytes
            return None
        form = form.add_multiple(LinearForm({self.lane: 1}), -1)
        if not is_single_instruction_vector_access(buffer, form, self.elements_per_wide_access(buffer.dtype)):
            self.element_access_count += 1
            return None
        self.vector_access_count += 1
        return form.to_expr()

    def varies_between_lanes(self, expr: Expr) -> bool:
        """Return True if an expression may differ between the lanes (iterations executed by one
        coarsened thread).
        """
        return self.lane in vars_and_buffers_in(expr)

    def is_load_free_index(self, expr: Expr) -> bool:
        """Return True if an expression is an index that loads nothing from memory."""
        return expr.dtype == INDEX and not loads_in(expr)

    def elements_per_wide_access(self, dtype: DType) -> int:
        """Return the number of elements that one memory access of up to 16 bytes covers, at most
        one per lane.
        """
        return min(self.lanes, MAX_ACCESS_BYTES // dtype.itemsize)

    def new_per_lane_array(self, name: str, dtype: DType) -> Buffer:
        """Return a new stack array with one element for each lane (iteration executed by one
        coarsened thread).
        """
        self.stack.append(Buffer(name, dtype, self.lanes, "stack", MAX_ACCESS_BYTES))
        return self.stack[-1]


def _replace_loads_and_vars(
    stmt: Stmt, load_replacements: Mapping[Load, Expr], var_replacements: Mapping[Var, Expr]
) -> Stmt:
    """Return a statement with the loads in `load_replacements`, then the variables in
    `var_replacements`, replaced.
    """
    return map_exprs(stmt, lambda e: substitute(replace_loads(e, load_replacements), var_replacements))


def iterations_per_wide_store(loop: For, body: Stmt) -> int:
    """Return the number of iterations whose stores fill one wide memory access; 1 if the stores are
    not contiguous.
    """
    stores = (s for s in walk_stmts(body) if isinstance(s, Store))
    sizes = [s.buffer.dtype.itemsize for s in stores if linear_form(s.index, {}).coefficient(loop.var) == 1]
    return MAX_ACCESS_BYTES // max(sizes) if sizes else 1
