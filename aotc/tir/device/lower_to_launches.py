# SPDX-License-Identifier: Apache-2.0
"""Lower kernels and programs to GPU launches: from one kernel, a sequence of kernels with explicit
blocks and threads.

    first, second = lower_kernel_to_gpu_kernels(kernel, target)

Values that `first` passes to `second` are a parameter of both.

Parts of a kernel that do not depend on each other share a launch: different blocks execute
different parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from aotc.ir import AotcError, option_text
from aotc.tir import (
    Buffer,
    Expr,
    Gpu,
    Load,
    Program,
    Step,
    Target,
    Var,
    View,
    all_of,
    direct_loads,
    has_gpu_loops,
    launch_of,
    read_buffers,
    written_buffers,
)
from aotc.tir.device.block_per_row import fastest_row_mapping, wrap_short_stmts_for_one_gpu_block
from aotc.tir.device.horizontal_fusion import KERNEL_ARGUMENT_BYTES, fuse_gpu_launches
from aotc.tir.device.kernel_fission import (
    KernelPart,
    ParallelNest,
    executed_statement_count,
    group_mutually_independent_parts,
    kernel_as_single_part,
    split_kernel_into_parts,
)
from aotc.tir.device.parameter_alignment import annotate_parameter_alignment, new_temporary_view
from aotc.tir.device.thread_block_mapping import (
    BlockWork,
    candidate_nests_best_first,
    distribute_nest_over_threads,
    is_proven_race_free,
    single_thread_work,
)
from aotc.tir.device.vertical_fusion import VerticalFusion
from aotc.tir.plan.memory_plan import merge_inplace_params
from aotc.tir.stmt import Block, For, If, Kernel, Stmt, Store, buffer_written_by, forall, remove_stmts, walk_stmts

#: Largest number of parts of one launch, as each thread searches for the part of its block.
_MAX_PARTS_PER_LAUNCH: Final = 32


def lower_program_to_gpu_launches(program: Program, target: Target) -> Program:
    """Return the program with its kernel calls lowered to launches; values passed between launches
    are temporaries.

    Programs for targets without a GPU are returned unchanged (with alignment annotated).
    """
    gpu, sources = target.gpu, dict[Step, Step | None]()
    if gpu is not None:
        _reject_control_flow(program, target)
    program = annotate_parameter_alignment(program)
    if gpu is None:
        return program
    mapped, fusion = cache(lower_kernel_to_gpu_kernels), VerticalFusion(gpu)
    for step in program.steps:
        new_steps = _steps_replacing_kernel_call(step, mapped(step.kernel, target))
        sources |= dict.fromkeys(new_steps, step if len(new_steps) == 1 else None)

    def fuse_dependent_steps(a: Step, b: Step) -> Step | None:
        source = sources[b]

        def relower_second_step_for_launch_size(block_groups: int, threads_per_block: int) -> Step | None:
            assert source is not None
            few = replace(gpu, threads=threads_per_block, processors=block_groups, resident=4 * threads_per_block)
            gpu_steps = _steps_replacing_kernel_call(source, mapped(source.kernel, replace(target, gpu=few)))
            return gpu_steps[0] if len(gpu_steps) == 1 else None

        return None if source is None else fusion.fuse_consecutive_steps(a, b, relower_second_step_for_launch_size)

    return fuse_gpu_launches(replace(program, body=tuple(sources)), gpu, fuse_dependent_steps)


def copy_launches(source: View, copy: View, *, target: Target) -> list[Step]:
    """Return the calls of GPU kernels that copy all elements of a tensor to another one."""
    size = source.storage.size
    old, new = Buffer("source", source.storage.dtype, size), Buffer("copy", source.storage.dtype, size)
    i = Var("i")
    kernel = Kernel(name="keep_state", inputs=(old,), outputs=(new,), body=forall(i, size, Store(new, i, Load(old, i))))
    return _steps_replacing_kernel_call(Step(kernel, (source, copy)), lower_kernel_to_gpu_kernels(kernel, target))


def _reject_control_flow(program: Program, target: Target) -> None:
    """Raise AotcError (code "target") if values at run time decide which kernels run."""
    for node in program.body:
        if not isinstance(node, Step):
            text = f"target {target.name} has no control flow: values at run time decide which kernels run"
            hint = (
                "make the condition or the number of iterations a constant of the model, or compile for a processor, "
            )
            hint += "for example with " + option_text("target", "host")
            raise AotcError("target", text, span=node.span, hint=hint)


def _steps_replacing_kernel_call(step: Step, kernels: Sequence[Kernel]) -> list[Step]:
    """Return the calls of the GPU kernels that together replace one kernel call of the program."""
    views = dict(zip(step.kernel.params, step.args, strict=True))
    shapes = dict(zip(step.kernel.outputs, step.output_shapes, strict=True))
    new_steps: list[Step] = []
    for kernel in kernels:
        for buffer in (b for b in kernel.params if b not in views):
            views[buffer] = new_temporary_view(kernel, buffer)
        output_shapes = tuple(shapes.get(b, (b.size,)) for b in kernel.outputs)
        origin = step.origin if kernel.outputs == step.kernel.outputs and kernel is kernels[-1] else None
        args = tuple(views[b] for b in kernel.params)
        new_steps.append(Step(kernel, args, step.span, output_shapes, origin))
    return new_steps


def lower_kernel_to_gpu_kernels(kernel: Kernel, target: Target) -> tuple[Kernel, ...]:
    """Return the kernels with explicit blocks and threads that replace a kernel, in order; none if
    it does nothing.

    Memory that one of them passes to another is a buffer among the parameters of both.
    """
    gpu = target.gpu
    if kernel.source is not None or gpu is None or launch_of(kernel) is not None:
        return (kernel,)
    runs = group_mutually_independent_parts(kernel, split_kernel_into_parts(kernel, gpu))
    mapper = _PartsToLaunchesMapper(kernel, gpu, target.budget.stack_bytes)
    if has_gpu_loops(kernel.body):  # some parts were scheduled as launches
        pass
    elif len(runs) > 1 and executed_statement_count(kernel.body) <= gpu.costs.launch_statements:
        runs = [[kernel_as_single_part(kernel)]]
    elif len(runs) > 1:
        other = _PartsToLaunchesMapper(wrap_short_stmts_for_one_gpu_block(kernel, gpu), gpu, target.budget.stack_bytes)
        fewer = group_mutually_independent_parts(other.kernel, split_kernel_into_parts(other.kernel, gpu))
        singles = (part for run in fewer for part in run if part.is_one_iteration_parallel_loop)
        if len(fewer) < len(runs) and all(map(other.kernel_with_block_per_row, singles)):
            mapper, runs = other, fewer
    gpu_kernels = [gpu_kernel for run in runs for gpu_kernel in mapper.kernels_for_independent_parts(run)]
    heaviest = max(gpu_kernels, key=lambda gpu_kernel: executed_statement_count(gpu_kernel.body), default=None)
    names = [kernel.name] if len(gpu_kernels) == 1 else [f"{kernel.name}_{k}" for k in range(len(gpu_kernels))]
    return tuple(
        replace(gpu_kernel, name=name, macs=kernel.macs if gpu_kernel is heaviest else 0)
        for gpu_kernel, name in zip(gpu_kernels, names, strict=True)
    )


class _PartsToLaunchesMapper:
    """Maps the parts of one kernel (units of kernel fission) to GPU launches."""

    def __init__(self, kernel: Kernel, gpu: Gpu, stack_bytes: int) -> None:
        self.kernel, self.gpu, self.stack_bytes = kernel, gpu, stack_bytes

    def kernels_for_independent_parts(self, parts: Sequence[KernelPart]) -> list[Kernel]:
        """Return GPU kernels for the parts of a kernel that do not depend on each other, as few as
        possible.
        """
        room = self.gpu.argument_bytes // KERNEL_ARGUMENT_BYTES
        groups: list[list[KernelPart]] = []
        used: list[set[Buffer]] = []
        for part in parts:
            buffers = written_buffers(part.part_statements_as_block) | read_buffers(part.part_statements_as_block)
            if groups and len(groups[-1]) < _MAX_PARTS_PER_LAUNCH and len(used[-1] | buffers) <= room:
                groups[-1].append(part)
                used[-1] |= buffers
            else:
                groups.append([part])
                used.append(buffers)
        return [kernel for group in groups for kernel in self.fuse_parts_into_kernels(group)]

    def fuse_parts_into_kernels(self, parts: Sequence[KernelPart]) -> list[Kernel]:
        """Return one GPU kernel for several parts, or several where the verifier cannot prove that
        their blocks are independent.

        Explicit launches, and parts whose rows are shared by the threads of a block, are not
        merged.
        """
        separate_kernels = [self.kernel_of_explicit_launch(part) for part in parts if part.has_explicit_gpu_loops]
        parts = [part for part in parts if not part.has_explicit_gpu_loops]
        rows = {part: self.kernel_with_block_per_row(part) for part in parts}
        separate_kernels += [kernel for kernel in rows.values() if kernel is not None]
        chosen = [(part, self.best_proven_race_free_nest(part)) for part in parts if rows[part] is None]
        fused_kernels = [self.build_fused_kernel(chosen)] if chosen else []
        if len(chosen) > 1 and not is_proven_race_free(fused_kernels[0]):
            fused_kernels = [self.build_fused_kernel([choice]) for choice in chosen]
        return [*separate_kernels, *fused_kernels]

    def kernel_of_explicit_launch(self, part: KernelPart) -> Kernel:
        """Return the GPU kernel of a part that has explicit loops over blocks and threads already."""
        shared = tuple(b for b in self.kernel.shared if b in written_buffers(part.part_statements_as_block))
        return self.make_gpu_kernel(
            [BlockWork(1, part.part_statements_as_block, (), part.iteration_scratch, shared)],
            part.part_statements_as_block,
        )

    def kernel_with_block_per_row(self, part: KernelPart) -> Kernel | None:
        """Return a GPU kernel whose blocks process rows (outer iterations) of a part with several
        threads each.

        Return None if that is not faster, or cannot be proven correct.
        """
        block, thread, rows = Var("block"), Var("thread"), fastest_row_mapping(part, self.gpu)
        share = rows.build_block_work(block, thread, self.gpu, self.stack_bytes) if rows is not None else None
        if rows is None or share is None:
            return None
        threads = For(thread, rows.threads_per_block, share.body, kind="thread")
        row_kernel = self.make_gpu_kernel([share], For(block, share.blocks, threads, kind="block"))
        return row_kernel if is_proven_race_free(row_kernel) else None

    def best_proven_race_free_nest(self, part: KernelPart) -> ParallelNest | None:
        """Return the best mapping of a part's loop iterations to GPU threads that is proven
        correct; None for a single thread.
        """
        for nest in candidate_nests_best_first(part, self.gpu):
            if is_proven_race_free(self.build_fused_kernel([(part, nest)])):
                return nest
        return None

    def build_fused_kernel(self, parts: Sequence[tuple[KernelPart, ParallelNest | None]]) -> Kernel:
        """Return one GPU kernel for several parts; the blocks of each part are numbered after the
        blocks of the previous part.
        """
        threads = max(1 if nest is None else nest.threads_per_block(self.gpu) for _, nest in parts)
        block, thread = Var("block"), Var("thread")
        shares: list[tuple[int, BlockWork]] = []
        at = 0
        for part, nest in parts:
            shares.append((at, self.thread_work_of_part(part, nest, block - at, thread, threads)))
            at += shares[-1][1].blocks
        body = Block(
            _guard_gpu_block_range(block, first, first + share.blocks, at, share.body) for first, share in shares
        )
        over = For(block, at, For(thread, threads, body, kind="thread"), kind="block")
        return self.make_gpu_kernel([share for _, share in shares], over)

    def thread_work_of_part(
        self, part: KernelPart, nest: ParallelNest | None, block: Expr, thread: Var, threads: int
    ) -> BlockWork:
        """Return the statements of a thread for a part; `nest` is the mapping of its iterations
        (None: one thread runs all).
        """
        if nest is None:
            share = single_thread_work(part)
            return share if threads == 1 else replace(share, body=If(thread < 1, share.body))
        return distribute_nest_over_threads(part, nest, block, thread, threads, self.gpu, self.stack_bytes)

    def make_gpu_kernel(self, block_works: Sequence[BlockWork], body: Stmt) -> Kernel:
        """Return a GPU kernel with a given body: its inputs are the buffers that the body reads,
        its outputs those it writes.

        block_works    the work of the blocks, with its scratch buffers
        body           the loops over blocks and threads
        """
        kernel, r = self.kernel, read_buffers(body)
        stores = ((s, b) for s in walk_stmts(body) if (b := buffer_written_by(s)) is not None)
        body = remove_stmts(body, {s for s, b in stores if b.scope != "param" and b not in r})  # never read
        w = written_buffers(body)
        passed = [b for b in dict.fromkeys(_accessed_buffers(body)) if b.scope == "param"]
        order = [*kernel.inputs, *kernel.outputs, *passed]
        outputs = tuple(b for b in dict.fromkeys((*kernel.outputs, *passed)) if b in w)
        inputs = tuple(b for b in dict.fromkeys(order) if b in r and b not in w)
        workspace = [*kernel.workspace, *(b for share in block_works for b in share.workspace)]
        stack = dict.fromkeys(b for share in block_works for b in share.stack)
        gpu_kernel = replace(
            kernel,
            inputs=inputs,
            outputs=outputs,
            workspace=tuple(b for b in workspace if b in w | r),
            stack=tuple(b for b in stack if b in w | r),
            shared=tuple(b for share in block_works for b in share.shared),
            body=body,
            inplace=(),
        )
        pairs = ((kernel.outputs[o], kernel.inputs[i]) for o, i in kernel.inplace)
        inplace_pairs = [(outputs.index(o), inputs.index(i)) for o, i in pairs if o in outputs and i in inputs]
        return replace(
            gpu_kernel,
            inplace=tuple(
                pair for pair in inplace_pairs if is_proven_race_free(merge_inplace_params(gpu_kernel, (pair,)))
            ),
        )


def _guard_gpu_block_range(block: Var, first_block: int, end_block: int, block_count: int, body: Stmt) -> Stmt:
    """Return `body` guarded so that only blocks `first_block` to `end_block` - 1 of `block_count`
    execute it.
    """
    limits = [
        *([block >= first_block] if first_block else []),
        *([block < end_block] if end_block < block_count else []),
    ]
    return If(all_of(*limits), body) if limits else body


def _accessed_buffers(body: Stmt) -> Iterator[Buffer]:
    """Yield the buffers that a statement accesses, in program order."""
    for stmt in walk_stmts(body):
        yield from (load.buffer for load in direct_loads(stmt))
        if (buffer := buffer_written_by(stmt)) is not None:
            yield buffer
