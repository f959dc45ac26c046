# SPDX-License-Identifier: Apache-2.0
"""Horizontal fusion: launches that do not wait for each other as one, where the first leaves processors idle.

In and out: programs.

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

#: Launches that become one at most, and how far back the first of them may lie.
_MOST: Final = 8
_NEAR: Final = 32
#: Bytes of an argument.
POINTER: Final = 8

#: Where buffers of a kernel are in another one, from which element on.
Places: TypeAlias = "dict[Buffer, tuple[Buffer, Expr]]"
#: Of two steps, the second of which waits for the first, one; None where that is not known to be right, or to pay.
Behind: TypeAlias = Callable[[Step, Step], "Step | None"]
#: Of a storage: first element, and the one behind the last.
Span: TypeAlias = tuple[Storage, int, int]
#: For each input of a kernel the number of the other one's input that it is, too.
_Common: TypeAlias = "tuple[int | None, ...]"


def fuse_launches(program: Program, gpu: Gpu, behind: Behind = lambda a, b: None) -> Program:
    """The program with fewer launches; it computes what it did.

    behind    makes one step of two, if it can, of which the second waits for the first
    """
    schedule = _Schedule(gpu, behind)
    for step in program.steps:
        schedule.add(step)
    return replace(program, steps=tuple(schedule.steps))


@dataclass
class _Schedule:
    """Steps that have been made of others, which do not wait for each other.

    sizes   how many each was made of
    uses    of each storage: first element, the end, the number of the step, whether it writes
    known   kernels made of two, by these and by what inputs they share; None where that is not known to be right
    """

    gpu: Gpu
    behind: Behind
    steps: list[Step] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    uses: dict[Storage, list[tuple[int, int, int, bool]]] = field(default_factory=dict)
    known: dict[tuple[Kernel, Kernel, _Common], Kernel | None] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Join a step to the last one that it can be joined to, behind all that it waits for."""
        touched = [(*span, k >= len(step.inputs)) for k, span in enumerate(spans(step))]
        first = 1 + max((at for one in touched for at in self._before(*one)), default=-1)
        at, made = self._fused(step, first)
        self.steps[at:] = [made, *self.steps[at + 1 :]]
        self.sizes[at:] = [sum(self.sizes[at : at + 1]) + 1, *self.sizes[at + 1 :]]
        for storage, begin, end, writes in touched:
            self.uses.setdefault(storage, []).append((begin, end, at, writes))

    def _fused(self, step: Step, first: int) -> tuple[int, Step]:
        """Where a step is done, no sooner than the first one, and what does it there; by itself at the end."""
        if first and (made := self.behind(self.steps[first - 1], step)) is not None:
            return first - 1, made
        for at in range(len(self.steps) - 1, max(first, len(self.steps) - _NEAR) - 1, -1):
            if self.sizes[at] < _MOST and (made := self._joined(self.steps[at], step)) is not None:
                return at, made
        return len(self.steps), step

    def _before(self, storage: Storage, begin: int, end: int, writes: bool) -> Iterator[int]:
        """The steps that must be over before such a use."""
        found = self.uses.get(storage, ())
        return (at for b, e, at, wrote in found if (wrote or writes) and b < end and begin < e)

    def _joined(self, a: Step, b: Step) -> Step | None:
        """One step that does what two do; None if nothing is gained by it."""
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
    """Where a step's arguments lie."""
    pairs = zip(step.kernel.params, step.args, strict=True)
    return [(view.storage, view.offset, view.offset + buffer.size) for buffer, view in pairs]


def joined_kernel(a: Kernel, b: Kernel, common: _Common) -> Kernel:
    """The kernel whose first blocks do what those of `a` do, and the others what those of `b` do, side by side.

    common   for each input of `b` the number of an input of `a` that is one with it; None for others
    """
    first, second = launch_of(a), launch_of(b)
    assert first is not None and second is not None
    grid, block, thread = first.grid + second.grid, Var("block"), Var("thread")
    moved = {buffer: replace(buffer) for buffer in (*b.params, *b.stack)}
    moved |= {own: a.inputs[k] for own, k in zip(b.inputs, common, strict=True) if k is not None}
    shared = {buffer: replace(buffer) for buffer in a.shared}  # a block needs what one of them needs
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
    """What a thread of a block does in a kernel, with other buffers."""
    blocks, threads = loops_of(kernel)
    body = substituted(refreshed(threads.body), {blocks.var: block, threads.var: thread})
    return elsewhere(body, places)
