# SPDX-License-Identifier: Apache-2.0
"""int8 GEMM schedule for x86 AMX: call micro-kernels that multiply matrices in memory
(`aotc.tir.amx_kernels`).

From a Request, statements. One call multiplies the data of consecutive positions, of one or several
rows, by some blocks of outputs, over the whole reduction; data with a border is copied with its
padding before:

    for part of the positions: for 4 blocks of outputs:
      tile = matrices(data, weights, sizes, distances)
      for position: for block: store(tile[...16 sums])

The positions between the rows of an image (padding) are computed where that is faster than a call
for each row, but not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import BYTES, GROUP, Buffer, Expr, Load, Target, Var, as_expr, call, const, private_buffer, substitute, te
from aotc.tir.amx_kernels import BLOCK, ROWS, WIDTH, matrices_name
from aotc.tir.loops.statement_vectorization import MOST, vectorized
from aotc.tir.schedule.contraction.arm_dsp import Data
from aotc.tir.schedule.contraction.index_space import Irregular, Pixels, Split, flat, fused, in_groups, points, row_axis
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.contraction.operand_staging import packed
from aotc.tir.schedule.contraction.tiling import Output
from aotc.tir.schedule.contraction.tiling_candidate import Request
from aotc.tir.simplify import Linear, linear, simplify
from aotc.tir.stmt import Block, Stmt, Store, forall, loops

#: Largest number of positions and of output blocks of a call: its sums stay in the first-level
#: cache.
POSITIONS: Final = 64
BLOCKS: Final = 4
#: Least number of bytes of the reduction, and of one step of it, for which AMX is faster than
#: vectors.
DEPTH: Final = 64
LEAST: Final = 16
#: Overhead of a call, in positions.
CALL: Final = 8
#: Factor of extra positions from which a compact copy of the data is made instead.
SPARSE: Final = 1.5


def by_matrices(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> ContractionNest:
    """Return the AMX loop nest of a contraction; raise Irregular if AMX is unavailable or
    unsuitable.
    """
    known = c.dtype == "int32" and {a.dtype, b.dtype} <= set(BYTES) and (c.group, c.block) == (GROUP, BLOCK)
    if target.dots is None or not target.dots.matrices or not known:
        raise Irregular("no matrices of bytes")
    if 0 in (points(c.axes), points(c.reduce_axes)):
        raise Irregular("nothing to add")
    req = Request(*in_groups(c), a, b, store, target, BLOCK)
    return _Matrices.of(req, req.c.reduce_axes[row_axis(c)]).nest()


@frozen(eq=False)
class _Part:
    """The output positions of one AMX call.

    row, rows      first row, number of rows
    begin, count   first position in each row, number of positions in each row
    skipped        positions before `begin` that are computed, but not stored
    """

    row: Expr
    rows: int
    begin: Expr
    count: int
    skipped: int = 0


@frozen(eq=False)
class _Matrices:
    """A contraction by AMX calls.

    req, split   the contraction, with outputs in blocks
    data         the data or its copy
    pixels       axes of the data
    axes         axes that positions are counted along, at least two
    pitch        bytes of data from one position to the next
    apart        positions from one row to the next
    run          bytes of the reduction that are contiguous
    taps         the other reduction axes: extent, distance in the data, distance in the weights
    weights      address of a weight
    """

    req: Request
    split: Split
    data: Data
    pixels: Pixels
    axes: Sequence[te.Axis]
    pitch: int
    apart: int
    run: int
    taps: Sequence[tuple[int, int, int]]
    weights: Linear

    @staticmethod
    def of(req: Request, steps: te.Axis) -> _Matrices:
        """Return the schedule of a contraction whose reduction steps are counted by `steps`; raise
        Irregular if there is none.
        """
        channel, outputs = req.outputs
        last = next((v for v, n in reversed(req.c.axes) if n > 1), None)
        if outputs < BLOCK or last is not channel:
            raise Irregular("outputs that do not lie side by side")
        split = req.split(BLOCK)
        found = _Matrices._on(req, split, steps, _data(req, split, steps))
        if found.cost > SPARSE * _whole(points(found.axes[-2:])) and steps[1] * GROUP >= DEPTH:
            with suppress(Irregular):
                return _Matrices._on(req, split, steps, _columns(req, split, steps))
        return found

    @staticmethod
    def _on(req: Request, split: Split, steps: te.Axis, data: Data) -> _Matrices:
        """Return the schedule for a given layout of the data; raise Irregular if the layout is
        unsuitable.
        """
        (var, extent), weights = steps, flat(split.b)
        if extent > 1 and weights.coefficient(var) != WIDTH:
            raise Irregular("weights in another order")
        taps = _taps(req, data.position, weights, var)
        run = extent * GROUP
        while beside := [tap for tap in taps if tap[1:] == (run, run * BLOCK)]:
            taps.remove(beside[0])
            run *= beside[0][0]
        depth = run * points([(var, n) for n, *_ in taps])
        if len(taps) > 2 or depth < DEPTH or _width(run) < LEAST:
            raise Irregular("a reduction that does not lie in rows")
        pixels = fused(req.analysis, (), data.position)
        found = [axis for axis in pixels.axes if axis[1] > 1]
        axes = [*((Var("one"), 1) for _ in range(2 - len(found))), *found]
        (high, rows), (wide, count) = axes[-2:]
        row, pitch = (pixels.position.coefficient(v) for v in (high, wide))
        if row is None or not pitch or pitch < 0 or row % pitch or (rows > 1 and row < count * pitch):
            raise Irregular("positions that do not lie in rows")
        if rows * count < ROWS:
            raise Irregular("few positions")
        return _Matrices(req, split, data, pixels, axes, pitch, row // pitch, run, taps, weights)

    @property
    def rows(self) -> int:
        """Rows of a call."""
        (_, high), (_, wide) = self.axes[-2:]
        fitting = [r for r in range(1, high + 1) if (r - 1) * self.apart + wide <= POSITIONS]
        return min(fitting, key=self._cost) if fitting else 1

    @property
    def cost(self) -> int:
        """Estimated time of the last two position axes, in output positions computed."""
        return self._cost(self.rows)

    def _cost(self, rows: int) -> int:
        """Estimate the time of the last two position axes with `rows` rows per AMX call, in output
        positions computed.
        """
        (_, high), (_, wide) = self.axes[-2:]
        return -(-high // rows) * _whole((rows - 1) * self.apart + wide)

    def nest(self) -> ContractionNest:
        """Return the loop nest of an int8 contraction on AMX with the buffers it needs."""
        rows, (_, wide) = self.rows, self.axes[-1]
        positions = min(wide, POSITIONS) if rows == 1 else (rows - 1) * self.apart + wide
        tile = private_buffer("tile", DType("int32"), positions * self.blocks * BLOCK)
        parts = Block(self._loops(tile, part) for part in self._parts(rows))
        nest = loops(self.axes[:-2], parts, "independent")
        return ContractionNest(Block((*self.data.before, nest)), (), (*self.data.workspace, tile))

    @property
    def blocks(self) -> int:
        """Number of output-channel blocks of an AMX call."""
        return min(BLOCKS, -(-self.req.outputs[1] // BLOCK))

    def _parts(self, rows: int) -> Iterator[tuple[Var, int, _Part]]:
        """Yield groups of AMX calls of equal shape: loop variable, number of calls, and the output
        positions of one call.
        """
        (_, high), (_, wide) = self.axes[-2:]
        number, left = Var("p"), Var("p")
        if wide <= POSITIONS:
            yield number, high // rows, _Part(number * rows, rows, as_expr(0), wide)
            yield left, int(high % rows > 0), _Part(as_expr(high - high % rows), high % rows, as_expr(0), wide)
            return
        row, rest = Var("r"), wide % POSITIONS
        each = wide // POSITIONS
        yield number, high * each, _Part(number // each, 1, number % each * POSITIONS, POSITIONS)
        skipped = max(0, ROWS - rest)
        yield row, high * (rest > 0), _Part(row, 1, as_expr(wide - rest), rest, skipped)

    def _loops(self, tile: Buffer, part: tuple[Var, int, _Part]) -> Stmt:
        """Return the loops over AMX calls of equal shape, and over the blocks of output channels."""
        var, count, one = part
        if not count:
            return Block(())
        block, size = Var("o"), self.blocks
        outputs = self.req.outputs[1]
        whole, rest = divmod(-(-outputs // BLOCK), size)
        last = outputs % BLOCK
        # if the last block is partial and alone in its call, all other blocks are full
        alone = int(bool(last) and not rest)
        calls: list[Stmt] = [forall(block, whole - alone, self._call(tile, one, block * size, size))]
        if alone or rest:
            calls.append(self._call(tile, one, as_expr((whole - alone) * size), rest or size))
        return forall(var, count, Block(calls))

    def _call(self, tile: Buffer, part: _Part, block: Expr, size: int) -> Stmt:
        """Return an AMX call that computes the sums of some output positions and blocks of
        channels, followed by the stores.
        """
        split, run = self.split, self.run
        zero = dict.fromkeys((*(v for v, _ in self.req.c.reduce_axes), split.lane, split.tile), as_expr(0))
        assert self.req.group is not None
        zero[self.req.group] = as_expr(0)
        (high, _), (wide, _) = self.axes[-2:]
        names = {**zero, high: part.row, wide: part.begin - part.skipped}
        positions = (part.rows - 1) * self.apart + part.count + part.skipped
        reach = run + sum((n - 1) * x for n, x, _ in self.taps)
        data = Load(self.data.buffer, _at(self.pixels.position, names), (positions - 1) * self.pitch + reach)
        apart = self.weights.coefficient(split.tile) or 0
        deep = run * BLOCK + sum((n - 1) * w for n, _, w in self.taps)
        weights = Load(self.req.b, _at(self.weights, {**zero, split.tile: block}), (size - 1) * apart + deep)
        width = _width(run)
        taps = [*self.taps, *((1, 0, 0) for _ in range(2 - len(self.taps)))]
        numbers = (positions, self.pitch, size, apart, width, run // width, *(n for tap in taps for n in tap))
        name = matrices_name(self.data.buffer.dtype, self.req.b.dtype)
        sums = call(name, data, weights, *(const(n, "int32") for n in numbers))
        return Block((Store(tile, as_expr(0), sums), self._finished(tile, part, block, size)))

    def _finished(self, tile: Buffer, part: _Part, block: Expr, size: int) -> Stmt:
        """Return the loops that finish and store the int32 sums of an AMX call."""
        below, beside = Var("r"), Var("x")
        (high, _), (wide, _) = self.axes[-2:]
        position = below * self.apart + beside + part.skipped
        values = {v: as_expr(0) for v, n in self.req.c.axes if n == 1}
        values |= {high: part.row + below, wide: part.begin + beside}
        stmts = [self._stored(tile, values, (position * size + k) * BLOCK, (block + k) * BLOCK) for k in range(size)]
        return loops([(below, part.rows), (beside, part.count)], Block(stmts), "independent")

    def _stored(self, tile: Buffer, values: dict[Var, Expr], place: Expr, first: Expr) -> Stmt:
        """Return the statement that finishes and stores the sums of one block of channels, as a
        vector where possible.
        """
        lane, scalar = Var("lane"), Var("done", tile.dtype)
        end = linear(first, {})
        channel, outputs = self.req.outputs
        count = BLOCK if end.terms else min(BLOCK, outputs - end.const)
        output = Output(self.req.c.axes, self.req.store, self.pixels.unfuse)
        values = {**values, channel: first + lane}
        if count == BLOCK:
            sums = Load(tile, place, BLOCK)
            made = vectorized(output.finish(values, scalar), lane, BLOCK, {scalar: sums}, most=MOST)
            if made is not None:
                return made
        return forall(lane, count, output.finish(values, Load(tile, place + lane)))


def _at(position: Linear, names: dict[Var, Expr]) -> Expr:
    """Return an address, a linear form, for given values of its variables."""
    return simplify(substitute(position.expr(), names), {})


def _width(run: int) -> int:
    """Return the bytes of an AMX reduction step: the largest multiple of four up to `WIDTH` that
    divides a run.
    """
    return max(n for n in range(GROUP, WIDTH + 1, GROUP) if run % n == 0)


def _data(req: Request, split: Split, steps: te.Axis) -> Data:
    """Return the data, or a padded copy, in which groups of four bytes are adjacent."""
    position, place, (var, extent) = flat(split.a), req.group, steps
    assert place is not None
    near = position.coefficient(place) == 1 and (extent == 1 or position.coefficient(var) == GROUP)
    if near and all(d.inside for d in split.a):
        return Data(req.a, position, ())
    return Data.padded(req, split)


def _columns(req: Request, split: Split, steps: te.Axis) -> Data:
    """Return an im2col copy, in which all data of a position is contiguous; raise Irregular if it
    exceeds the cache.
    """
    c, place = req.c, req.group
    assert place is not None
    taps = [axis for axis in c.reduce_axes if axis is not steps]
    axes = (*req.analysis.pixel, *taps, steps, (place, c.group))
    if points(axes) > req.target.l2:
        raise Irregular("large columns")
    return Data.copied(packed("columns", req.a, split.a, axes, c.fill), split)


def _taps(req: Request, data: Linear, weights: Linear, steps: Var) -> list[tuple[int, int, int]]:
    """Return the reduction axes other than `steps`: extent, distance in the data, distance in the
    weights; inner axes first.

    Raise Irregular if a distance is not constant.
    """
    found = []
    for var, extent in req.c.reduce_axes:
        x, w = data.coefficient(var), weights.coefficient(var)
        if x is None or w is None or x < 0:
            raise Irregular("taps that do not lie in rows")
        if var is not steps and extent > 1:
            found.append((extent, x, w))
    # the second of two taps is the outer loop of a micro-kernel
    return found[::-1]


def _whole(positions: int) -> int:
    """Estimate the time of an AMX call, in output positions.

    Counts whole tile registers of positions, the weights for each pair of registers, and the call
    itself.
    """
    return -(-positions // ROWS) * ROWS + -(-positions // (2 * ROWS)) * ROWS + CALL
