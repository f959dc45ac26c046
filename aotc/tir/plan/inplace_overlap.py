# SPDX-License-Identifier: Apache-2.0
"""Compute how far an output of a kernel may overlap an input in memory, if the input is not used
after the kernel.

Input: a kernel without vectors and threads. Output: a distance in bytes. If the output starts at
least this many bytes before the input, every byte is overwritten only after its last read:

    for r in 0..8: for c in 0..16: y[16 * r + c] = x[16 * r + c] + x[16 * r + c + 16]     # 0: reads ahead only
    for r in 1..8: for c in 0..16: y[16 * r + c] = x[16 * r + c] + x[16 * r + c - 16]     # 17: reads the previous row

The order of reads and writes is enumerated over the iterations of the outer loops, up to
`MAX_ENUMERATED_ITERATIONS` iterations. For the statements inside, only the smallest element read
and the largest element written count, as if the reads came last. The iterations of a kernel with
numbers, such as extents that are known at run time only, cannot be enumerated: the access relation
proves a distance for each loop, between a store and the loads of later iterations, and for each
sequence of statements. Sources: row-delayed convolutions
in Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020), and
diagonal memory optimization, Blacker et al. (2023); the distance is derived from the indices here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.tir import Buffer, Expr, Var, substitute
from aotc.tir.expr import INDEX, loads_in
from aotc.tir.loops.access_collection import collect_accesses
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.loop_dependence import (
    Ranges,
    assigned_registers,
    constant_loop_range,
    is_replaceable_by_value,
    loop_var_interval,
    written_buffers,
)
from aotc.tir.simplify import Bound
from aotc.tir.stmt import Assign, Block, Declare, For, If, Kernel, Stmt, Store, map_exprs, rebuild_stmt

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
#: Largest number of iterations of outer loops that are enumerated.
MAX_ENUMERATED_ITERATIONS: Final = 1 << 16
#: Types that may alias every other type in C.
_ALIASING_DTYPES: Final = frozenset({"int8", "uint8"})


def may_alias_by_c_rules(output: Buffer, source: Buffer) -> bool:
    """Return True if C's aliasing rules permit accesses to a common memory area by both buffers'
    types.
    """
    return output.dtype == source.dtype or bool(_ALIASING_DTYPES & {str(output.dtype), str(source.dtype)})


def min_overlap_distance_bytes(kernel: Kernel, output: Buffer, source: Buffer) -> int | None:
    """Return by how many bytes an output must start before an input to overlap it safely; None if
    it must not.

    A negative distance means that the output may start that many bytes after the input. It holds for all
    values of the numbers of a kernel.
    """
    if kernel.source is not None or kernel.team or not may_alias_by_c_rules(output, source):
        return None
    if kernel.numbers:
        ranges: Ranges = {number.var: number.interval for number in kernel.numbers if number.var.dtype == INDEX}
        fixed = frozenset(number.var for number in kernel.numbers)
        least = _OrderOfAccesses(output, source).least_distance_of_stmt(kernel.body, ranges, fixed)
        return int(least) if -math.inf < least < math.inf else None
    events = _AccessTrace(output, source)
    events.trace_stmt(kernel.body, np.zeros(()), ())
    if not events.times:
        return None
    times = np.concatenate(events.times)
    order = np.argsort(times, kind="stable")
    written = np.maximum.accumulate(np.concatenate(events.writes)[order])
    reads = np.concatenate(events.reads)[order]
    after = np.minimum.accumulate(reads[::-1])[::-1]
    # a single store writes after it has read
    plain = np.concatenate(events.plain)[order]
    later = np.append(after[1:], math.inf)
    after = np.where(plain, later, after)
    needed = (written + 1) * output.dtype.itemsize - after * source.dtype.itemsize
    return int(needed.max()) if -math.inf < needed.max() < math.inf else None


@dataclass
class _OrderOfAccesses:
    """Computes distances by the access relation, for all values of the numbers of a kernel."""

    output: Buffer
    source: Buffer

    def least_distance_of_stmt(self, stmt: Stmt, ranges: Ranges, fixed: frozenset[Var]) -> Bound:
        """Return the least distance in bytes at which no load of the input in a statement reads what the
        statement has overwritten; infinity if none is proven, minus infinity if every distance has
        this property.

        ranges    the ranges of the variables around the statement
        fixed     the loop variables and numbers around it
        """
        match stmt:
            case Store() | Declare() | Assign():
                return -math.inf  # it loads before it stores
            case Block():
                return self._least_distance_of_sequence(stmt, ranges, fixed)
            case If(then=then, orelse=orelse):
                branches = (then,) if orelse is None else (then, orelse)
                return max(self.least_distance_of_stmt(branch, ranges, fixed) for branch in branches)
            case For(begin=begin, end=end) if not any(self._loads_input(e) for e in (begin, end)):
                inside = {**ranges, stmt.var: loop_var_interval(stmt, ranges)}
                in_body = self.least_distance_of_stmt(stmt.body, inside, fixed | {stmt.var})
                stored, loaded = self._accesses(stmt.body, inside, around=stmt)
                return max(in_body, self._least_distance(stored, loaded, fixed, (stmt.var, stmt.step)))
        return self._least_distance(*self._accesses(stmt, ranges), fixed)

    def _least_distance_of_sequence(self, block: Block, ranges: Ranges, fixed: frozenset[Var]) -> Bound:
        least: Bound = -math.inf
        stored = AccessRelation()
        for stmt in _stmts_with_replaced_registers(block):
            new_stores, loaded = self._accesses(stmt, ranges)
            within = self.least_distance_of_stmt(stmt, ranges, fixed)
            least = max(least, within, self._least_distance(stored, loaded, fixed))
            stored.accesses += new_stores.accesses
        return least

    def _loads_input(self, expr: Expr) -> bool:
        return any(load.buffer is self.source for load in loads_in(expr))

    def _accesses(self, stmt: Stmt, ranges: Ranges, around: For | None = None) -> tuple[AccessRelation, AccessRelation]:
        """Return the stores of a statement to the output, and its loads of the input."""
        accesses = {self.output: AccessRelation(), self.source: AccessRelation()}
        collect_accesses(stmt, ranges, accesses, expands_registers=True, around=around)
        stores, loads = accesses[self.output], accesses[self.source]
        return stores.accesses_of_kind(is_write=True), loads.accesses_of_kind(is_write=False)

    def _least_distance(
        self, stored: AccessRelation, loaded: AccessRelation, fixed: frozenset[Var], loop: tuple[Var, int] | None = None
    ) -> Bound:
        if not stored.accesses or not loaded.accesses:
            return -math.inf
        element_bytes = self.output.dtype.itemsize, self.source.dtype.itemsize
        return stored.least_distance(loaded, element_bytes, fixed, loop)


def _stmts_with_replaced_registers(block: Block) -> Iterator[Stmt]:
    """Yield the statements of a sequence; index registers that do not change are replaced by their values
    in the statements after their declaration.
    """
    changing, values = assigned_registers(block) | written_buffers(block), dict[Var, Expr]()
    for stmt in block.stmts:
        new_stmt = map_exprs(stmt, lambda e: substitute(e, values)) if values else stmt
        yield new_stmt
        if isinstance(new_stmt, Declare) and is_replaceable_by_value(new_stmt, changing):
            values[new_stmt.var] = new_stmt.value


class _AccessTrace:
    """Trace of a kernel's events: for each, its time, the largest element written and the smallest
    element read.
    """

    def __init__(self, output: Buffer, source: Buffer) -> None:
        self.output, self.source = output, source
        self.times: list[Array] = []
        self.writes: list[Array] = []
        self.reads: list[Array] = []
        self.plain: list[Any] = []

    def trace_stmt(self, stmt: Stmt, start_times: Array, outer_loops: tuple[For, ...]) -> None:
        """Add the events of a statement, given its start time for each iteration of the enclosing
        loops.
        """
        if isinstance(stmt, Block):
            for inner in _stmts_with_replaced_registers(stmt):
                self.trace_stmt(inner, start_times, outer_loops)
                start_times = start_times + _traced_stmt_execution_count(inner, outer_loops)
            return
        if isinstance(stmt, For) and _has_few_enough_iterations_to_enumerate(stmt, outer_loops):
            count = len(constant_loop_range(stmt))
            length = _traced_stmt_execution_count(stmt.body, (*outer_loops, stmt))
            self.trace_stmt(stmt.body, start_times[..., None] + np.arange(count) * length, (*outer_loops, stmt))
            return
        self.record_stmt_execution_times_and_accesses(stmt, start_times, outer_loops)

    def record_stmt_execution_times_and_accesses(
        self, stmt: Stmt, start_times: Array, outer_loops: tuple[For, ...]
    ) -> None:
        ranges: Ranges = {}
        for loop in outer_loops:
            ranges[loop.var] = loop_var_interval(loop, ranges)
        reads, writes = self._lowest_read_and_highest_write(stmt, ranges, outer_loops)
        shape = np.broadcast_shapes(start_times.shape, tuple(len(constant_loop_range(loop)) for loop in outer_loops))
        for trace, array in ((self.times, start_times), (self.writes, writes), (self.reads, reads)):
            trace.append(np.broadcast_to(array, shape).ravel())
        self.plain.append(np.full(self.times[-1].shape, isinstance(stmt, (Store, Declare))))

    def _lowest_read_and_highest_write(
        self, stmt: Stmt, ranges: Ranges, outer_loops: tuple[For, ...]
    ) -> tuple[Array, Array]:
        """Return the smallest element read and the largest written, for each iteration of the
        enclosing loops.
        """
        read, written = AccessRelation(), AccessRelation()
        collect_accesses(stmt, ranges, {self.source: read}, stores=False, expands_registers=True)
        collect_accesses(stmt, ranges, {self.output: written}, reads=False, expands_registers=True)
        loops = [(loop.var, constant_loop_range(loop)) for loop in outer_loops]
        least, greatest = read.bounds_by_iteration(loops)[0], written.bounds_by_iteration(loops)[1]
        return np.maximum(least, 0), np.minimum(greatest, self.output.size - 1)


def _has_few_enough_iterations_to_enumerate(loop: For, outer_loops: Sequence[For]) -> bool:
    count = math.prod(len(constant_loop_range(outer)) for outer in (*outer_loops, loop))
    return 0 < count <= MAX_ENUMERATED_ITERATIONS


def _traced_stmt_execution_count(stmt: Stmt, outer_loops: tuple[For, ...]) -> int:
    """Return the number of events (executed statements) that the trace of a statement has."""
    if isinstance(stmt, Block):
        return sum(_traced_stmt_execution_count(inner, outer_loops) for inner in stmt.stmts)
    if isinstance(stmt, For) and _has_few_enough_iterations_to_enumerate(stmt, outer_loops):
        return len(constant_loop_range(stmt)) * _traced_stmt_execution_count(stmt.body, (*outer_loops, stmt))
    return 1


def make_loops_serial_for_overlap(kernel: Kernel, overlapping_pairs: Sequence[tuple[int, int]]) -> Kernel:
    """Return the kernel with (output, input) pairs marked as overlapping, so that its iterations
    run in program order.
    """

    def make_loops_serial(stmt: Stmt) -> Stmt:
        stmt = rebuild_stmt(stmt, make_loops_serial)
        if isinstance(stmt, For) and stmt.kind == "independent":
            return replace(stmt, kind="serial")
        return stmt

    overlaps = tuple(sorted({*kernel.overlaps, *overlapping_pairs}))
    if overlaps == kernel.overlaps:
        return kernel
    return replace(kernel, body=make_loops_serial(kernel.body), overlaps=overlaps)
