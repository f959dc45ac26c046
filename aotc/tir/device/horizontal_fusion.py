# SPDX-License-Identifier: Apache-2.0
"""Horizontal fusion: merge launches that do not depend on each other, where the first one leaves
multiprocessors idle.

Input and output: programs.

conv2d (x, w, a)        # 100 blocks of 64 threads           conv2d_conv2d (x, w, v, a, b)     # 200 blocks
add    (c, d, e)                                       =>    add (c, d, e)
conv2d (x, v, b)        # 100 blocks of 64 threads
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from aotc.ir import merge_spans
from aotc.tir import (
    Block,
    Declare,
    For,
    Gpu,
    If,
    Kernel,
    Program,
    Step,
    Stmt,
    Storage,
    as_expr,
    rename_declared_vars,
    substitute_in_stmt,
)
from aotc.tir.device.kernel_fission import replace_buffers_with_offsets
from aotc.tir.device.thread_block_mapping import is_proven_race_free
from aotc.tir.expr import Buffer, Expr, Var, maximum
from aotc.tir.gpu_launch import aligned_shared_memory_bytes, block_and_thread_loops, launch_of

#: Largest number of launches that are merged into one, and of steps that separate them.
_MAX_LAUNCHES_FUSED: Final = 8
_MAX_STEPS_BETWEEN_FUSED: Final = 32
#: Bytes of a kernel argument.
KERNEL_ARGUMENT_BYTES: Final = 8

#: For buffers of a kernel, the buffer that replaces each of them, and the offset in it.
BufferOffsets: TypeAlias = "dict[Buffer, tuple[Buffer, Expr]]"
#: Function that fuses two steps, the second of which depends on the first; it returns None if it
#: cannot or should not.
FuseDependentSteps: TypeAlias = Callable[[Step, Step], "Step | None"]
#: A part of a storage: the storage, the first element, and the end (exclusive).
StorageSpan: TypeAlias = tuple[Storage, int, int]
#: For each input of a kernel, the index of the identical input of the other kernel, or None.
_SharedInputIndices: TypeAlias = "tuple[int | None, ...]"


def fuse_gpu_launches(program: Program, gpu: Gpu, fuse_dependent: FuseDependentSteps = lambda a, b: None) -> Program:
    """Return an equivalent program with fewer launches.

    program           the program, whose steps are launches
    gpu               the device
    fuse_dependent    fuses two steps, the second of which depends on the first; returns None if it cannot
    """
    schedule = _FusedSchedule(gpu, fuse_dependent)
    for step in program.steps:
        schedule.append_or_fuse_step(step)
    return replace(program, body=tuple(schedule.steps))


@dataclass
class _FusedSchedule:
    """The sequence of launches, some of them fused, that has been built so far.

    sizes   for each step, the number of original steps in it
    uses    for each storage, the accesses: first element, end, index of the step, and True for a
            write
    fused_kernel_cache   fused kernels by the two kernels and their common inputs; None if the verifier does not
            accept the fused kernel
    """

    gpu: Gpu
    behind: FuseDependentSteps
    steps: list[Step] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    uses: dict[Storage, list[tuple[int, int, int, bool]]] = field(default_factory=dict)
    fused_kernel_cache: dict[tuple[Kernel, Kernel, _SharedInputIndices], Kernel | None] = field(default_factory=dict)

    def append_or_fuse_step(self, step: Step) -> None:
        """Add a launch: fuse it with the latest possible launch that comes after all launches it
        depends on, or append it.
        """
        touched = [(*span, k >= len(step.inputs)) for k, span in enumerate(storage_spans_of_arguments(step))]
        first = 1 + max(
            (at for access in touched for at in self._indices_of_steps_needed_before_access(*access)), default=-1
        )
        at, fused_step = self._position_and_fused_step(step, first)
        self.steps[at:] = [fused_step, *self.steps[at + 1 :]]
        self.sizes[at:] = [sum(self.sizes[at : at + 1]) + 1, *self.sizes[at + 1 :]]
        for storage, begin, end, writes in touched:
            self.uses.setdefault(storage, []).append((begin, end, at, writes))

    def _position_and_fused_step(self, step: Step, first_position: int) -> tuple[int, Step]:
        """Return the position for a launch, at least `first_position`, and the fused launch to put
        there; the end of the list if not fused.
        """
        if first_position and (fused_step := self.behind(self.steps[first_position - 1], step)) is not None:
            return first_position - 1, fused_step
        for at in range(len(self.steps) - 1, max(first_position, len(self.steps) - _MAX_STEPS_BETWEEN_FUSED) - 1, -1):
            if (
                self.sizes[at] < _MAX_LAUNCHES_FUSED
                and (fused_step := self._fuse_independent_steps(self.steps[at], step)) is not None
            ):
                return at, fused_step
        return len(self.steps), step

    def _indices_of_steps_needed_before_access(
        self, storage: Storage, first_element: int, end_element: int, is_write: bool
    ) -> Iterator[int]:
        """Yield the indices of the steps that must be complete before elements `first_element` to
        `end_element` of a storage are accessed.
        """
        accesses = self.uses.get(storage, ())
        return (at for b, e, at, wrote in accesses if (wrote or is_write) and b < end_element and first_element < e)

    def _fuse_independent_steps(self, a: Step, b: Step) -> Step | None:
        """Return one launch that executes two independent launches; None if that gains nothing or
        is impossible.
        """
        first, second = launch_of(a.kernel), launch_of(b.kernel)
        if first is None or second is None or first.block != second.block:
            return None
        idle = first.grid < self.gpu.processors * max(1, self.gpu.resident // first.block)
        if not idle or (len(a.args) + len(b.args)) * KERNEL_ARGUMENT_BYTES > self.gpu.argument_bytes:
            return None
        places, b_places = (
            storage_spans_of_arguments(a)[: len(a.inputs)],
            storage_spans_of_arguments(b)[: len(b.inputs)],
        )
        common = tuple(places.index(place) if place in places else None for place in b_places)
        key = a.kernel, b.kernel, common
        if key not in self.fused_kernel_cache:
            fused_kernel = fuse_independent_kernels(*key)
            fits = aligned_shared_memory_bytes(fused_kernel.shared) <= self.gpu.shared_bytes
            self.fused_kernel_cache[key] = fused_kernel if fits and is_proven_race_free(fused_kernel) else None
        kernel = self.fused_kernel_cache[key]
        if kernel is None:
            return None
        inputs = (*a.inputs, *(view for view, k in zip(b.inputs, common, strict=True) if k is None))
        args = (*inputs, *a.outputs, *b.outputs, *a.workspace, *b.workspace)
        return Step(kernel, args, merge_spans((a.span, b.span)), (*a.output_shapes, *b.output_shapes))


def storage_spans_of_arguments(step: Step) -> list[StorageSpan]:
    """Return, for each argument of a step (kernel call), its storage, first element and end
    (exclusive).
    """
    pairs = zip(step.kernel.params, step.args, strict=True)
    return [(view.storage, view.offset, view.offset + buffer.size) for buffer, view in pairs]


def fuse_independent_kernels(a: Kernel, b: Kernel, shared_input_indices: _SharedInputIndices) -> Kernel:
    """Return a kernel whose first blocks execute kernel `a`, and whose other blocks execute kernel
    `b`.

    a, b                    kernels with equal numbers of threads per block
    shared_input_indices    for each input of `b`, the index of the identical input of `a`, or None
    """
    first, second = launch_of(a), launch_of(b)
    assert first is not None and second is not None
    grid, block, thread = first.grid + second.grid, Var("block"), Var("thread")
    b_buffers = {buffer: replace(buffer) for buffer in (*b.params, *b.stack)}
    b_buffers |= {local: a.inputs[k] for local, k in zip(b.inputs, shared_input_indices, strict=True) if k is not None}
    shared = {buffer: replace(buffer) for buffer in a.shared}  # a block runs one of the kernels
    for buffer in b.shared:
        fitting = (
            entry for entry in a.shared if entry.dtype == buffer.dtype and shared[entry] not in b_buffers.values()
        )
        like = next(fitting, None)
        b_buffers[buffer] = replace(buffer) if like is None else shared[like]
        if like is not None:
            size = max(like.size, buffer.size)
            shared[like] = b_buffers[buffer] = replace(like, size=size, align=max(like.align, buffer.align))
    local = Var("own")
    count = Declare(local, maximum(block - first.grid, 0))
    begin = as_expr(0)
    of_a, of_b = ({x: (y, begin) for x, y in entry.items()} for entry in (shared, b_buffers))
    else_body = Block((count, inline_kernel_thread_body(b, local, thread, of_b)))
    body = If(block < first.grid, inline_kernel_thread_body(a, block, thread, of_a), else_body)
    over = For(block, grid, For(thread, first.block, body, kind="thread"), kind="block")
    inputs, outputs, workspace = (tuple(b_buffers[x] for x in some) for some in (b.inputs, b.outputs, b.workspace))
    alone = tuple(buffer for buffer in inputs if buffer not in a.inputs)
    pairs = [(a.outputs[o], a.inputs[i]) for o, i in a.inplace if i not in shared_input_indices]
    pairs += [(outputs[o], inputs[i]) for o, i in b.inplace if shared_input_indices[i] is None]
    all_inputs, all_outputs = (*a.inputs, *alone), (*a.outputs, *outputs)
    return Kernel(
        name=f"{a.name}_{b.name}",
        inputs=all_inputs,
        outputs=all_outputs,
        body=over,
        workspace=(*a.workspace, *workspace),
        stack=(*a.stack, *(b_buffers[x] for x in b.stack)),
        shared=tuple(dict.fromkeys((*shared.values(), *(b_buffers[x] for x in b.shared)))),
        inplace=tuple((all_outputs.index(o), all_inputs.index(i)) for o, i in pairs),
        macs=a.macs + b.macs,
        approximate=a.approximate or b.approximate,
        span=merge_spans((a.span, b.span)),
    )


def inline_kernel_thread_body(kernel: Kernel, block: Expr, thread: Var, buffer_offsets: BufferOffsets) -> Stmt:
    """Return the body of one thread of a kernel, with buffers replaced as in `buffer_offsets`."""
    blocks, threads = block_and_thread_loops(kernel)
    body = substitute_in_stmt(rename_declared_vars(threads.body), {blocks.var: block, threads.var: thread})
    return replace_buffers_with_offsets(body, buffer_offsets)
