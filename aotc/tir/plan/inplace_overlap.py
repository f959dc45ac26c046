# SPDX-License-Identifier: Apache-2.0
"""Compute how far an output of a kernel may overlap an input in memory, if the input is not used
after the kernel.

Input: a kernel without vectors and threads. Output: a distance in bytes. If the output starts at
least this many bytes before the input, every byte is overwritten only after its last read:

    for r in 0..8: for c in 0..16: y[16 * r + c] = x[16 * r + c] + x[16 * r + c + 16]     # 0: reads ahead only
    for r in 1..8: for c in 0..16: y[16 * r + c] = x[16 * r + c] + x[16 * r + c - 16]     # 17: reads the previous row

The order of reads and writes is enumerated over the iterations of the outer loops, up to `EVENTS`
iterations. For the statements inside, only the smallest element read and the largest element
written count, as if the reads came last. Sources: row-delayed convolutions in Pisarchyk and Lee,
"Efficient memory management for deep neural net inference" (2020), and diagonal memory
optimization, Blacker et al. (2023); the distance is derived from the indices here.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.tir import Buffer, Expr, Linear, Var, linear_bounds, substitute
from aotc.tir.loops.loop_dependence import (
    Accesses,
    Ranges,
    assigned,
    collect,
    counted,
    is_replaceable,
    range_of,
    written,
)
from aotc.tir.stmt import Block, Declare, For, Kernel, Stmt, Store, map_exprs, rebuilt

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
#: Largest number of iterations of outer loops that are enumerated.
EVENTS: Final = 1 << 16
#: Types that may alias every other type in C.
_BYTES: Final = frozenset({"int8", "uint8"})


def may_share(output: Buffer, source: Buffer) -> bool:
    """Return True if C's aliasing rules permit accesses to a common memory area by both buffers'
    types.
    """
    return output.dtype == source.dtype or bool(_BYTES & {str(output.dtype), str(source.dtype)})


def least_distance(kernel: Kernel, output: Buffer, source: Buffer) -> int | None:
    """Return by how many bytes an output must start before an input to overlap it safely; None if it must not.

    A negative distance means that the output may start that many bytes after the input.
    """
    if kernel.source is not None or kernel.team or not may_share(output, source):
        return None
    events = _Followed(output, source)
    events.follow(kernel.body, np.zeros(()), ())
    if not events.times:
        return None
    times = np.concatenate(events.times)
    order = np.argsort(times, kind="stable")
    written = np.maximum.accumulate(np.concatenate(events.writes)[order])
    reads = np.concatenate(events.reads)[order]
    after = np.minimum.accumulate(reads[::-1])[::-1]
    # a single store writes after it has read
    plain = np.concatenate(events.plain)[order]
    later = np.append(after[1:], math.inf)
    after = np.where(plain, later, after)
    needed = (written + 1) * output.dtype.itemsize - after * source.dtype.itemsize
    return int(needed.max()) if -math.inf < needed.max() < math.inf else None


class _Followed:
    """Trace of a kernel's events: for each, its time, the largest element written and the smallest
    element read.
    """

    def __init__(self, output: Buffer, source: Buffer) -> None:
        self.output, self.source = output, source
        self.times: list[Array] = []
        self.writes: list[Array] = []
        self.reads: list[Array] = []
        self.plain: list[Any] = []

    def follow(self, stmt: Stmt, start: Array, around: tuple[For, ...]) -> None:
        """Add the events of a statement, given its start time for each iteration of the enclosing loops."""
        if isinstance(stmt, Block):
            changing, values = assigned(stmt) | written(stmt), dict[Var, Expr]()
            for inner in stmt.stmts:
                if values:
                    inner = map_exprs(inner, lambda e: substitute(e, values))
                self.follow(inner, start, around)
                start = start + _length(inner, around)
                if isinstance(inner, Declare) and is_replaceable(inner, changing):
                    values[inner.var] = inner.value
            return
        if isinstance(stmt, For) and _is_followed(stmt, around):
            count = len(counted(stmt))
            length = _length(stmt.body, (*around, stmt))
            self.follow(stmt.body, start[..., None] + np.arange(count) * length, (*around, stmt))
            return
        self.event(stmt, start, around)

    def event(self, stmt: Stmt, start: Array, around: tuple[For, ...]) -> None:
        ranges: Ranges = {}
        for loop in around:
            ranges[loop.var] = range_of(loop, ranges)
        reads, writes = self._places(stmt, ranges, around)
        shape = np.broadcast_shapes(start.shape, tuple(len(counted(loop)) for loop in around))
        for found, array in ((self.times, start), (self.writes, writes), (self.reads, reads)):
            found.append(np.broadcast_to(array, shape).ravel())
        self.plain.append(np.full(self.times[-1].shape, isinstance(stmt, (Store, Declare))))

    def _places(self, stmt: Stmt, ranges: Ranges, around: tuple[For, ...]) -> tuple[Array, Array]:
        """Return the smallest element read and the largest written, for each iteration of the enclosing loops."""
        read: Accesses = {self.source: []}
        written: Accesses = {self.output: []}
        collect(stmt, ranges, read, stores=False, closely=True)
        collect(stmt, ranges, written, reads=False, closely=True)
        least, greatest = np.array(math.inf), np.array(-math.inf)
        for access in read[self.source]:
            own, rest = _split(access.form, around)
            low = own + linear_bounds(rest, access.ranges)[0]
            least = np.minimum(least, np.maximum(low, 0))
        for access in written[self.output]:
            own, rest = _split(access.form, around)
            high = own + linear_bounds(rest, access.ranges)[1] + access.lanes - 1
            greatest = np.maximum(greatest, np.minimum(high, self.output.size - 1))
        return least, greatest


def _split(form: Linear, around: Sequence[For]) -> tuple[Array, Linear]:
    """Split an address into its value for each iteration of the enclosing loops, and the remaining
    linear form.
    """
    own: Array = np.zeros(())
    rest = form
    for axis, loop in enumerate(around):
        factor = form.coefficient(loop.var)
        if factor:
            values = np.array(counted(loop), np.float64)
            own = own + factor * values.reshape(-1, *[1] * (len(around) - axis - 1))
            rest = rest.plus(Linear({loop.var: factor}), -1)
    return own, rest


def _is_followed(loop: For, around: Sequence[For]) -> bool:
    count = math.prod(len(counted(outer)) for outer in (*around, loop))
    return 0 < count <= EVENTS


def _length(stmt: Stmt, around: tuple[For, ...]) -> int:
    """Return the number of events (executed statements) that the trace of a statement has."""
    if isinstance(stmt, Block):
        return sum(_length(inner, around) for inner in stmt.stmts)
    if isinstance(stmt, For) and _is_followed(stmt, around):
        return len(counted(stmt)) * _length(stmt.body, (*around, stmt))
    return 1


def in_sequence(kernel: Kernel, pairs: Sequence[tuple[int, int]]) -> Kernel:
    """Return the kernel with (output, input) pairs marked as overlapping, so that its iterations
    run in program order.
    """

    def serial(stmt: Stmt) -> Stmt:
        stmt = rebuilt(stmt, serial)
        if isinstance(stmt, For) and stmt.kind == "independent":
            return replace(stmt, kind="serial")
        return stmt

    overlaps = tuple(sorted({*kernel.overlaps, *pairs}))
    if overlaps == kernel.overlaps:
        return kernel
    return replace(kernel, body=serial(kernel.body), overlaps=overlaps)
