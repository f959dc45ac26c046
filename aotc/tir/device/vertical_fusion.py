# SPDX-License-Identifier: Apache-2.0
"""Vertical fusion: run a small kernel (such as a normalization) in the blocks of the matrix product
whose result it reads.

Input: two steps, the second of which reads the result of the first. Output: one step:

dense      (x, w, a)     # 96 blocks: 16 rows and 32 columns each         dense_layer_norm (x, w, g, a, y, count)
layer_norm (a, g, y)     # a row for each block                      =>       # the last of 12 blocks does 16 rows

If a block computed all the inputs that it needs itself, it continues after a barrier. If several
blocks did, the last of them to finish continues (`aotc.tir.loops.last_block_reduction_check`). No
operator is treated specially: ways to group the blocks are tried, and the verifier decides which
one is correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from aotc.ir import DType, frozen, merge_spans
from aotc.tir import INDEX, Binary, Block, Buffer, Const, Gpu, Launch, Step, Var, View, as_expr, bounds, launch_of
from aotc.tir.device.block_per_row import statement_count_of_single_thread
from aotc.tir.device.horizontal_fusion import (
    KERNEL_ARGUMENT_BYTES,
    BufferOffsets,
    StorageSpan,
    inline_kernel_thread_body,
    storage_spans_of_arguments,
)
from aotc.tir.device.parameter_alignment import new_temporary_view
from aotc.tir.device.thread_block_mapping import is_proven_race_free
from aotc.tir.expr import vars_and_buffers_in
from aotc.tir.gpu_launch import (
    aligned_shared_memory_bytes,
    block_and_thread_loops,
    stmts_run_by_last_gpu_block_of_group,
)
from aotc.tir.instruction_statements import block_barrier
from aotc.tir.stmt import (
    Declare,
    For,
    If,
    Kernel,
    Stmt,
    all_exprs_in_stmt,
    block_stmts_or_self,
    increments_block_counter,
    walk_stmts,
)

#: Factor by which the total number of statements may shrink when fewer threads run the second
#: kernel, as fewer of them recompute common values; groupings with more work per thread than that
#: are not tried.
_MAX_TOTAL_WORK_SHRINK_FACTOR: Final = 4
#: Alignment of arrays that are packed into one shared array, in elements.
_SHARED_ARRAY_ALIGNMENT_ELEMENTS: Final = 4

#: Function (groups, threads) -> the second step for that many groups of blocks and threads per
#: block; None if it is several launches.
StepWithLaunchSize: TypeAlias = Callable[[int, int], "Step | None"]


@dataclass
class VerticalFusion:
    """Fuses a small kernel into the launch of the matrix product whose result it reads.

    gpu     the device
    fused_kernel_cache   results for pairs of kernels: group size, stride and fused kernel; None where fusion is
            impossible
    """

    gpu: Gpu
    fused_kernel_cache: dict[object, tuple[int, int, Kernel] | None] = field(default_factory=dict)

    def fuse_consecutive_steps(self, a: Step, b: Step, second_with_launch_size: StepWithLaunchSize) -> Step | None:
        """Return one step (kernel call) that computes two consecutive steps; None if fusion is
        impossible or too slow.

        a                          the first step, which must do multiply-adds
        b                          the second step, which must do none, and depends on no step after `a`
        second_with_launch_size    makes the second step for another launch size
        """
        launch = launch_of(a.kernel)
        if launch is None or not a.kernel.macs or b.kernel.macs or not _depends_only_by_contained_reads(a, b):
            return None
        level = _AppendPoint.find_append_point(a.kernel, launch)
        if level is None:
            return None
        key = a.kernel, b.kernel, tuple(_argument_indices_and_view_offsets(a, view) for view in b.inputs)
        if key not in self.fused_kernel_cache:
            least = _total_statements_of_launch(b.kernel) // (
                launch.block * self.gpu.costs.dependent_launch_statements * _MAX_TOTAL_WORK_SHRINK_FACTOR
            )
            ways = (way for way in level.block_group_sizes_and_strides() if level.count // way[0] >= least)
            pairs = (self.fused_pair_for_gpu_block_group(a, level, second_with_launch_size, *way) for way in ways)
            right = (
                candidate
                for candidate in pairs
                if candidate is not None and self.fits_device_and_is_proven_correct(candidate.build_fused_kernel())
            )
            proven_pair = next(right, None)
            self.fused_kernel_cache[key] = (
                None
                if proven_pair is None
                else (proven_pair.size, proven_pair.stride, proven_pair.build_fused_kernel())
            )
        if (way := self.fused_kernel_cache[key]) is None:
            return None
        pair = self.fused_pair_for_gpu_block_group(a, level, second_with_launch_size, *way[:2])
        return None if pair is None else pair.fused_kernel_call(way[2])

    def fused_pair_for_gpu_block_group(
        self,
        a: Step,
        append_point: _AppendPoint,
        second_with_launch_size: StepWithLaunchSize,
        group_size: int,
        group_stride: int,
    ) -> _FusedPair | None:
        """Return two steps to be fused for groups of `group_size` blocks, `group_stride` apart.

        Return None if the second step cannot have the thread count of the first, or has too much
        work per thread.
        """
        launch, groups = launch_of(a.kernel), append_point.count // group_size
        second = None if launch is None else second_with_launch_size(groups, launch.block)
        grid = None if second is None else launch_of(second.kernel)
        if second is None or grid is None or launch is None:
            return None
        if grid.block != launch.block or grid.grid % groups:
            return None
        rounds, costs = grid.grid // groups, self.gpu.costs
        few = (
            rounds * (_statements_per_thread_of_launch(second.kernel, grid) + costs.dependent_round_statements)
            <= costs.dependent_launch_statements
        )
        return _FusedPair(a, second, append_point, group_size, group_stride, rounds) if few else None

    def fits_device_and_is_proven_correct(self, kernel: Kernel) -> bool:
        """Return True if a kernel fits the limits of the device and the verifier proves it correct."""
        fits = aligned_shared_memory_bytes(kernel.shared) <= self.gpu.shared_bytes
        passes = len(kernel.params) * KERNEL_ARGUMENT_BYTES <= self.gpu.argument_bytes
        return fits and passes and is_proven_race_free(kernel)


def _depends_only_by_contained_reads(a: Step, b: Step) -> bool:
    """Return True if step `b` overwrites nothing that step `a` uses, and each input of `b` that
    overlaps an output of `a` is a part of that output.
    """
    used, second_spans = storage_spans_of_arguments(a), storage_spans_of_arguments(b)
    written, read = used[len(a.inputs) :], second_spans[: len(b.inputs)]
    if any(_spans_overlap(span, other) for span in used for other in second_spans[len(b.inputs) :]):
        return False
    return all(_span_contains(span, other) for span in written for other in read if _spans_overlap(span, other))


def _argument_indices_and_view_offsets(step: Step, view: View) -> tuple[tuple[int, int], ...]:
    """Return the arguments of a step that share the storage of a view, as (index of the argument,
    offset of the view in it).
    """
    matches = (
        (k, view.offset - argument.offset) for k, argument in enumerate(step.args) if argument.storage is view.storage
    )
    return tuple(matches)


def _spans_overlap(a: StorageSpan, b: StorageSpan) -> bool:
    """Return True if two parts of storages (storage, first element, end) overlap."""
    return a[0] is b[0] and a[1] < b[2] and b[1] < a[2]


def _span_contains(a: StorageSpan, b: StorageSpan) -> bool:
    """Return True if part `a` of a storage (storage, first element, end) contains part `b`."""
    return a[0] is b[0] and a[1] <= b[1] and b[2] <= a[2]


def _total_statements_of_launch(kernel: Kernel) -> int:
    """Estimate the statements that all threads of a GPU kernel execute together."""
    launch = launch_of(kernel)
    return 0 if launch is None else launch.grid * launch.block * _statements_per_thread_of_launch(kernel, launch)


def _statements_per_thread_of_launch(kernel: Kernel, launch: Launch) -> int:
    """Estimate the statements that one thread of a GPU launch executes."""
    blocks, threads = block_and_thread_loops(kernel)
    ranges = {blocks.var: (0.0, launch.grid - 1.0), threads.var: (0.0, launch.block - 1.0)}
    for stmt in walk_stmts(threads.body):
        if isinstance(stmt, Declare) and stmt.var.dtype == INDEX:
            ranges[stmt.var] = bounds(stmt.value, ranges)
    return statement_count_of_single_thread(threads.body, ranges)


@frozen(eq=False)
class _AppendPoint:
    """A point of a GPU launch at which blocks may continue with more work: all blocks, or the last
    block of each group.

    blocks, threads   the loops over blocks and threads
    number, count     variable with the index of the block or group that continues, and how many
                      there are
    put               function that returns the body of a thread with more statements appended at
                      this point
    """

    blocks: For
    threads: For
    number: Var
    count: int
    put: Callable[[Sequence[Stmt]], Block]

    @staticmethod
    def find_append_point(kernel: Kernel, launch: Launch) -> _AppendPoint | None:
        """Return the point at which work can be appended to a GPU kernel; None if it has atomic
        counters in an unknown form.
        """
        blocks, threads = block_and_thread_loops(kernel)
        match block_stmts_or_self(threads.body):
            case (*before, arrives, If(cond=cond, then=then)) if increments_block_counter(arrives):
                counter, size = arrives.operands
                index = getattr(counter, "index", None)
                if not (isinstance(index, Var) and isinstance(size, Const)):
                    return None

                def append_inside_last_block_branch(appended: Sequence[Stmt]) -> Block:
                    return Block((*before, arrives, If(cond, Block((then, *appended)))))

                return _AppendPoint(
                    blocks, threads, index, launch.grid // int(size.value), append_inside_last_block_branch
                )
            case _ if any(map(increments_block_counter, walk_stmts(threads.body))):
                return None

        def append_to_thread_body(appended: Sequence[Stmt]) -> Block:
            return Block((threads.body, *appended))

        return _AppendPoint(blocks, threads, blocks.var, launch.grid, append_to_thread_body)

    def block_group_sizes_and_strides(self) -> list[tuple[int, int]]:
        """Return the ways to group blocks, as (size, stride): `size` blocks whose indices are
        `stride` apart; small groups first.
        """
        divisors = set(self._constants_block_index_is_divided_by())
        near = {(size, 1) for size in (1, *divisors, self.count) if self.count % size == 0}
        far = {(self.count // n, n) for n in divisors if self.count % n == 0}
        if self.number is not self.blocks.var:
            far = set()
        return sorted(near | far)

    def _constants_block_index_is_divided_by(self) -> Iterator[int]:
        """Yield the constants by which the kernel divides the index of its thread block, as
        candidates for group sizes.
        """
        for node in all_exprs_in_stmt(self.threads.body):
            match node:
                case Binary(op="floordiv" | "floormod", a=a, b=Const(value=n)) if 1 < n < self.count:
                    if {n for n in vars_and_buffers_in(a) if isinstance(n, Var)} == {self.number}:
                        yield int(n)


@frozen(eq=False)
class _FusedPair:
    """Two steps (kernel calls) to be fused into one.

    a, b           the steps
    level          the point of the first step at which the second one begins
    size, stride   blocks of the first step in a group, and the distance of their indices
    rounds         blocks of the second step that each group executes
    """

    a: Step
    b: Step
    level: _AppendPoint
    size: int
    stride: int
    rounds: int

    def build_fused_kernel(self) -> Kernel:
        """Return the kernel that executes both steps: the first one, followed by the second one in
        its blocks.
        """
        a, b, level = self.a.kernel, self.b.kernel, self.level
        places = self.map_second_kernel_params_to_buffers()
        alone = [x for x in b.inputs if places[x][0] is x]
        shared = self.reuse_shared_memory_return_unfit_arrays(places)
        group = level.number if self.size == 1 else Var("group")
        turn = Var("round")
        last = inline_kernel_thread_body(b, group * self.rounds + turn, level.threads.var, places)
        last = For(turn, self.rounds, Block((last, *([block_barrier()] if b.shared else []))))
        counts = Buffer("arrived", DType("int32"), level.count // self.size, "workspace", 64)
        threads = replace(level.threads, body=self.fused_thread_body(group, last, counts))
        blocks = replace(level.blocks, body=threads)
        if self.stride > 1:
            block = Var("block")
            body = self.renumber_blocks_by_group(block, group, threads.body)
            blocks = replace(blocks, var=block, body=replace(threads, body=body))
        read = {x for x, _ in places.values()}
        return Kernel(
            name=a.name,
            inputs=(*a.inputs, *alone),
            outputs=(*a.outputs, *b.outputs),
            body=blocks,
            workspace=(*a.workspace, *b.workspace, *([counts] if self.size > 1 else [])),
            stack=(*a.stack, *b.stack),
            shared=(*a.shared, *shared),
            inplace=tuple((o, i) for o, i in a.inplace if a.inputs[i] not in read),
            macs=a.macs,
            approximate=a.approximate or b.approximate,
            span=merge_spans((a.span, b.span)),
        )

    def fused_kernel_call(self, kernel: Kernel) -> Step:
        """Return the call of the fused kernel that replaces both steps."""
        a, b, places = self.a, self.b, self.map_second_kernel_params_to_buffers()
        alone = [view for x, view in zip(b.kernel.inputs, b.inputs, strict=True) if places[x][0] is x]
        args = [*a.inputs, *alone, *a.outputs, *b.outputs, *a.workspace, *b.workspace]
        args += [new_temporary_view(kernel, x) for x in kernel.params[len(args) :]]
        return Step(kernel, tuple(args), kernel.span, (*a.output_shapes, *b.output_shapes))

    def fused_thread_body(self, group: Var, second_kernel_work: Stmt, arrival_counters: Buffer) -> Block:
        """Return the fused body of a thread: that of the first kernel, followed by the work
        `second_kernel_work` of a group of blocks.
        """
        if self.size == 1:
            return self.level.put([block_barrier(), second_kernel_work])
        numbered = [] if self.stride > 1 else [Declare(group, self.level.number // self.size)]
        return self.level.put(
            [*numbered, *stmts_run_by_last_gpu_block_of_group(arrival_counters, group, self.size, second_kernel_work)]
        )

    def renumber_blocks_by_group(self, block: Var, group: Var, body: Stmt) -> Block:
        """Return `body`, with the block index that it reads computed from the index of the launched
        GPU block: consecutive launched blocks form a group, whose block indices in `body` are
        `stride` apart.
        """
        turn, number = Var("turn"), self.level.number
        digits = Declare(group, block // self.size), Declare(turn, block % self.size)
        return Block((*digits, Declare(number, turn * self.stride + group), body))

    def map_second_kernel_params_to_buffers(self) -> BufferOffsets:
        """Map the parameters of the second kernel to buffers, with offsets, of the fused kernel."""
        offsets: BufferOffsets = {x: (x, as_expr(0)) for x in self.b.kernel.params}
        given = list(zip(self.a.kernel.params, self.a.args, strict=True))
        for param, view in zip(self.b.kernel.inputs, self.b.inputs, strict=True):
            for buffer, other in given:
                first = view.offset - other.offset
                if other.storage is view.storage and 0 <= first <= buffer.size - param.size:
                    offsets[param] = buffer, as_expr(first)
        return offsets

    def reuse_shared_memory_return_unfit_arrays(self, buffer_offsets: BufferOffsets) -> list[Buffer]:
        """Assign the shared-memory arrays of the second kernel to the memory of the first kernel's
        arrays, which are unused by then.

        The result for each array that fits is added to `buffer_offsets`; return the arrays that do
        not fit.
        """
        room = dict.fromkeys(self.a.kernel.shared, 0)
        extra_arrays = list[Buffer]()
        for array in sorted(self.b.kernel.shared, key=lambda x: -x.size):
            size = -(-array.size // _SHARED_ARRAY_ALIGNMENT_ELEMENTS) * _SHARED_ARRAY_ALIGNMENT_ELEMENTS
            fitting = (x for x, at in room.items() if at + size <= x.size)
            fit = next((x for x in fitting if x.dtype == array.dtype), None)
            if fit is None:
                extra_arrays.append(array)
            else:
                buffer_offsets[array] = fit, as_expr(room[fit])
                room[fit] += size
        return extra_arrays
