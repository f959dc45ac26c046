# SPDX-License-Identifier: Apache-2.0
"""Vertical fusion: run a small kernel (such as a normalization) in the blocks of the matrix product
whose result it reads.

Input: two steps, the second of which reads the result of the first. Output: one step:

dense      (x, w, a)     # 96 blocks: 16 rows and 32 columns each         dense_layer_norm (x, w, g, a, y, count)
layer_norm (a, g, y)     # a row for each block                      =>       # the last of 12 blocks does 16 rows

If a block computed all the inputs that it needs itself, it continues after a barrier. If several
blocks did, the last of them to finish continues (`aotc.tir.loops.last_block_reduction`). No
operator is treated specially: ways to group the blocks are tried, and the verifier decides which
one is correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from aotc.ir import DType, frozen, merge_spans
from aotc.tir import INDEX, Binary, Block, Buffer, Const, Gpu, Launch, Step, Var, View, as_expr, bounds, launch_of, walk
from aotc.tir.device.block_per_row import statements
from aotc.tir.device.horizontal_fusion import POINTER, Places, Span, share_of, spans
from aotc.tir.device.parameter_alignment import temporary
from aotc.tir.device.thread_block_mapping import is_sound
from aotc.tir.gpu_launch import by_last, loops_of, shared_bytes
from aotc.tir.stmt import Declare, For, If, Kernel, Stmt, Sync, arrival, nodes, stmts_of, walk_stmts

#: Largest number of statements per thread that cost less than another launch, which starts later
#: and waits for memory. _ROUND is added for each iteration of the loop around them, as it waits,
#: too.
_SOONER: Final = 256
_ROUND: Final = 4
#: Factor by which the total number of statements may shrink when fewer threads run the second
#: kernel, as fewer of them recompute common values; groupings with more work per thread than that
#: are not tried.
_FEWER: Final = 4
#: Alignment of arrays that are packed into one shared array, in elements.
_ALIGNED: Final = 4

#: Function (groups, threads) -> the second step for that many groups of blocks and threads per
#: block; None if it is several launches.
Again: TypeAlias = Callable[[int, int], "Step | None"]


@dataclass
class VerticalFusion:
    """Fuses a small kernel into the launch of the matrix product whose result it reads.

    gpu     the device
    known   results for pairs of kernels: group size, stride and fused kernel; None where fusion is
            impossible
    """

    gpu: Gpu
    known: dict[object, tuple[int, int, Kernel] | None] = field(default_factory=dict)

    def fused(self, a: Step, b: Step, again: Again) -> Step | None:
        """Return one step (kernel call) that computes two consecutive steps; None if fusion is
        impossible or too slow.

        a       the first step, which must do multiply-adds
        b       the second step, which must do none, and depends on no step after `a`
        again   makes the second step for another launch size
        """
        launch = launch_of(a.kernel)
        if launch is None or not a.kernel.macs or b.kernel.macs or not _apart(a, b):
            return None
        level = _Level.of(a.kernel, launch)
        if level is None:
            return None
        key = a.kernel, b.kernel, tuple(_place(a, view) for view in b.inputs)
        if key not in self.known:
            least = _all(b.kernel) // (launch.block * _SOONER * _FEWER)
            ways = (way for way in level.groupings() if level.count // way[0] >= least)
            pairs = (self.pair(a, level, again, *way) for way in ways)
            right = (one for one in pairs if one is not None and self.is_right(one.kernel()))
            found = next(right, None)
            self.known[key] = None if found is None else (found.size, found.stride, found.kernel())
        if (way := self.known[key]) is None:
            return None
        pair = self.pair(a, level, again, *way[:2])
        return None if pair is None else pair.step(way[2])

    def pair(self, a: Step, level: _Level, again: Again, size: int, stride: int) -> _Pair | None:
        """Return two steps to be fused for groups of `size` blocks, `stride` apart.

        Return None if the second step cannot have the thread count of the first, or has too much
        work per thread.
        """
        launch, groups = launch_of(a.kernel), level.count // size
        made = None if launch is None else again(groups, launch.block)
        grid = None if made is None else launch_of(made.kernel)
        if made is None or grid is None or launch is None:
            return None
        if grid.block != launch.block or grid.grid % groups:
            return None
        rounds = grid.grid // groups
        few = rounds * (_work(made.kernel, grid) + _ROUND) <= _SOONER
        return _Pair(a, made, level, size, stride, rounds) if few else None

    def is_right(self, kernel: Kernel) -> bool:
        """Return True if a kernel fits the limits of the device and the verifier proves it correct."""
        fits = shared_bytes(kernel.shared) <= self.gpu.shared_bytes
        passes = len(kernel.params) * POINTER <= self.gpu.argument_bytes
        return fits and passes and is_sound(kernel)


def _apart(a: Step, b: Step) -> bool:
    """Return True if step `b` overwrites nothing that step `a` uses, and each input of `b` that
    overlaps an output of `a` is a part of that output.
    """
    used, others = spans(a), spans(b)
    written, read = used[len(a.inputs) :], others[: len(b.inputs)]
    if any(_meet(one, other) for one in used for other in others[len(b.inputs) :]):
        return False
    return all(_holds(one, other) for one in written for other in read if _meet(one, other))


def _place(a: Step, view: View) -> tuple[tuple[int, int], ...]:
    """Return the arguments of a step that share the storage of a view, as (index of the argument,
    offset of the view in it).
    """
    found = ((k, view.offset - one.offset) for k, one in enumerate(a.args) if one.storage is view.storage)
    return tuple(found)


def _meet(a: Span, b: Span) -> bool:
    """Return True if two parts of storages (storage, first element, end) overlap."""
    return a[0] is b[0] and a[1] < b[2] and b[1] < a[2]


def _holds(a: Span, b: Span) -> bool:
    """Return True if part `a` of a storage (storage, first element, end) contains part `b`."""
    return a[0] is b[0] and a[1] <= b[1] and b[2] <= a[2]


def _all(kernel: Kernel) -> int:
    """Estimate the statements that all threads of a GPU kernel execute together."""
    launch = launch_of(kernel)
    return 0 if launch is None else launch.grid * launch.block * _work(kernel, launch)


def _work(kernel: Kernel, launch: Launch) -> int:
    """Estimate the statements that one thread of a GPU launch executes."""
    blocks, threads = loops_of(kernel)
    ranges = {blocks.var: (0.0, launch.grid - 1.0), threads.var: (0.0, launch.block - 1.0)}
    for stmt in walk_stmts(threads.body):
        if isinstance(stmt, Declare) and stmt.var.dtype == INDEX:
            ranges[stmt.var] = bounds(stmt.value, ranges)
    return statements(threads.body, ranges)


@frozen(eq=False)
class _Level:
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
    def of(kernel: Kernel, launch: Launch) -> _Level | None:
        """Return the point at which work can be appended to a GPU kernel; None if it has atomic
        counters in an unknown form.
        """
        blocks, threads = loops_of(kernel)
        match stmts_of(threads.body):
            case (*before, arrives, If(cond=cond, then=then)) if (found := arrival(arrives)) is not None:
                size, index = found.args[1], getattr(found.args[0], "index", None)
                if not (isinstance(index, Var) and isinstance(size, Const)):
                    return None

                def put(more: Sequence[Stmt]) -> Block:
                    return Block((*before, arrives, If(cond, Block((then, *more)))))

                return _Level(blocks, threads, index, launch.grid // int(size.value), put)
            case _ if any(map(arrival, walk_stmts(threads.body))):
                return None

        def behind(more: Sequence[Stmt]) -> Block:
            return Block((threads.body, *more))

        return _Level(blocks, threads, blocks.var, launch.grid, behind)

    def groupings(self) -> list[tuple[int, int]]:
        """Return the ways to group blocks, as (size, stride): `size` blocks whose indices are
        `stride` apart; small groups first.
        """
        found = set(self._digits())
        near = {(size, 1) for size in (1, *found, self.count) if self.count % size == 0}
        far = {(self.count // n, n) for n in found if self.count % n == 0}
        if self.number is not self.blocks.var:
            far = set()
        return sorted(near | far)

    def _digits(self) -> Iterator[int]:
        """Yield the constants by which the kernel divides the index of its thread block, as
        candidates for group sizes.
        """
        for node in nodes(self.threads.body):
            match node:
                case Binary(op="floordiv" | "floormod", a=a, b=Const(value=n)) if 1 < n < self.count:
                    if {one for one in walk(a) if isinstance(one, Var)} == {self.number}:
                        yield int(n)


@frozen(eq=False)
class _Pair:
    """Two steps (kernel calls) to be fused into one.

    a, b           the steps
    level          the point of the first step at which the second one begins
    size, stride   blocks of the first step in a group, and the distance of their indices
    rounds         blocks of the second step that each group executes
    """

    a: Step
    b: Step
    level: _Level
    size: int
    stride: int
    rounds: int

    def kernel(self) -> Kernel:
        """Return the kernel that executes both steps: the first one, followed by the second one in
        its blocks.
        """
        a, b, level = self.a.kernel, self.b.kernel, self.level
        places = self.places()
        alone = [x for x in b.inputs if places[x][0] is x]
        shared = self.shared(places)
        group = level.number if self.size == 1 else Var("group")
        turn = Var("round")
        last = share_of(b, group * self.rounds + turn, level.threads.var, places)
        last = For(turn, self.rounds, Block((last, *([Sync()] if b.shared else []))))
        counts = Buffer("arrived", DType("int32"), level.count // self.size, "workspace", 64)
        threads = replace(level.threads, body=self.body(group, last, counts))
        blocks = replace(level.blocks, body=threads)
        if self.stride > 1:
            block = Var("block")
            body = self.renumbered(block, group, threads.body)
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

    def step(self, kernel: Kernel) -> Step:
        """Return the call of the fused kernel that replaces both steps."""
        a, b, places = self.a, self.b, self.places()
        alone = [view for x, view in zip(b.kernel.inputs, b.inputs, strict=True) if places[x][0] is x]
        args = [*a.inputs, *alone, *a.outputs, *b.outputs, *a.workspace, *b.workspace]
        args += [temporary(kernel, x) for x in kernel.params[len(args) :]]
        return Step(kernel, tuple(args), kernel.span, (*a.output_shapes, *b.output_shapes))

    def body(self, group: Var, last: Stmt, counts: Buffer) -> Block:
        """Return the fused body of a thread: that of the first kernel, followed by the work `last`
        of a group of blocks.
        """
        if self.size == 1:
            return self.level.put([Sync(), last])
        numbered = [] if self.stride > 1 else [Declare(group, self.level.number // self.size)]
        return self.level.put([*numbered, *by_last(counts, group, self.size, last)])

    def renumbered(self, block: Var, group: Var, body: Stmt) -> Block:
        """Return `body` with GPU blocks renumbered so that the blocks of a group are consecutive."""
        turn, number = Var("turn"), self.level.number
        digits = Declare(group, block // self.size), Declare(turn, block % self.size)
        return Block((*digits, Declare(number, turn * self.stride + group), body))

    def places(self) -> Places:
        """Map the parameters of the second kernel to buffers, with offsets, of the fused kernel."""
        found: Places = {x: (x, as_expr(0)) for x in self.b.kernel.params}
        given = list(zip(self.a.kernel.params, self.a.args, strict=True))
        for own, view in zip(self.b.kernel.inputs, self.b.inputs, strict=True):
            for buffer, other in given:
                first = view.offset - other.offset
                if other.storage is view.storage and 0 <= first <= buffer.size - own.size:
                    found[own] = buffer, as_expr(first)
        return found

    def shared(self, places: Places) -> list[Buffer]:
        """Assign the shared-memory arrays of the second kernel to the memory of the first kernel's
        arrays, which are unused by then.

        The result for each array that fits is added to `places`; return the arrays that do not fit.
        """
        room = dict.fromkeys(self.a.kernel.shared, 0)
        more = list[Buffer]()
        for own in sorted(self.b.kernel.shared, key=lambda x: -x.size):
            size = -(-own.size // _ALIGNED) * _ALIGNED
            fitting = (x for x, at in room.items() if at + size <= x.size)
            fit = next((x for x in fitting if x.dtype == own.dtype), None)
            if fit is None:
                more.append(own)
            else:
                places[own] = fit, as_expr(room[fit])
                room[fit] += size
        return more
