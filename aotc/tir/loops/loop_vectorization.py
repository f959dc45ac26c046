# SPDX-License-Identifier: Apache-2.0
"""Loop vectorization: strip-mine the independent loops of a kernel by the vector width.

    for i in 0..100: y[i] = max(x[i], 0)    ->    for i in 0..96 by 16: y[i:16] = max(x[i:16], 0)
                                                  y[84:16] = max(x[84:16], 0)

The last elements are computed by an overlapping vector where that is safe, else by a remainder
loop. Loops without a vector form do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import (
    Block,
    C,
    Expr,
    Target,
    Var,
    merge_4_adjacent_quantized_byte_stores,
    pack_outer_iterations_into_inner_loop,
    promote_scratch_to_registers,
    rename_declared_vars,
    substitute_in_stmt,
    unrolled_iterations,
    vars_and_buffers_in,
)
from aotc.tir.expr import INDEX, Binary, Buffer, Call, Cast, Const, Load, Pack, Select, Unary, maximum, operands
from aotc.tir.loops.access_collection import collect_accesses
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.loop_dependence import (
    constant_trip_count,
    decrement_loop_end,
    is_innermost,
    read_buffers,
    straight_line_stmts,
    written_buffers,
)
from aotc.tir.loops.loop_dependence import ranges_inside_loops as ranges_in
from aotc.tir.loops.register_transposes import transpose_squares_in_registers
from aotc.tir.loops.statement_vectorization import ScalarError, vectorize_stmt, vectorize_stmt_or_none
from aotc.tir.simplify import Ranges, bounds, linear_form, simplify
from aotc.tir.simplify_statements import simplify_stmt
from aotc.tir.stmt import (
    Declare,
    For,
    Kernel,
    Stmt,
    Store,
    all_exprs_in_stmt,
    count_exprs_in_stmt,
    forall,
    memoized_kernel,
    modified_vars_and_buffers,
    rebuild_stmt,
    walk_stmts,
)

#: Smallest number of elements of a vector.
MIN_VECTOR_ELEMENTS: Final = 4
#: Largest number of expression nodes of a loop that is fully unrolled.
_MAX_UNROLLED_NODES: Final = 200
_DIVISION_OPS: Final = frozenset({"floordiv", "floormod", "truncdiv", "truncmod"})


def vectorize_kernel(kernel: Kernel, target: Target) -> Kernel:
    """Return a kernel with its independent loops vectorized.

    Kernels of user-supplied C source, and all kernels on targets without vectors, are returned
    unchanged.
    """
    if kernel.source is not None or target.is_scalar:
        return kernel
    registers = target.registers // 2
    source = ("lanes", kernel, target.vector_bytes, target.call_cost, target.min_shuffled_bytes, registers)
    loops = _LoopVectorizer(target, _may_alias_buffer_pairs(kernel), has_run_time_sizes=_has_run_time_sizes(kernel))

    def kernel_with_vectorized_body() -> Kernel:
        body = merge_4_adjacent_quantized_byte_stores(loops.vectorize_loops_in_stmt(kernel.body, {}), loops.shared)
        body = unroll_short_inner_loops(promote_scratch_to_registers(body, registers))
        return replace(kernel, body=body, stack=(*kernel.stack, *loops.scratch))

    return memoized_kernel("lanes", source, kernel.span, kernel_with_vectorized_body)


def why_loop_not_vectorized(loop: For, kernel: Kernel, ranges: Ranges) -> str:
    """Return the reason why a loop of a kernel is not vectorized, as text for reports.

    loop     the loop
    kernel   the kernel that contains it
    ranges   ranges of the loop variable and of the variables around the loop
    """
    extent = bounds(loop.end - loop.begin, ranges)[1]
    if extent < MIN_VECTOR_ELEMENTS:
        return f"fewer elements than a vector has, {extent}"
    if loop.step != 1:
        return f"elements {loop.step} apart"
    if _LoopVectorizer(C, _may_alias_buffer_pairs(kernel)).may_read_overwritten_alias(loop, ranges):
        return "results that may lie where other elements are read"
    try:
        inside = not _has_run_time_sizes(kernel) and _are_loads_in_bounds(loop.body, ranges)
        for packs in (True, False):  # computing elements one by one may be possible but too slow
            vectorize_stmt(
                *_loop_body_at_new_lane_variable(loop, loop.begin),
                MIN_VECTOR_ELEMENTS,
                {},
                loads_in_bounds=inside,
                may_scalarize=packs,
            )
    except ScalarError as error:
        return str(error)
    return f"numbers of which vectors have fewer than {MIN_VECTOR_ELEMENTS}"


def _may_alias_buffer_pairs(kernel: Kernel) -> frozenset[tuple[Buffer, Buffer]]:
    """Return the pairs of an output and an input buffer that may share memory."""
    return frozenset((kernel.outputs[o], kernel.inputs[i]) for o, i in kernel.inplace)


def _has_run_time_sizes(kernel: Kernel) -> bool:
    """Return True if a number of a kernel is an extent."""
    return any(number.var.dtype == INDEX for number in kernel.numbers)


def _is_multiple(expr: Expr, factor: int) -> bool:
    """Return True if an expression is not constant, and a multiple of a number by its linear form."""
    form = linear_form(expr, {})
    return bool(form.terms) and all(number % factor == 0 for number in (*form.terms.values(), form.const))


@frozen
class _LoopVectorizer:
    """Vectorizes the loops of a kernel for a target.

    target    the target, whose vectors have `target.vector_bytes` bytes
    shared    pairs of an output and an input buffer that may share memory
    has_run_time_sizes    True if tensors may be smaller than their buffers: what lies behind them is not read
    scratch   new scratch buffers of packed loops
    """

    target: Target
    shared: frozenset[tuple[Buffer, Buffer]]
    has_run_time_sizes: bool = False
    scratch: list[Buffer] = field(default_factory=list)

    def vectorize_loops_in_stmt(self, stmt: Stmt, ranges: Ranges) -> Stmt:
        """Return a statement with its loops vectorized, innermost loops first: a loop is tried if
        no loop inside it has vectors.

        `ranges` are the ranges of the variables around the statement.
        """
        if isinstance(stmt, For):
            new_nest = self._pack_and_vectorize_short_loop(stmt, ranges) or self._transpose_in_registers(stmt, ranges)
            if new_nest is not None:
                return new_nest
            ranges = ranges_in([stmt], dict(ranges))
        new_stmt = rebuild_stmt(stmt, lambda s: self.vectorize_loops_in_stmt(s, ranges))
        if not isinstance(stmt, For) or stmt.kind != "independent" or stmt.step != 1 or contains_vectors(new_stmt):
            return new_stmt
        if self.may_read_overwritten_alias(stmt, ranges):
            return new_stmt
        lanes, most = self.target.vector_bytes // _widest_element_bytes(stmt), bounds(stmt.end - stmt.begin, ranges)[1]
        while lanes >= MIN_VECTOR_ELEMENTS and most < 2 * lanes and not isinstance(stmt.end, Const):
            lanes //= 2  # a loop that may be empty would be hard to verify
        inside = not self.has_run_time_sizes and _are_loads_in_bounds(stmt.body, ranges)
        return self._strip_mine_and_vectorize(stmt, lanes, inside) or new_stmt

    def _pack_and_vectorize_short_loop(self, nest: For, ranges: Ranges) -> Stmt | None:
        """Return a loop nest with its short inner loop packed (`pack_outer_iterations_to_vector`)
        and vectorized; None if it cannot be packed.
        """
        lanes = self.target.vector_bytes // _widest_element_bytes(nest) if isinstance(nest.body, For) else 0
        packed_nest = (
            pack_outer_iterations_into_inner_loop(nest, lanes, dict(ranges), self._buffers_that_may_alias())
            if lanes >= MIN_VECTOR_ELEMENTS and not self.has_run_time_sizes
            else None
        )
        if packed_nest is None:
            return None
        stmt, scratch = packed_nest
        self.scratch.extend(scratch)
        return self.vectorize_loops_in_stmt(stmt, ranges)

    def _transpose_in_registers(self, nest: For, ranges: Ranges) -> Stmt | None:
        """Return a transposing copy with square blocks transposed in registers, and its remainder
        loops vectorized; None for other loops.
        """
        if self._buffers_that_may_alias() & (read_buffers(nest) | written_buffers(nest)):
            return None
        squares = transpose_squares_in_registers(nest, self.target.vector_bytes, self.target.min_shuffled_bytes)
        return None if squares is None else self.vectorize_loops_in_stmt(squares, ranges)

    def _buffers_that_may_alias(self) -> set[Buffer]:
        """Return the inputs and outputs that may share memory with each other."""
        return {buffer for pair in self.shared for buffer in pair}

    def _strip_mine_and_vectorize(self, loop: For, lanes: int, loads_in_bounds: bool) -> Stmt | None:
        """Return a vectorized loop, with a remainder loop if needed; None if no vector width fits.

        lanes              elements of a vector; halved if the loop is shorter
        loads_in_bounds    all loads are within their buffers even where conditions are false
        """
        if lanes < MIN_VECTOR_ELEMENTS:
            return None
        count = simplify(maximum(loop.end - loop.begin, 0) // lanes * lanes, {})
        if isinstance(count, Const) and count.value == 0:
            return self._strip_mine_and_vectorize(loop, lanes // 2, loads_in_bounds)
        var, once = Var(loop.var.name), isinstance(count, Const) and count.value == lanes
        vectors = self._vector_form_of_body(loop, loop.begin if once else var, lanes, loads_in_bounds)
        if vectors is None or not _has_no_more_scalar_than_vector_work(vectors, self.target.call_cost):
            return None
        if self.has_run_time_sizes and _is_multiple(loop.end - loop.begin, lanes):
            return forall(var, loop.end, vectors, begin=loop.begin, step=lanes)
        whole = simplify(loop.begin + count, {})
        end = whole if isinstance(whole, Const) else decrement_loop_end(loop.end, lanes - 1)
        most = vectors if once else forall(var, end, vectors, begin=loop.begin, step=lanes)
        if not isinstance(whole, Const):
            rest = Var("rest", INDEX)
            return Block((Declare(rest, whole), most, replace(loop, begin=rest)))
        if whole == loop.end:
            return most
        if (last := self._remainder_as_overlapping_last_vector(loop, whole, lanes, loads_in_bounds)) is not None:
            return Block((most, last))
        remainder = replace(loop, begin=whole, body=rename_declared_vars(loop.body))
        return Block((most, self._strip_mine_and_vectorize(remainder, lanes // 2, loads_in_bounds) or remainder))

    def _remainder_as_overlapping_last_vector(
        self, loop: For, first_remaining: Const, lanes: int, loads_in_bounds: bool
    ) -> Stmt | None:
        """Return the elements from `first_remaining` on computed by one vector, which may repeat
        some elements; None if that is unsafe.

        Repeating an iteration is safe if the loop reads nothing that it writes. Vectors with
        function calls have the width of the main loop, as each width would need its own definitions
        of the functions.
        """
        reads, writes = read_buffers(loop.body), written_buffers(loop.body)
        if writes & reads or any((w, r) in self.shared for w in writes for r in reads):
            return None
        rest = bounds(loop.end - first_remaining, {})[1]
        if not any(isinstance(n, Call) for n in all_exprs_in_stmt(loop.body)):
            if rest == 1:
                return substitute_in_stmt(rename_declared_vars(loop.body), {loop.var: first_remaining})
            while lanes // 2 >= max(rest, MIN_VECTOR_ELEMENTS):
                lanes //= 2
        return self._vector_form_of_body(loop, loop.end - lanes, lanes, loads_in_bounds)

    def _vector_form_of_body(self, loop: For, first_iteration: Expr, lanes: int, loads_in_bounds: bool) -> Stmt | None:
        """Return the vector form of a loop body for `lanes` iterations from `first_iteration` on;
        None if it has none.
        """
        return vectorize_stmt_or_none(
            *_loop_body_at_new_lane_variable(loop, first_iteration),
            lanes,
            {},
            loads_in_bounds=loads_in_bounds,
            may_scalarize=True,
        )

    def may_read_overwritten_alias(self, loop: For, ranges: Ranges) -> bool:
        """Return True if vectors of a loop may read an input, through memory shared with an output, that
        another iteration has overwritten.

        A single store is safe: its vector is loaded before it is stored. Otherwise the statements of
        several iterations change their order, and no iteration may write an element that another one
        accesses.

        ranges    the ranges of the loop variable and of the variables around the loop
        """
        if sum(isinstance(s, Store) for s in walk_stmts(loop.body)) == 1 and is_innermost(loop):
            return False
        written, read = written_buffers(loop.body), read_buffers(loop.body)
        fixed = {n for e in all_exprs_in_stmt(loop) for n in vars_and_buffers_in(e) if isinstance(n, Var)}
        fixed -= modified_vars_and_buffers(loop)
        for output, source in self.shared:
            if output in written and source in read:
                both = AccessRelation()
                memory = {output: both, source: both}
                collect_accesses(loop.body, dict(ranges), memory, expands_registers=True, around=loop)
                if not both.is_injective(loop.var, loop.step, fixed):
                    return True
        return False


def unroll_short_inner_loops(stmt: Stmt, is_inside_loop: bool = False) -> Stmt:
    """Return a statement with short scalar loops inside other loops fully unrolled, which C
    compilers do not do reliably.

    stmt              the statement
    is_inside_loop    the statement is inside a loop
    """
    inside = is_inside_loop or isinstance(stmt, For)
    new_stmt = rebuild_stmt(stmt, lambda s: unroll_short_inner_loops(s, inside))
    if not isinstance(new_stmt, For) or not is_inside_loop or contains_vectors(new_stmt):
        return new_stmt
    trips = constant_trip_count(new_stmt) or 0
    small = trips * count_exprs_in_stmt(new_stmt) <= _MAX_UNROLLED_NODES
    if not 0 < trips <= MIN_VECTOR_ELEMENTS or not small or straight_line_stmts(new_stmt) is None:
        return new_stmt
    return Block(simplify_stmt(copy, {}) for copy in unrolled_iterations(new_stmt))


def contains_vectors(stmt: Stmt) -> bool:
    """Return True if a statement contains an expression of more than one lane."""
    return any(n.lanes > 1 for n in all_exprs_in_stmt(stmt))


def _all_loads(stmt: Stmt) -> Sequence[Load]:
    """Return all loads in a statement and the statements nested in it."""
    return [n for n in all_exprs_in_stmt(stmt) if isinstance(n, Load)]


def _widest_element_bytes(loop: For) -> int:
    """Return the bytes of the widest element type that a loop loads, stores or converts to, without
    index computations.

    Narrow floats count as 4 bytes, as they are computed in float32.
    """
    buffers = [b.dtype for b in read_buffers(loop.body) | written_buffers(loop.body)]
    converted = [n.dtype for n in all_exprs_in_stmt(loop.body) if isinstance(n, Cast) and n.dtype != INDEX]
    return max(4 if d.is_narrow_float else d.itemsize for d in (*buffers, *converted))


def _has_no_more_scalar_than_vector_work(vectorized_stmt: Stmt, call_cost: int) -> bool:
    """Return True if a vectorized body does at least as much vector work as scalar work.

    Scalar work is that of vectors whose elements are computed one by one and then packed.
    `call_cost` is the cost of a function call or an integer division, in operations.
    """
    packs = [
        n.parts[0]
        for n in all_exprs_in_stmt(vectorized_stmt)
        if isinstance(n, Pack) and not isinstance(n.parts[0], Const)
    ]
    computed = (n for n in all_exprs_in_stmt(vectorized_stmt) if isinstance(n, (Binary, Call, Cast)) and n.lanes > 1)
    work = sum(call_cost if isinstance(n, Call) else 1 for n in computed)
    return not packs or work >= len(packs) + sum(_operation_count_without_load_indices(e, call_cost) for e in packs)


def _operation_count_without_load_indices(expr: Expr, call_cost: int) -> int:
    """Return the number of operations in an expression, without those that compute the addresses of
    loads.
    """
    inner = () if isinstance(expr, Load) else operands(expr)
    cost = call_cost if getattr(expr, "op", "") in _DIVISION_OPS else isinstance(expr, (Binary, Cast, Select, Unary))
    return cost + sum(_operation_count_without_load_indices(e, call_cost) for e in inner)


def _are_loads_in_bounds(stmt: Stmt, ranges: Ranges) -> bool:
    """Return True if all loads in a statement are within their buffers, even where the conditions
    around them are false.
    """
    known = ranges_in((s for s in walk_stmts(stmt) if isinstance(s, For)), dict(ranges))
    reached = ((load, bounds(load.index, known)) for load in _all_loads(stmt))
    return all(low >= 0 and high < load.buffer.size for load, (low, high) in reached)


def _loop_body_at_new_lane_variable(loop: For, first_iteration: Expr) -> tuple[Stmt, Var]:
    """Return a loop body for iteration `first_iteration + lane`, and the new variable `lane`."""
    lane = Var("lane")
    return substitute_in_stmt(rename_declared_vars(loop.body), {loop.var: first_iteration + lane}), lane
