# SPDX-License-Identifier: Apache-2.0
"""Loops over float16 with vectors: C compilers do not turn conversions of one number into those of several.

A finished program in, one with vector loops out; what has no vector form is left to C compilers in float32
(`aotc.tir.loops.converted`):

    for i in 0..100: y[i] = max(x[i], 0)    ->    for i in 0..96 by 16: y[i:16] = max(x[i:16], 0)
                                                  y[84:16] = max(x[84:16], 0)
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import INDEX, Budget, Buffer, Const, Expr, Target, Var, maximum
from aotc.tir.loops.converted import in_single
from aotc.tir.loops.dependence import read, straight_line, written
from aotc.tir.loops.nest import refreshed, substituted
from aotc.tir.loops.vectorize import CONVERTED, vectorized
from aotc.tir.plan.program import Program
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Block, Declare, For, Kernel, Stmt, forall, rebuilt, remembered_kernel

#: The shortest vectors.
LEAST: Final = 4
ROOM: Final = Budget().widened_bytes


def widened(program: Program, target: Target) -> Program:
    """The program with vectors in its loops over narrow floats, on targets that have such vectors."""
    if not target.float16_vectors:
        return program
    lanes, room = target.lanes("float32"), target.budget.widened_bytes
    return program.with_kernels({kernel: widen(kernel, lanes, room) for kernel in program.kernels})


def widen(kernel: Kernel, lanes: int, room: int = ROOM) -> Kernel:
    """The kernel with vectors of `lanes` elements; itself if it has nothing to do with narrow floats.

    room    bytes on its stack for what is converted, at most
    """
    if kernel.source is not None or not _is_narrow(kernel.body):
        return kernel
    source = ("widen", kernel, lanes, room)
    shared = frozenset((kernel.outputs[o], kernel.inputs[i]) for o, i in kernel.inplace)
    return remembered_kernel("widen", source, kernel.span, lambda: _Widening(lanes, shared, room).kernel(kernel))


def _is_narrow(stmt: Stmt) -> bool:
    """Whether anything reads or writes narrow floats."""
    return any(buffer.dtype in CONVERTED for buffer in read(stmt) | written(stmt))


def _is_for_vectors(loop: For) -> bool:
    """Whether neighbouring elements of narrow floats could be computed at once."""
    straight = loop.kind == "independent" and straight_line(loop) is not None
    return straight and loop.step == 1 and _is_narrow(loop.body)


@frozen
class _Widening:
    """Makes the loops; `shared` are pairs of buffers that may be the same memory."""

    lanes: int
    shared: frozenset[tuple[Buffer, Buffer]]
    room: int
    stack: list[Buffer] = field(default_factory=list)

    def kernel(self, kernel: Kernel) -> Kernel:
        body = self.statement(kernel.body)
        return replace(kernel, body=body, stack=(*kernel.stack, *self.stack))

    def statement(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and _is_for_vectors(stmt):
            return self._vectors(stmt, self.lanes) or self._in_single(stmt) or stmt
        return rebuilt(stmt, self.statement)

    def _in_single(self, loop: For) -> Stmt | None:
        found = in_single(loop)
        if found is None or sum(b.nbytes for b in (*self.stack, *found[1])) > self.room:
            return None
        self.stack.extend(found[1])
        return rebuilt(found[0], self.statement)

    def _vectors(self, loop: For, lanes: int) -> Stmt | None:
        """A loop over vectors, and a remainder loop where one is needed; None where no vector fits."""
        if lanes < LEAST:
            return None
        first = Var(loop.var.name)
        count = simplify(maximum(loop.end - loop.begin, 0) // lanes * lanes, {})
        vectors = _vector_body(loop, first, lanes)
        if vectors is None:
            return None
        if isinstance(count, Const) and count.value == 0:
            return self._vectors(loop, lanes // 2)
        whole = simplify(loop.begin + count, {})
        end = whole if isinstance(whole, Const) else Var("whole", INDEX)
        most = forall(first, end, vectors, begin=loop.begin, step=lanes)
        if isinstance(end, Var):
            return Block((Declare(end, whole), most, replace(loop, begin=end)))
        if whole == loop.end:
            return most
        last = _vector_body(loop, loop.end - lanes, lanes) if self._repeats(loop) else None
        if last is not None:  # some elements are computed twice
            return Block((most, last))
        remainder = replace(loop, begin=whole, body=refreshed(loop.body))
        return Block((most, self._vectors(remainder, lanes // 2) or remainder))

    def _repeats(self, loop: For) -> bool:
        """Whether an iteration may run twice: nothing that is written is read."""
        reads, writes = read(loop.body), written(loop.body)
        return not writes & reads and not any((w, r) in self.shared for w in writes for r in reads)


def _vector_body(loop: For, first: Expr, lanes: int) -> Stmt | None:
    """The body for `lanes` iterations from `first` on."""
    lane = Var("lane")
    return vectorized(substituted(refreshed(loop.body), {loop.var: first + lane}), lane, lanes, {})
