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
are fused if the peak of memory falls by at least the fraction `WORTH`, since the fused kernel
cannot be shared with other layers. The iterations of each kernel keep their order, so that results
do not change in any bit. Source: Gao, Olsen, Sarkar and Thekkath, "Collective loop fusion for array
contraction" (1992).
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
    linear,
    linear_bounds,
    operands,
    private_buffer,
    simplify_stmt,
    with_operands,
)
from aotc.tir.expr import Const, minimum
from aotc.tir.loops.loop_dependence import Accesses, collect, counted, read, written
from aotc.tir.simplify import simplify
from aotc.tir.stmt import (
    Block,
    For,
    Intrinsic,
    Kernel,
    Stmt,
    Store,
    rebuilt,
    refreshed,
    stmts_of,
    substituted,
    walk_stmts,
)

#: Smallest fraction of the memory peak that a fusion must save.
WORTH: Final = 1 / 16
#: Function that returns the peak memory usage of a program in bytes.
Peak = Callable[[Program], int]


def with_fused_loops(program: Program, peak: Peak) -> Program:
    """Return the program with pairs of steps fused, the best pair first, as long as this lowers the
    peak by `WORTH`.
    """
    while candidates := list(_candidates(program)):
        peaks = [peak(one) for one in candidates]
        if min(peaks) > peak(program) * (1 - WORTH):
            break
        program = candidates[peaks.index(min(peaks))]
    return program


def _candidates(program: Program) -> Iterator[Program]:
    for first, second in _pairs(program):
        step = _joined(program.steps[first], program.steps[second])
        if step is not None:
            steps = [step if k == second else s for k, s in enumerate(program.steps) if k != first]
            yield replace(program, steps=tuple(steps))


def _pairs(program: Program) -> Iterator[tuple[int, int]]:
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
        if whole and all(_is_plain(step.kernel) for step in (first, second)):
            yield steps[0], steps[1]


def _is_plain(kernel: Kernel) -> bool:
    """Return True if a kernel consists of loops, branches, loads and stores of a single thread."""
    parts = any(isinstance(stmt, Intrinsic) for stmt in walk_stmts(kernel.body))
    return kernel.source is None and not kernel.team and not kernel.shared and not parts


@frozen(eq=False)
class _Sweep:
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
    def of(kernel: Kernel, buffer: Buffer) -> _Sweep | None:
        """Return the sweep of a kernel over a buffer; None if no outermost loop goes through the
        buffer block by block.
        """
        stmts = stmts_of(kernel.body)
        users = [k for k, stmt in enumerate(stmts) if buffer in read(stmt) | written(stmt)]
        found = stmts[users[0]] if len(users) == 1 else None
        for loop in _outermost(found) if isinstance(found, For) else ():
            values = counted(loop)
            size = _size(loop, buffer, len(values)) if values and (values.start, values.step) == (0, 1) else 0
            if size and -(-buffer.size // size) == len(values) > 1:
                return _Sweep(stmts[: users[0]], loop, stmts[users[0] + 1 :], size, len(values))
        return None

    def part(self, number: Var, ratio: int) -> Stmt:
        """Return the `ratio` iterations that work on the block with a given number; the last block
        may have fewer.
        """
        if ratio == 1:
            return substituted(self.loop.body, {self.loop.var: number})
        inner = Var(self.loop.var.name)
        end = ratio if self.count % ratio == 0 else minimum(ratio, self.count - number * ratio)
        return For(inner, end, substituted(self.loop.body, {self.loop.var: number * ratio + inner}))


def _outermost(loop: For) -> Iterator[For]:
    """Yield a loop nest, and the interchanged nests with each of its independent inner loops
    outermost.
    """
    yield loop
    around = [loop]
    while around[-1].kind == "independent" and isinstance(inner := around[-1].body, For):
        if inner.kind != "independent" or not isinstance(inner.begin, Const) or not isinstance(inner.end, Const):
            return
        body = inner.body
        for outer in reversed(around):
            body = replace(outer, body=body)
        yield replace(inner, body=body)
        around.append(inner)


def _size(loop: For, buffer: Buffer, count: int) -> int:
    """Return the number of buffer elements that each iteration accesses exclusively; 0 if it cannot
    be determined.
    """
    accesses: Accesses = {buffer: []}
    collect(loop.body, {loop.var: (0, count - 1)}, accesses, closely=True)
    sizes = {access.form.coefficient(loop.var) for access in accesses[buffer]}
    size = (sizes.pop() if len(sizes) == 1 else None) or 0
    if size < 1:
        return 0
    for access in accesses[buffer]:
        rest = access.form.plus(linear(loop.var * size, {}), -1)
        low, high = linear_bounds(rest, access.ranges)
        if low < 0 or high + access.lanes > size:
            return 0
    return size


def _joined(first: Step, second: Step) -> Step | None:
    """Return the fused step; None if the kernels do not sweep over the tensor between them in
    blocks of related sizes.
    """
    (between,) = first.outputs
    late = second.kernel
    target = late.inputs[second.inputs.index(between)]
    early = _with_own_buffers(first.kernel)
    source = early.outputs[0]
    writes, reads = _Sweep.of(early, source), _Sweep.of(late, target)
    if writes is None or reads is None or source.size != target.size:
        return None
    size = max(writes.size, reads.size)
    if size % writes.size or size % reads.size or size >= source.size:
        return None
    block, number = private_buffer("block", source.dtype, size), Var("q")

    def part(sweep: _Sweep, buffer: Buffer) -> Stmt:
        return _in_block(sweep.part(number, size // sweep.size), buffer, block, number * size)

    loop = For(number, -(-source.size // size), Block((part(writes, source), part(reads, target))))
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
    inputs = (*first.inputs, *(view for view in second.inputs if view != between))
    scratch = View(Storage(name="block", dtype=block.dtype, shape=(size,)))
    args = (*inputs, *second.outputs, *first.workspace, *second.workspace, scratch)
    return replace(second, kernel=kernel, args=args, origin=None)


#: Function that maps the buffer and index of an access to their replacements.
_Place = Callable[[Buffer, Expr], tuple[Buffer, Expr]]


def _placed(stmt: Stmt, place: _Place) -> Stmt:
    """Return a statement without block intrinsics whose loads and stores are replaced by `place`."""

    def value(expr: Expr) -> Expr:
        made = with_operands(expr, tuple(map(value, operands(expr))))
        if isinstance(made, Load):
            buffer, index = place(made.buffer, made.index)
            return Load(buffer, index, made.lanes, made.stride)
        return made

    made = rebuilt(stmt, lambda inner: _placed(inner, place), value)
    if isinstance(made, Store):
        buffer, index = place(made.buffer, made.index)
        return replace(made, buffer=buffer, index=index)
    return made


def _in_block(stmt: Stmt, buffer: Buffer, block: Buffer, begin: Expr) -> Stmt:
    """Return a statement whose accesses to `buffer` go to `block`, which holds its elements from
    index `begin` on.
    """

    def place(other: Buffer, index: Expr) -> tuple[Buffer, Expr]:
        return (block, simplify(index - begin, {})) if other is buffer else (other, index)

    return _placed(stmt, place)


def _with_own_buffers(kernel: Kernel) -> Kernel:
    """Return a copy of a kernel with fresh buffers, registers and loop variables."""
    own = {b: replace(b) for b in (*kernel.params, *kernel.stack)}
    body = refreshed(_placed(kernel.body, lambda buffer, index: (own[buffer], index)))
    inputs, outputs, workspace, stack = (
        tuple(own[b] for b in group) for group in (kernel.inputs, kernel.outputs, kernel.workspace, kernel.stack)
    )
    return replace(kernel, body=body, inputs=inputs, outputs=outputs, workspace=workspace, stack=stack)
