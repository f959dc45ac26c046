# SPDX-License-Identifier: Apache-2.0
"""Loop fusion with array contraction: fuse a producer and a consumer kernel so that only a block of
the tensor is stored.

Input: a Program whose temporaries have no addresses yet. Output: a Program with less memory between
its kernels:

    for t in 0..25: for c in 0..640: y[640 * t + c] = ...        # 16,000 elements of y
    for s in 0..50: for c in 0..320: ... y[320 * s + c] ...
    ->
    for q in 0..25:
        for c in 0..640: block[c] = ...                          # 640 elements
        for s in 0..2: for c in 0..320: ... block[320 * s + c] ...

For example, the products of all inputs of a recurrent layer are consumed step by step. Two steps
are fused if the peak of memory falls by at least the fraction `MIN_PEAK_SAVING_FRACTION`, since the
fused kernel cannot be shared with other layers. The iterations of each kernel keep their order, so
that results do not change in any bit. Source: Gao, Olsen, Sarkar and Thekkath, "Collective loop
fusion for array contraction" (1992).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from aotc.ir import frozen, merge_spans
from aotc.tir import (
    Buffer,
    Expr,
    Load,
    Program,
    Step,
    Storage,
    Var,
    View,
    bounds_of_linear_form,
    linear_form,
    new_private_scratch_buffer,
    operands,
    simplify_stmt,
    with_operands,
)
from aotc.tir.expr import Const, minimum
from aotc.tir.loops.access_collection import collect_accesses
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.loop_dependence import Ranges, constant_loop_range, read_buffers, written_buffers
from aotc.tir.simplify import simplify
from aotc.tir.stmt import (
    Block,
    For,
    Kernel,
    Stmt,
    block_stmts_or_self,
    destination_of_stmt,
    executions_in,
    rebuild_stmt,
    redirect_destination,
    rename_declared_vars,
    substitute_in_stmt,
)

#: Smallest fraction of the memory peak that a fusion must save.
MIN_PEAK_SAVING_FRACTION: Final = 1 / 16
#: Function that returns the peak memory usage of a program in bytes.
PeakBytes = Callable[[Program], int]


def fuse_loops_while_peak_falls(program: Program, peak_bytes: PeakBytes) -> Program:
    """Return the program with pairs of steps fused, the best pair first, as long as this lowers the
    peak by `MIN_PEAK_SAVING_FRACTION`; a program with control flow stays as it is.
    """
    while not program.has_control_flow and (candidates := list(_programs_with_one_more_fusion(program))):
        peaks = [peak_bytes(candidate) for candidate in candidates]
        if min(peaks) > peak_bytes(program) * (1 - MIN_PEAK_SAVING_FRACTION):
            break
        program = candidates[peaks.index(min(peaks))]
    return program


def _programs_with_one_more_fusion(program: Program) -> Iterator[Program]:
    for first, second in _producer_consumer_pairs(program):
        step = _fuse_steps(program.steps[first], program.steps[second])
        if step is not None:
            steps = [step if k == second else s for k, s in enumerate(program.steps) if k != first]
            yield replace(program, body=tuple(steps))


def _producer_consumer_pairs(program: Program) -> Iterator[tuple[int, int]]:
    """Yield (producer, consumer) step numbers where only the consumer reads the only output of the
    producer.
    """
    users: dict[Storage, list[int]] = {}
    for k, step in enumerate(program.steps):
        for view in step.args:
            users.setdefault(view.storage, []).append(k)
    pinned = set(program.resident.values())
    for storage, steps in users.items():
        if storage.kind != "temp" or storage in pinned or len(steps) != 2 or steps[0] == steps[1]:
            continue
        first, second = (program.steps[k] for k in steps)
        whole = len(first.outputs) == 1 and first.outputs[0] == View(storage) in second.inputs
        if whole and all(_is_single_threaded_loop_code(step.kernel) for step in (first, second)):
            yield steps[0], steps[1]


def _is_single_threaded_loop_code(kernel: Kernel) -> bool:
    """Return True if a kernel consists of loops, branches, and accesses to consecutive elements by a
    single thread.
    """
    rows_apart = any(stmt.has_rows_apart for stmt in executions_in(kernel.body))
    plain = kernel.source is None and not kernel.team and not kernel.shared
    # the blocks of a kernel with numbers are not known
    return plain and not kernel.numbers and not rows_apart


@frozen(eq=False)
class _BlockwiseLoop:
    """Kernel whose outermost loop sweeps over a whole buffer block by block.

    Iteration k accesses only the `size` elements from `size` * k on; the last block may be shorter.

    before   statements before the loop
    after    statements after the loop
    count    number of iterations
    """

    before: tuple[Stmt, ...]
    loop: For
    after: tuple[Stmt, ...]
    size: int
    count: int

    @staticmethod
    def find_blockwise_loop(kernel: Kernel, buffer: Buffer) -> _BlockwiseLoop | None:
        """Return the sweep of a kernel over a buffer; None if no outermost loop goes through the
        buffer block by block.
        """
        stmts = block_stmts_or_self(kernel.body)
        users = [k for k, stmt in enumerate(stmts) if buffer in read_buffers(stmt) | written_buffers(stmt)]
        user_stmt = stmts[users[0]] if len(users) == 1 else None
        for loop in _interchanged_loop_nests(user_stmt) if isinstance(user_stmt, For) else ():
            values = constant_loop_range(loop)
            size = (
                _exclusive_elements_per_iteration(loop, buffer, len(values))
                if values and (values.start, values.step) == (0, 1)
                else 0
            )
            if size and -(-buffer.size // size) == len(values) > 1:
                return _BlockwiseLoop(stmts[: users[0]], loop, stmts[users[0] + 1 :], size, len(values))
        return None

    def iterations_for_block(self, block_number: Var, iterations_per_block: int) -> Stmt:
        """Return the `iterations_per_block` iterations that work on the block with a given number;
        the last block may have fewer.
        """
        if iterations_per_block == 1:
            return substitute_in_stmt(self.loop.body, {self.loop.var: block_number})
        inner = Var(self.loop.var.name)
        end = (
            iterations_per_block
            if self.count % iterations_per_block == 0
            else minimum(iterations_per_block, self.count - block_number * iterations_per_block)
        )
        return For(
            inner, end, substitute_in_stmt(self.loop.body, {self.loop.var: block_number * iterations_per_block + inner})
        )


def _interchanged_loop_nests(loop: For) -> Iterator[For]:
    """Yield a loop nest, and the interchanged nests with each of its independent inner loops
    outermost.
    """
    yield loop
    outer_loops = [loop]
    while outer_loops[-1].kind == "independent" and isinstance(inner := outer_loops[-1].body, For):
        if inner.kind != "independent" or not isinstance(inner.begin, Const) or not isinstance(inner.end, Const):
            return
        body = inner.body
        for outer in reversed(outer_loops):
            body = replace(outer, body=body)
        yield replace(inner, body=body)
        outer_loops.append(inner)


def _exclusive_elements_per_iteration(loop: For, buffer: Buffer, iteration_count: int) -> int:
    """Return the number of buffer elements that each iteration accesses exclusively; 0 if it cannot
    be determined.
    """
    relation = AccessRelation()
    ranges: Ranges = {loop.var: (0, iteration_count - 1)}
    collect_accesses(loop.body, ranges, {buffer: relation}, expands_registers=True)
    sizes = {access.form.coefficient(loop.var) for access in relation.accesses}
    size = (sizes.pop() if len(sizes) == 1 else None) or 0
    if size < 1:
        return 0
    for access in relation.accesses:
        rest = access.form.add_multiple(linear_form(loop.var * size, {}), -1)
        low, high = bounds_of_linear_form(rest, access.ranges)
        if low < 0 or high + access.lanes > size:
            return 0
    return size


def _fuse_steps(producer: Step, consumer: Step) -> Step | None:
    """Return the fused step; None if the kernels do not sweep over the tensor between them in
    blocks of related sizes.
    """
    (between,) = producer.outputs
    late = consumer.kernel
    target = late.inputs[consumer.inputs.index(between)]
    early = _copy_kernel_with_fresh_buffers(producer.kernel)
    source = early.outputs[0]
    writes, reads = _BlockwiseLoop.find_blockwise_loop(early, source), _BlockwiseLoop.find_blockwise_loop(late, target)
    if writes is None or reads is None or source.size != target.size:
        return None
    size = max(writes.size, reads.size)
    if size % writes.size or size % reads.size or size >= source.size:
        return None
    block, number = new_private_scratch_buffer("block", source.dtype, size), Var("q")

    def loop_iterations_on_block_buffer(blockwise_loop: _BlockwiseLoop, buffer: Buffer) -> Stmt:
        return _redirect_accesses_to_block(
            blockwise_loop.iterations_for_block(number, size // blockwise_loop.size), buffer, block, number * size
        )

    loop = For(
        number,
        -(-source.size // size),
        Block((loop_iterations_on_block_buffer(writes, source), loop_iterations_on_block_buffer(reads, target))),
    )
    body = Block((*writes.before, *reads.before, loop, *writes.after, *reads.after))
    kernel = replace(
        late,
        inputs=(*early.inputs, *(b for b in late.inputs if b is not target)),
        body=simplify_stmt(body, {}),
        workspace=(*early.workspace, *late.workspace, block),
        stack=(*early.stack, *late.stack),
        inplace=(),
        macs=early.macs + late.macs,
        approximate=early.approximate or late.approximate,
        span=merge_spans((early.span, late.span)),
    )
    inputs = (*producer.inputs, *(view for view in consumer.inputs if view != between))
    scratch = View(Storage(name="block", dtype=block.dtype, shape=(size,)))
    args = (*inputs, *consumer.outputs, *producer.workspace, *consumer.workspace, scratch)
    return replace(consumer, kernel=kernel, args=args, origin=None, row_pieces=None)


#: Function that maps the buffer and index of an access to their replacements.
_AccessMapping = Callable[[Buffer, Expr], tuple[Buffer, Expr]]


def _map_accesses(stmt: Stmt, map_access: _AccessMapping) -> Stmt:
    """Return a statement with buffer and index of each load and each destination replaced by
    `map_access`.
    """

    def map_loads(expr: Expr) -> Expr:
        new_expr = with_operands(expr, tuple(map(map_loads, operands(expr))))
        if isinstance(new_expr, Load):
            buffer, index = map_access(new_expr.buffer, new_expr.index)
            return Load(buffer, index, new_expr.lanes, new_expr.stride)
        return new_expr

    new_stmt = rebuild_stmt(stmt, lambda inner: _map_accesses(inner, map_access), map_loads)
    destination = destination_of_stmt(new_stmt)
    if destination is None:
        return new_stmt
    return redirect_destination(new_stmt, *map_access(destination.buffer, destination.index))


def _redirect_accesses_to_block(stmt: Stmt, buffer: Buffer, block: Buffer, first_element: Expr) -> Stmt:
    """Return a statement whose accesses to `buffer` go to `block`, which holds its elements from
    index `first_element` on.
    """

    def redirect_access(accessed_buffer: Buffer, index: Expr) -> tuple[Buffer, Expr]:
        return (block, simplify(index - first_element, {})) if accessed_buffer is buffer else (accessed_buffer, index)

    return _map_accesses(stmt, redirect_access)


def _copy_kernel_with_fresh_buffers(kernel: Kernel) -> Kernel:
    """Return a copy of a kernel with fresh buffers, registers and loop variables."""
    new_buffers = {b: replace(b) for b in (*kernel.params, *kernel.stack)}
    body = rename_declared_vars(_map_accesses(kernel.body, lambda buffer, index: (new_buffers[buffer], index)))
    inputs, outputs, workspace, stack = (
        tuple(new_buffers[b] for b in group)
        for group in (kernel.inputs, kernel.outputs, kernel.workspace, kernel.stack)
    )
    return replace(kernel, body=body, inputs=inputs, outputs=outputs, workspace=workspace, stack=stack)
