# SPDX-License-Identifier: Apache-2.0
"""Lower kernels and programs to GPU launches: from one kernel, a sequence of kernels with explicit
blocks and threads.

    first, second = on_device(kernel, target)

Values that `first` passes to `second` are a parameter of both.

Parts of a kernel that do not depend on each other share a launch: different blocks execute
different parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from aotc.tir import Buffer, Expr, Gpu, Program, Step, Target, Var, all_of, launch_of, loads, read, uses_device, written
from aotc.tir.device.block_per_row import joined, rows_of
from aotc.tir.device.horizontal_fusion import POINTER, fuse_launches
from aotc.tir.device.kernel_fission import FEW, Nest, Part, parts_of, ranked, whole, work
from aotc.tir.device.parameter_alignment import temporary, with_alignment
from aotc.tir.device.thread_block_mapping import Share, alone, is_sound, nests, shared_out
from aotc.tir.device.vertical_fusion import VerticalFusion
from aotc.tir.plan.memory_plan import merged_kernel
from aotc.tir.stmt import Block, For, If, Intrinsic, Kernel, Stmt, Store, walk_stmts, without

#: Largest number of parts of one launch, as each thread searches for the part of its block.
_TOGETHER: Final = 32


def launched(program: Program, target: Target) -> Program:
    """Return the program with its kernel calls lowered to launches; values passed between launches
    are temporaries.

    Programs for targets without a GPU are returned unchanged (with alignment annotated).
    """
    program = with_alignment(program)
    gpu, sources = target.gpu, dict[Step, Step | None]()
    if gpu is None:
        return program
    mapped, fusion = cache(on_device), VerticalFusion(gpu)
    for step in program.steps:
        found = _launches(step, mapped(step.kernel, target))
        sources |= dict.fromkeys(found, step if len(found) == 1 else None)

    def behind(a: Step, b: Step) -> Step | None:
        source = sources[b]

        def again(groups: int, threads: int) -> Step | None:
            assert source is not None
            few = replace(gpu, threads=threads, processors=groups, resident=4 * threads)
            found = _launches(source, mapped(source.kernel, replace(target, gpu=few)))
            return found[0] if len(found) == 1 else None

        return None if source is None else fusion.fused(a, b, again)

    return fuse_launches(replace(program, steps=tuple(sources)), gpu, behind)


def _launches(step: Step, kernels: Sequence[Kernel]) -> list[Step]:
    """Return the calls of the GPU kernels that together replace one kernel call of the program."""
    views = dict(zip(step.kernel.params, step.args, strict=True))
    shapes = dict(zip(step.kernel.outputs, step.output_shapes, strict=True))
    found: list[Step] = []
    for kernel in kernels:
        for buffer in (b for b in kernel.params if b not in views):
            views[buffer] = temporary(kernel, buffer)
        own = tuple(shapes.get(b, (b.size,)) for b in kernel.outputs)
        origin = step.origin if kernel.outputs == step.kernel.outputs and kernel is kernels[-1] else None
        args = tuple(views[b] for b in kernel.params)
        found.append(Step(kernel, args, step.span, own, origin))
    return found


def on_device(kernel: Kernel, target: Target) -> tuple[Kernel, ...]:
    """Return the kernels with explicit blocks and threads that replace a kernel, in order; none if
    it does nothing.

    Memory that one of them passes to another is a buffer among the parameters of both.
    """
    gpu = target.gpu
    if kernel.source is not None or gpu is None or launch_of(kernel) is not None:
        return (kernel,)
    runs = ranked(kernel, parts_of(kernel))
    mapper = _Mapper(kernel, gpu, target.budget.stack_bytes)
    if uses_device(kernel.body):  # some parts were scheduled as launches
        pass
    elif len(runs) > 1 and work(kernel.body) <= FEW:
        runs = [[whole(kernel)]]
    elif len(runs) > 1:
        other = _Mapper(joined(kernel, gpu), gpu, target.budget.stack_bytes)
        fewer = ranked(other.kernel, parts_of(other.kernel))
        singles = (part for run in fewer for part in run if part.is_single)
        if len(fewer) < len(runs) and all(map(other.by_rows, singles)):
            mapper, runs = other, fewer
    made = [one for run in runs for one in mapper.run(run)]
    heaviest = max(made, key=lambda one: work(one.body), default=None)
    names = [kernel.name] if len(made) == 1 else [f"{kernel.name}_{k}" for k in range(len(made))]
    return tuple(
        replace(one, name=name, macs=kernel.macs if one is heaviest else 0)
        for one, name in zip(made, names, strict=True)
    )


class _Mapper:
    """Maps the parts of one kernel (units of kernel fission) to GPU launches."""

    def __init__(self, kernel: Kernel, gpu: Gpu, stack_bytes: int) -> None:
        self.kernel, self.gpu, self.stack_bytes = kernel, gpu, stack_bytes

    def run(self, parts: Sequence[Part]) -> list[Kernel]:
        """Return GPU kernels for the parts of a kernel that do not depend on each other, as few as
        possible.
        """
        room = self.gpu.argument_bytes // POINTER
        groups: list[list[Part]] = []
        used: list[set[Buffer]] = []
        for part in parts:
            buffers = written(part.body) | read(part.body)
            if groups and len(groups[-1]) < _TOGETHER and len(used[-1] | buffers) <= room:
                groups[-1].append(part)
                used[-1] |= buffers
            else:
                groups.append([part])
                used.append(buffers)
        return [kernel for group in groups for kernel in self.together(group)]

    def together(self, parts: Sequence[Part]) -> list[Kernel]:
        """Return one GPU kernel for several parts, or several where the verifier cannot prove that
        their blocks are independent.

        Explicit launches, and parts whose rows are shared by the threads of a block, are not
        merged.
        """
        found = [self.written_out(part) for part in parts if part.is_launch]
        parts = [part for part in parts if not part.is_launch]
        rows = {part: self.by_rows(part) for part in parts}
        found += [kernel for kernel in rows.values() if kernel is not None]
        chosen = [(part, self.nest(part)) for part in parts if rows[part] is None]
        made = [self.launch(chosen)] if chosen else []
        if len(chosen) > 1 and not is_sound(made[0]):
            made = [self.launch([one]) for one in chosen]
        return [*found, *made]

    def written_out(self, part: Part) -> Kernel:
        """Return the GPU kernel of a part that has explicit loops over blocks and threads already."""
        shared = tuple(b for b in self.kernel.shared if b in written(part.body))
        return self.made([Share(1, part.body, (), part.own, shared)], part.body)

    def by_rows(self, part: Part) -> Kernel | None:
        """Return a GPU kernel whose blocks process rows (outer iterations) of a part with several
        threads each.

        Return None if that is not faster, or cannot be proven correct.
        """
        block, thread, rows = Var("block"), Var("thread"), rows_of(part, self.gpu)
        share = rows.share(block, thread, self.gpu, self.stack_bytes) if rows is not None else None
        if rows is None or share is None:
            return None
        threads = For(thread, rows.threads, share.body, kind="thread")
        made = self.made([share], For(block, share.blocks, threads, kind="block"))
        return made if is_sound(made) else None

    def nest(self, part: Part) -> Nest | None:
        """Return the best mapping of a part's loop iterations to GPU threads that is proven
        correct; None for a single thread.
        """
        for nest in nests(part, self.gpu):
            if is_sound(self.launch([(part, nest)])):
                return nest
        return None

    def launch(self, parts: Sequence[tuple[Part, Nest | None]]) -> Kernel:
        """Return one GPU kernel for several parts; the blocks of each part are numbered after the
        blocks of the previous part.
        """
        threads = max(1 if nest is None else nest.threads(self.gpu) for _, nest in parts)
        block, thread = Var("block"), Var("thread")
        shares: list[tuple[int, Share]] = []
        at = 0
        for part, nest in parts:
            shares.append((at, self.share(part, nest, block - at, thread, threads)))
            at += shares[-1][1].blocks
        body = Block(_only(block, first, first + share.blocks, at, share.body) for first, share in shares)
        over = For(block, at, For(thread, threads, body, kind="thread"), kind="block")
        return self.made([share for _, share in shares], over)

    def share(self, part: Part, nest: Nest | None, block: Expr, thread: Var, threads: int) -> Share:
        """Return the statements of a thread for a part; `nest` is the mapping of its iterations
        (None: one thread runs all).
        """
        if nest is None:
            share = alone(part)
            return share if threads == 1 else replace(share, body=If(thread < 1, share.body))
        return shared_out(part, nest, block, thread, threads, self.gpu, self.stack_bytes)

    def made(self, shares: Sequence[Share], body: Stmt) -> Kernel:
        """Return a GPU kernel with a given body: its inputs are the buffers that the body reads,
        its outputs those it writes.

        shares   the work of the blocks, with its scratch buffers
        body     the loops over blocks and threads
        """
        kernel, r = self.kernel, read(body)
        stores = (s for s in walk_stmts(body) if isinstance(s, (Store, Intrinsic)))
        body = without(body, {s for s in stores if s.buffer.scope != "param" and s.buffer not in r})  # never read
        w = written(body)
        passed = [b for b in dict.fromkeys(_mentioned(body)) if b.scope == "param"]
        order = [*kernel.inputs, *kernel.outputs, *passed]
        outputs = tuple(b for b in dict.fromkeys((*kernel.outputs, *passed)) if b in w)
        inputs = tuple(b for b in dict.fromkeys(order) if b in r and b not in w)
        workspace = [*kernel.workspace, *(b for share in shares for b in share.workspace)]
        stack = dict.fromkeys(b for share in shares for b in share.stack)
        made = replace(
            kernel,
            inputs=inputs,
            outputs=outputs,
            workspace=tuple(b for b in workspace if b in w | r),
            stack=tuple(b for b in stack if b in w | r),
            shared=tuple(b for share in shares for b in share.shared),
            body=body,
            inplace=(),
        )
        pairs = ((kernel.outputs[o], kernel.inputs[i]) for o, i in kernel.inplace)
        found = [(outputs.index(o), inputs.index(i)) for o, i in pairs if o in outputs and i in inputs]
        return replace(made, inplace=tuple(pair for pair in found if is_sound(merged_kernel(made, (pair,)))))


def _only(block: Var, first: int, end: int, blocks: int, body: Stmt) -> Stmt:
    """Return `body` guarded so that only blocks `first` to `end` - 1 of `blocks` execute it."""
    limits = [*([block >= first] if first else []), *([block < end] if end < blocks else [])]
    return If(all_of(*limits), body) if limits else body


def _mentioned(body: Stmt) -> Iterator[Buffer]:
    """Yield the buffers that a statement accesses, in program order."""
    for stmt in walk_stmts(body):
        yield from (load.buffer for load in loads(stmt))
        if isinstance(stmt, (Store, Intrinsic)):
            yield stmt.buffer
