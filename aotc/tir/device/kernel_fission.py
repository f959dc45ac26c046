# SPDX-License-Identifier: Apache-2.0
"""Kernel fission: split a kernel into parts that can be launched one by one, which are parallel
loops and the code between.

    scale = exp(b[0])                            # not stored: every part that needs it computes it
    for i in 0..64 independent: row[i] = ...     # a part
    sum = 0; for i in 0..64: sum = sum + row[i]  # a part for one thread, which leaves `sum` in memory
    for i in 0..64 independent: y[i] = row[i] * scale / sum
    for k in 0..9: for i in 0..64 independent: y[i] = y[i] + x[k * 64 + i]     # a thread for each i

Scratch memory that one part fills and another part reads becomes a buffer that is passed to both.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import (
    Gpu,
    Interval,
    Kernel,
    MemoryEffects,
    Stmt,
    ThreadSharedAccesses,
    direct_exprs_of_stmt,
    walk_stmts,
    written_buffers,
)
from aotc.tir.expr import INDEX, Buffer, Const, Expr, Load, Var, operands, vars_and_buffers_in, with_operands
from aotc.tir.loops.access_collection import collect_accesses
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.buffer_access import Access
from aotc.tir.loops.loop_dependence import (
    Ranges,
    assigns_to_outer_registers,
    constant_loop_range,
    known_trip_count,
    read_buffers,
)
from aotc.tir.loops.loop_kind_proof import why_loop_kind_unproven
from aotc.tir.stmt import (
    Assign,
    Block,
    Declare,
    For,
    Store,
    While,
    block_stmts_or_self,
    destination_of_stmt,
    direct_child_stmts,
    modified_vars_and_buffers,
    rebuild_stmt,
    redirect_destination,
    register_declared_by,
)

_INDEX_ZERO: Final[Expr] = Const(0, INDEX)
#: Assumed number of iterations of a loop of unknown length.
_ASSUMED_TRIP_COUNT: Final = 128


@frozen(eq=False)
class KernelPart:
    """A part of a kernel: a loop of independent iterations, or consecutive statements for one
    thread.

    before              declarations of the registers that the part uses, recomputed or reloaded
    stmts               a single loop whose iterations are independent, or statements that one
                        thread executes
    iteration_scratch   scratch of which each iteration needs its own copy
    """

    before: tuple[Stmt, ...]
    stmts: tuple[Stmt, ...]
    iteration_scratch: tuple[Buffer, ...] = ()

    @property
    def parallel_loop_or_none(self) -> For | None:
        """The loop of independent iterations that this part of a kernel is; None if the part is
        statements for one thread.
        """
        first = self.stmts[0] if self.stmts else None
        return first if isinstance(first, For) and len(self.stmts) == 1 and is_thread_parallel_loop(first) else None

    @property
    def part_statements_as_block(self) -> Block:
        """All statements of this part of a kernel, in order."""
        return Block((*self.before, *self.stmts))

    @property
    def has_explicit_gpu_loops(self) -> bool:
        """True if this part of a kernel has explicit loops over GPU blocks and threads."""
        return any(map(is_gpu_block_loop, self.stmts))

    @property
    def is_one_iteration_parallel_loop(self) -> bool:
        """True if this part of a kernel is a loop of one iteration, around loops that the threads
        of one block share.
        """
        return self.parallel_loop_or_none is not None and known_trip_count(self.parallel_loop_or_none) == 1


@frozen(eq=False)
class ParallelNest:
    """Nested loops of independent iterations around a body; the last loop is the one whose index
    counts fastest.

    loops           the loops, the outermost first
    body            the body of the innermost loop
    stack, shared   arrays that the body needs for each thread, and for each block
    thread          the variable of the thread index, if the threads of a block share each
                    iteration; else None
    """

    loops: tuple[For, ...]
    body: Block
    stack: tuple[Buffer, ...] = ()
    shared: tuple[Buffer, ...] = ()
    thread: Var | None = None

    @property
    def iteration_count(self) -> int:
        """The product of the trip counts of all loops of the nest."""
        return math.prod(map(known_trip_count, self.loops))

    def threads_per_block(self, gpu: Gpu) -> int:
        """Return the number of threads per GPU block for the nest, halved while that occupies more
        multiprocessors.
        """
        threads = gpu.threads
        if self.thread is not None:
            return threads
        while threads > gpu.warp and -(-self.iteration_count // threads) < gpu.processors:
            threads //= 2
        return threads

    def body_of_iteration(self, iteration_number: Expr) -> Block:
        """Return the body of the loop nest for the iteration whose row-major number is
        `iteration_number`, with declared loop variables.
        """
        digits: list[Expr] = []
        for loop in reversed(self.loops[1:]):
            digits.append(iteration_number % known_trip_count(loop))
            iteration_number = iteration_number // known_trip_count(loop)
        counted = zip(self.loops, [iteration_number, *reversed(digits)], strict=True)
        return Block((*(Declare(loop.var, loop.begin + digit * loop.step) for loop, digit in counted), self.body))


def is_thread_parallel_loop(stmt: Stmt) -> bool:
    """Return True if a statement is a loop whose iterations may run on different threads:
    independent, of constant bounds, and without assignments to outer registers.
    """
    if not (isinstance(stmt, For) and stmt.kind == "independent" and constant_loop_range(stmt)):
        return False
    return not any(True for _ in assigns_to_outer_registers(stmt))


def is_gpu_block_loop(stmt: Stmt) -> bool:
    """Return True if a statement is a loop over GPU thread blocks."""
    return isinstance(stmt, For) and stmt.kind == "block"


def _interchange_serial_with_parallel_loop(stmt: Stmt) -> Stmt:
    """Interchange a serial loop with the independent loop inside it, if the iterations of that loop
    carry no dependence.
    """
    if not isinstance(stmt, For) or stmt.kind == "independent":
        return stmt
    inside = [_interchange_serial_with_parallel_loop(s) for s in block_stmts_or_self(stmt.body)]
    if len(inside) != 1 or not isinstance(inside[0], For) or not is_thread_parallel_loop(inside[0]):
        return stmt
    new_loop = replace(inside[0], body=replace(stmt, body=inside[0].body))
    return new_loop if why_loop_kind_unproven(new_loop, {}, ()) is None else stmt


def executed_statement_count(stmt: Stmt) -> int:
    """Return the number of statements executed by a statement; a loop of unknown length counts as
    `_ASSUMED_TRIP_COUNT` iterations.
    """
    total, stack = 0, [(stmt, 1)]
    while stack:
        node, times = stack.pop()
        inner = direct_child_stmts(node)
        total += 0 if inner else times
        if isinstance(node, (For, While)):
            times *= (len(constant_loop_range(node)) if isinstance(node, For) else 0) or _ASSUMED_TRIP_COUNT
        stack += [(s, times) for s in inner]
    return total


def _is_worth_a_separate_gpu_launch(stmt: Stmt, gpu: Gpu) -> bool:
    """Return True if a loop is a GPU launch already, or has enough work to be launched separately."""
    return is_gpu_block_loop(stmt) or (
        is_thread_parallel_loop(stmt) and executed_statement_count(stmt) > gpu.costs.launch_statements
    )


def kernel_as_single_part(kernel: Kernel) -> KernelPart:
    """Return a kernel as a single part (unit of kernel fission), which one GPU thread executes."""
    return KernelPart((), block_stmts_or_self(kernel.body), kernel.stack)


def split_kernel_into_parts(kernel: Kernel, gpu: Gpu) -> list[KernelPart]:
    """Split a kernel into parts that can be launched separately, in order; a single part for one
    thread if that is impossible.
    """
    parts = _split_kernel_with_registers_in_memory(kernel, gpu)
    return (
        [kernel_as_single_part(kernel)]
        if parts is None
        else _pass_scratch_between_parts(kernel, parts) or [kernel_as_single_part(kernel)]
    )


def group_mutually_independent_parts(kernel: Kernel, parts: Sequence[KernelPart]) -> list[list[KernelPart]]:
    """Group the parts of a kernel into runs: parts of one run are independent, and depend on parts
    of earlier runs only.
    """
    uses = MemoryEffects(kernel, {b for part in parts for b in part.iteration_scratch})
    used = [uses.accesses_to_thread_shared_buffers(part.part_statements_as_block, {}) for part in parts]
    spans = [{b: _accessed_interval(u, b) for b in u.reads | u.writes} for u in used]
    runs: list[list[KernelPart]] = []
    at: list[int] = []
    for k, part in enumerate(parts):
        meeting = (
            j
            for j in range(k)
            if _do_intervals_of_buffers_overlap(spans[j], spans[k]) and used[k].needs_barrier_with(used[j])
        )
        at.append(max((at[j] + 1 for j in meeting), default=0))
        if at[k] == len(runs):
            runs.append([])
        runs[at[k]].append(part)
    return runs


def _accessed_interval(uses: ThreadSharedAccesses, buffer: Buffer) -> Interval:
    """Return the interval of elements of a buffer that a part may access; an infinite interval if
    that is unknown.
    """
    relations = [relations[buffer] for relations in (uses.reads, uses.writes) if buffer in relations]
    if not all(relation.accesses for relation in relations):
        return -math.inf, math.inf
    return AccessRelation([access for relation in relations for access in relation.accesses]).bounds()


def _do_intervals_of_buffers_overlap(
    a_intervals: Mapping[Buffer, Interval], b_intervals: Mapping[Buffer, Interval]
) -> bool:
    """Return True if two parts access overlapping intervals of a common buffer."""
    return any(
        a_intervals[buffer][0] <= b_intervals[buffer][1] and b_intervals[buffer][0] <= a_intervals[buffer][1]
        for buffer in a_intervals.keys() & b_intervals.keys()
    )


def _vars_and_buffers_read(stmts: Iterable[Stmt]) -> set[Var | Buffer]:
    """Return the registers and buffers that some statements read."""
    return {
        m for stmt in stmts for s in walk_stmts(stmt) for e in direct_exprs_of_stmt(s) for m in vars_and_buffers_in(e)
    }


def _split_kernel_with_registers_in_memory(kernel: Kernel, gpu: Gpu) -> list[KernelPart] | None:
    """Return the parts of a kernel, each with the registers that it needs; None if several parts
    change one register.

    A register computed from unchanging values is recomputed in each part; every other register is
    passed in memory.
    """
    stmts = [_interchange_serial_with_parallel_loop(s) for s in block_stmts_or_self(kernel.body)]
    changing = written_buffers(kernel.body) | {s.var for s in walk_stmts(kernel.body) if isinstance(s, Assign)}
    declared = {var for s in stmts if (var := register_declared_by(s)) is not None}
    again: dict[Var, Declare] = {}
    groups: list[list[Stmt]] = []
    for stmt in stmts:
        if isinstance(stmt, Declare) and stmt.var not in changing:
            needs = _vars_and_buffers_read([stmt])
            if changing.isdisjoint(needs) and needs & declared <= again.keys():
                again[stmt.var] = stmt
                continue
        joins = groups and not any(_is_worth_a_separate_gpu_launch(s, gpu) for s in (stmt, groups[-1][0]))
        groups = [*groups[:-1], [*groups[-1], stmt]] if joins else [*groups, [stmt]]
    declares = [tuple(var for s in group if (var := register_declared_by(s)) is not None) for group in groups]
    changes = [modified_vars_and_buffers(Block(group)) for group in groups]
    reads = [_vars_and_buffers_read(group) for group in groups]
    register_buffers: dict[Var, Buffer] = {}
    for k, group_vars in enumerate(declares):
        other_groups = [n for n in range(len(groups)) if n != k]
        if any(not changes[n].isdisjoint(group_vars) for n in other_groups):
            return None
        register_buffers |= {
            var: Buffer(var.name, var.dtype, 1) for var in group_vars if any(var in reads[n] for n in other_groups)
        }
    return [_make_kernel_part(group, again, register_buffers) for group in groups]


def _make_kernel_part(
    stmts: Sequence[Stmt], recomputed_registers: Mapping[Var, Declare], register_buffers: Mapping[Var, Buffer]
) -> KernelPart:
    """Return a part (unit of kernel fission) from a group of statements.

    stmts                   the statements
    recomputed_registers    declarations of registers that each part can recompute
    register_buffers        buffers in which registers are passed from part to part
    """
    declared_vars = {var for s in stmts if (var := register_declared_by(s)) is not None}
    needs = _vars_and_buffers_read(stmts)
    for declare in reversed(tuple(recomputed_registers.values())):
        needs |= _vars_and_buffers_read([declare]) if declare.var in needs else set()
    loaded = [
        Declare(var, Load(b, _INDEX_ZERO))
        for var, b in register_buffers.items()
        if var in needs and var not in declared_vars
    ]
    before = (*loaded, *(declare for var, declare in recomputed_registers.items() if var in needs))
    left = (Store(b, _INDEX_ZERO, var) for var, b in register_buffers.items() if var in declared_vars)
    return KernelPart(before, (*stmts, *left))


def _pass_scratch_between_parts(kernel: Kernel, parts: Sequence[KernelPart]) -> list[KernelPart] | None:
    """Make scratch that several parts of a kernel use a parameter of all of them, and remove parts
    without visible effect.

    Return None if a parallel loop then writes a buffer that its iterations need separately.
    """
    passed: dict[Buffer, Buffer] = {}
    uses = [
        (part, written_buffers(part.part_statements_as_block), read_buffers(part.part_statements_as_block))
        for part in parts
    ]
    for buffer in (*kernel.workspace, *kernel.stack):
        touching = [(part, w, r) for part, w, r in uses if buffer in w | r]
        if len(touching) < 2:
            continue
        if buffer.private and all(_is_written_before_read(buffer, part.stmts, {}) for part, _, _ in touching):
            continue
        passed[buffer] = replace(buffer, scope="param", private=False)
    new_parts: list[KernelPart] = []
    for part, w, r in uses:
        local = (b for b in (*kernel.workspace, *kernel.stack) if b in w | r and b not in passed)
        local_scratch = tuple(b for b in local if b.private or b.scope == "stack")
        if w.issubset(local_scratch):
            continue  # no other part reads its results
        places = {b: (to, _INDEX_ZERO) for b, to in passed.items()}
        before, stmts = (
            tuple(replace_buffers_with_offsets(s, places) for s in some) for some in (part.before, part.stmts)
        )
        new_parts.append(KernelPart(before, stmts, local_scratch))
        if (
            places
            and new_parts[-1].parallel_loop_or_none is not None
            and why_loop_kind_unproven(new_parts[-1].parallel_loop_or_none, {}, ()) is not None
        ):
            return None
    return new_parts


def _is_written_before_read(
    buffer: Buffer, stmts: Sequence[Stmt], ranges: Ranges, written: Sequence[Access] = ()
) -> bool:
    """Return True if statements read only elements of a scratch buffer that they wrote before, or
    that the accesses `written` cover.
    """
    filled = AccessRelation([*written])
    for stmt in stmts:
        if buffer in read_buffers(stmt):
            reads = {buffer: AccessRelation()}
            collect_accesses(stmt, ranges, reads, stores=False)
            inside = stmt.body if isinstance(stmt, For) and buffer in written_buffers(stmt) else None
            if not filled.covers(reads[buffer]) and (
                inside is None
                or not _is_written_before_read(buffer, block_stmts_or_self(inside), ranges, filled.accesses)
            ):
                return False
        collect_accesses(stmt, {}, {buffer: filled}, reads=False)
    return True


def replace_buffers_with_offsets(stmt: Stmt, buffer_offsets: Mapping[Buffer, tuple[Buffer, Expr]]) -> Stmt:
    """Return a statement with some buffers replaced by other buffers, in which they begin at an
    offset.
    """
    if not buffer_offsets:
        return stmt

    def redirect_loads_in_expr(expr: Expr) -> Expr:
        new_expr = with_operands(expr, tuple(map(redirect_loads_in_expr, operands(expr))))
        if not isinstance(new_expr, Load) or new_expr.buffer not in buffer_offsets:
            return new_expr
        buffer, first = buffer_offsets[new_expr.buffer]
        return replace(new_expr, buffer=buffer, index=first + new_expr.index)

    fresh = rebuild_stmt(stmt, lambda s: replace_buffers_with_offsets(s, buffer_offsets), redirect_loads_in_expr)
    destination = destination_of_stmt(fresh)
    if destination is None or destination.buffer not in buffer_offsets:
        return fresh
    buffer, first = buffer_offsets[destination.buffer]
    return redirect_destination(fresh, buffer, first + destination.index)
