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
from aotc.tir import Block, Declare, For, Gpu, If, Kernel, Program, Step, Stmt, Storage, as_expr, refreshed, substituted
from aotc.tir.device.kernel_fission import elsewhere
from aotc.tir.device.thread_block_mapping import is_sound
from aotc.tir.expr import Buffer, Expr, Var, maximum
from aotc.tir.gpu_launch import launch_of, loops_of, shared_bytes

#: Largest number of launches that are merged into one, and of steps that separate them.
_MOST: Final = 8
_NEAR: Final = 32
#: Bytes of a kernel argument.
POINTER: Final = 8

#: For buffers of a kernel, the buffer that replaces each of them, and the offset in it.
Places: TypeAlias = "dict[Buffer, tuple[Buffer, Expr]]"
#: Function that fuses two steps, the second of which depends on the first; it returns None if it
#: cannot or should not.
Behind: TypeAlias = Callable[[Step, Step], "Step | None"]
#: A part of a storage: the storage, the first element, and the end (exclusive).
Span: TypeAlias = tuple[Storage, int, int]
#: For each input of a kernel, the index of the identical input of the other kernel, or None.
_Common: TypeAlias = "tuple[int | None, ...]"


def fuse_launches(program: Program, gpu: Gpu, behind: Behind = lambda a, b: None) -> Program:
    """Return an equivalent program with fewer launches.

    program   the program, whose steps are launches
    gpu       the device
    behind    fuses two steps, the second of which depends on the first; returns None if it cannot
    """
    schedule = _Schedule(gpu, behind)
    for step in program.steps:
        schedule.add(step)
    return replace(program, steps=tuple(schedule.steps))


@dataclass
class _Schedule:
    """The sequence of launches, some of them fused, that has been built so far.

    sizes   for each step, the number of original steps in it
    uses    for each storage, the accesses: first element, end, index of the step, and True for a
            write
    known   fused kernels by the two kernels and their common inputs; None if the verifier does not
            accept the fused kernel
    """

    gpu: Gpu
    behind: Behind
    steps: list[Step] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    uses: dict[Storage, list[tuple[int, int, int, bool]]] = field(default_factory=dict)
    known: dict[tuple[Kernel, Kernel, _Common], Kernel | None] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Add a launch: fuse it with the latest possible launch that comes after all launches it
        depends on, or append it.
        """
        touched = [(*span, k >= len(step.inputs)) for k, span in enumerate(spans(step))]
        first = 1 + max((at for one in touched for at in self._before(*one)), default=-1)
        at, made = self._fused(step, first)
        self.steps[at:] = [made, *self.steps[at + 1 :]]
        self.sizes[at:] = [sum(self.sizes[at : at + 1]) + 1, *self.sizes[at + 1 :]]
        for storage, begin, end, writes in touched:
            self.uses.setdefault(storage, []).append((begin, end, at, writes))

    def _fused(self, step: Step, first: int) -> tuple[int, Step]:
        """Return the position for a launch, at least `first`, and the fused launch to put there;
        the end of the list if not fused.
        """
        if first and (made := self.behind(self.steps[first - 1], step)) is not None:
            return first - 1, made
        for at in range(len(self.steps) - 1, max(first, len(self.steps) - _NEAR) - 1, -1):
            if self.sizes[at] < _MOST and (made := self._joined(self.steps[at], step)) is not None:
                return at, made
        return len(self.steps), step

    def _before(self, storage: Storage, begin: int, end: int, writes: bool) -> Iterator[int]:
        """Yield the indices of the steps that must be complete before elements `begin` to `end` of
        a storage are accessed.
        """
        found = self.uses.get(storage, ())
        return (at for b, e, at, wrote in found if (wrote or writes) and b < end and begin < e)

    def _joined(self, a: Step, b: Step) -> Step | None:
        """Return one launch that executes two independent launches; None if that gains nothing or
        is impossible.
        """
        first, second = launch_of(a.kernel), launch_of(b.kernel)
        if first is None or second is None or first.block != second.block:
            return None
        idle = first.grid < self.gpu.processors * max(1, self.gpu.resident // first.block)
        if not idle or (len(a.args) + len(b.args)) * POINTER > self.gpu.argument_bytes:
            return None
        places, own = spans(a)[: len(a.inputs)], spans(b)[: len(b.inputs)]
        common = tuple(places.index(place) if place in places else None for place in own)
        key = a.kernel, b.kernel, common
        if key not in self.known:
            made = joined_kernel(*key)
            fits = shared_bytes(made.shared) <= self.gpu.shared_bytes
            self.known[key] = made if fits and is_sound(made) else None
        kernel = self.known[key]
        if kernel is None:
            return None
        inputs = (*a.inputs, *(view for view, k in zip(b.inputs, common, strict=True) if k is None))
        args = (*inputs, *a.outputs, *b.outputs, *a.workspace, *b.workspace)
        return Step(kernel, args, merge_spans((a.span, b.span)), (*a.output_shapes, *b.output_shapes))


def spans(step: Step) -> list[Span]:
    """Return, for each argument of a step (kernel call), its storage, first element and end
    (exclusive).
    """
    pairs = zip(step.kernel.params, step.args, strict=True)
    return [(view.storage, view.offset, view.offset + buffer.size) for buffer, view in pairs]


def joined_kernel(a: Kernel, b: Kernel, common: _Common) -> Kernel:
    """Return a kernel whose first blocks execute kernel `a`, and whose other blocks execute kernel
    `b`.

    a, b     kernels with equal numbers of threads per block
    common   for each input of `b`, the index of the identical input of `a`, or None
    """
    first, second = launch_of(a), launch_of(b)
    assert first is not None and second is not None
    grid, block, thread = first.grid + second.grid, Var("block"), Var("thread")
    moved = {buffer: replace(buffer) for buffer in (*b.params, *b.stack)}
    moved |= {own: a.inputs[k] for own, k in zip(b.inputs, common, strict=True) if k is not None}
    shared = {buffer: replace(buffer) for buffer in a.shared}  # a block runs one of the kernels
    for buffer in b.shared:
        fitting = (one for one in a.shared if one.dtype == buffer.dtype and shared[one] not in moved.values())
        like = next(fitting, None)
        moved[buffer] = replace(buffer) if like is None else shared[like]
        if like is not None:
            size = max(like.size, buffer.size)
            shared[like] = moved[buffer] = replace(like, size=size, align=max(like.align, buffer.align))
    own = Var("own")
    count = Declare(own, maximum(block - first.grid, 0))
    begin = as_expr(0)
    of_a, of_b = ({x: (y, begin) for x, y in one.items()} for one in (shared, moved))
    others = Block((count, share_of(b, own, thread, of_b)))
    body = If(block < first.grid, share_of(a, block, thread, of_a), others)
    over = For(block, grid, For(thread, first.block, body, kind="thread"), kind="block")
    inputs, outputs, workspace = (tuple(moved[x] for x in some) for some in (b.inputs, b.outputs, b.workspace))
    alone = tuple(buffer for buffer in inputs if buffer not in a.inputs)
    pairs = [(a.outputs[o], a.inputs[i]) for o, i in a.inplace if i not in common]
    pairs += [(outputs[o], inputs[i]) for o, i in b.inplace if common[i] is None]
    all_inputs, all_outputs = (*a.inputs, *alone), (*a.outputs, *outputs)
    return Kernel(
        name=f"{a.name}_{b.name}",
        inputs=all_inputs,
        outputs=all_outputs,
        body=over,
        workspace=(*a.workspace, *workspace),
        stack=(*a.stack, *(moved[x] for x in b.stack)),
        shared=tuple(dict.fromkeys((*shared.values(), *(moved[x] for x in b.shared)))),
        inplace=tuple((all_outputs.index(o), all_inputs.index(i)) for o, i in pairs),
        macs=a.macs + b.macs,
        approximate=a.approximate or b.approximate,
        span=merge_spans((a.span, b.span)),
    )


def share_of(kernel: Kernel, block: Expr, thread: Var, places: Places) -> Stmt:
    """Return the body of one thread of a kernel, with buffers replaced as in `places`."""
    blocks, threads = loops_of(kernel)
    body = substituted(refreshed(threads.body), {blocks.var: block, threads.var: thread})
    return elsewhere(body, places)
