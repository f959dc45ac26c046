# SPDX-License-Identifier: Apache-2.0
"""Register tiles: the loops and the unrolled inner kernel of a contraction.  Axes cut into tiles in, statements out.

A tile is a set of named accumulators acc[i][j]: i counts vectors of the operand `x` (loaded as vectors), j
scalars of the operand `y` (broadcast).  For a convolution with packed weights and rows of 56 columns:

    for tile: acc00 = 0 ...; for ic: for kh: for kw: { w0 = load; w1 = load; y = broadcast; acc00 += w0 * y; ... }

Accumulators are names, not an array, because C compilers keep an array of vectors in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Final

from aotc.ir.dtype import DType
from aotc.tir import te
from aotc.tir.expr import Broadcast, Buffer, Const, Expr, Load, Var, all_of, as_expr, cast, minimum, substitute
from aotc.tir.loops.vectorize import vectorized
from aotc.tir.schedule.contraction.naive import StoreFn
from aotc.tir.schedule.contraction.space import Dimension, Operand, linear_variables
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, Store, Transpose, walk_stmts

MIN_CHAINS: Final = 8
"""Fewer accumulators than this leave the multiply-add unit waiting for its own results."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` tiles of one shape from position `begin` on, `size` positions each.

    starts   the offsets in a tile of what is computed (positions, or first elements of vectors)
    clip     the last tile of the segment sticks out of the axis
    """

    begin: int
    count: int
    size: int
    starts: tuple[int, ...]
    clip: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TileAxis:
    """An output axis cut into tiles.

    role    "outer" (one position at a time), "x" (along the vector operand) or "y" (along the broadcast one)
    lanes   elements of one vector; 1 where positions are computed one by one
    split   (tile, lane, size) if the operands name the position tile * size + lane instead of `var`
    """

    var: Var
    extent: int
    segments: tuple[Segment, ...]
    role: str = "outer"
    lanes: int = 1
    split: tuple[Var, Var, int] | None = None

    def names(self, base: Expr, offset: int) -> dict[Var, Expr]:
        """What the operands call the position base + offset."""
        if self.split is None:
            return {self.var: base + offset}
        tile, lane, size = self.split
        return {tile: simplify(base // size, {}), lane: as_expr(offset)}

    @property
    def names_used(self) -> frozenset[Var]:
        """The variables that `names` gives a value."""
        return frozenset((self.var,) if self.split is None else self.split[:2])

    @property
    def width(self) -> int:
        """Elements that the widest tile computes."""
        return max(s.starts[-1] + self.lanes - min(0, s.starts[0], s.starts[-1]) for s in self.segments)


def single(var: Var, extent: int) -> TileAxis:
    """An axis that is walked position by position."""
    return TileAxis(var, extent, (Segment(0, extent, 1, (0,)),))


def even_segments(extent: int, size: int) -> tuple[Segment, ...]:
    """Tiles of at most `size` positions, as even as one size and a smaller last tile can be."""
    size = -(-extent // -(-extent // size))
    return cut(extent, size)


def cut(extent: int, size: int) -> tuple[Segment, ...]:
    """Tiles of exactly `size`, and a last one of the rest."""
    count, rest = divmod(extent, size)
    found = [Segment(0, count, size, tuple(range(size)))] if count else []
    if rest:
        found.append(Segment(count * size, 1, rest, tuple(range(rest))))
    return tuple(found)


def bordered_segments(extent: int, size: int, signature: BorderSignature) -> tuple[Segment, ...]:
    """Even tiles, those with different signatures kept apart."""
    found: list[tuple[object, Segment]] = []
    changes = signature.changes()
    for segment in even_segments(extent, size):
        tiles = {(at - segment.begin) // segment.size for at in changes}
        edges = sorted({0, segment.count, *(k for t in tiles for k in (t, t + 1) if 0 < k < segment.count)})
        for k, end in pairwise(edges):
            begin = segment.begin + k * segment.size
            mark = tuple(signature.at(begin + s) for s in segment.starts)
            last = found[-1][1] if found and found[-1][0] == mark else None
            if last is None:
                found.append((mark, Segment(begin, end - k, segment.size, segment.starts)))
            else:
                found[-1] = (mark, Segment(last.begin, last.count + end - k, last.size, last.starts))
    return tuple(segment for _, segment in found)


def vector_segments(extent: int, vectors: int, lanes: int, padded: bool, merge: bool) -> tuple[Segment, ...]:
    """Tiles of `vectors` vectors.

    The end of the axis: with `padded` operands the last vector may stick out, else it overlaps the one
    before it, and only its new elements are stored.  With `merge` a last tile of as many vectors is not
    written on its own (good for code size, bad where the axis is the innermost loop of the stores).
    """
    size = vectors * lanes
    count, rest = divmod(extent, size)
    starts = tuple(range(0, size, lanes))
    last = tuple(range(0, rest, lanes))
    if merge and rest and padded and len(last) == vectors:
        return (Segment(0, count + 1, size, starts, clip=True),)
    found = [Segment(0, count, size, starts)] if count else []
    if rest:
        if not padded:
            last = (*last[:-1], rest - lanes)
        found.append(Segment(count * size, 1, rest, last))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Update:
    """One step: which accumulators get x[i] * y[j], at which values of unrolled axes."""

    taps: dict[Var, int]
    pairs: tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class Tiling:
    """Everything that the statements are made from.

    levels    the axes, outermost loop first
    looped    reduction axes that stay loops; `unrolled` ones are written out
    taps      reduction axes of the borders
    borders   dimensions of `y` that may be out of range, depending on positions in a tile and taps
    guards    dimensions that may be out of range depending on loops
    copies    statements to be run inside the loop of an axis (None: before all loops), from the names of
              the axes outside
    splits    partial sums kept for each element
    along     `y` is read as vectors, too, along the same axis as `x`
    """

    c: te.Contraction
    x: Operand
    y: Operand
    levels: Sequence[TileAxis]
    looped: Sequence[te.Axis]
    unrolled: Sequence[te.Axis]
    store: StoreFn
    unfuse: Mapping[Var, Expr] = field(default_factory=dict)
    taps: Sequence[te.Axis] = ()
    borders: Sequence[Dimension] = ()
    guards: Sequence[Dimension] = ()
    copies: Mapping[TileAxis | None, Callable[[dict[Var, Expr]], Stmt]] = field(default_factory=dict)
    splits: int = 1
    along: bool = False

    def statement(self) -> tuple[Stmt, tuple[Buffer, ...]]:
        """The whole nest, and the stack buffers through which finished tiles go."""
        first = self.copies.get(None)
        nest = self._level(0, {}, {})
        written = {s.buffer for s in walk_stmts(nest) if isinstance(s, (Store, Transpose))}
        buffers = tuple(b for b in (self.buffer, self.turned) if b in written)
        return (nest if first is None else Block((first({}), nest))), buffers

    def __post_init__(self) -> None:
        size = math.prod(axis.width for axis in self.tiled)
        self.positions = size // self.vector.width
        self.turned = None
        if self.turns:
            self.positions = -(-self.positions // self.vector.lanes) * self.vector.lanes
            size = self.positions * self.vector.width
            self.turned = Buffer("turned", self.c.dtype, size, "stack", 64, private=True)
        self.buffer = Buffer("tile", self.c.dtype, size, "stack", 64, private=True)

    buffer: Buffer = field(init=False)
    turned: Buffer | None = field(init=False)
    positions: int = field(init=False)

    @property
    def turns(self) -> bool:
        """Whether tiles are transposed before they are stored: vectors lie across the rows of the output."""
        order = [var for var, _ in self.c.axes]
        vector, others = self.vector, [axis for axis in self.tiled if axis is not self.vector]
        across = all(axis.role == "y" and order.index(axis.var) > order.index(vector.var) for axis in others)
        positions = math.prod(axis.width for axis in others)
        return across and vector.lanes > 1 and vector.width % vector.lanes == 0 and 2 * positions >= vector.lanes

    @property
    def tiled(self) -> list[TileAxis]:
        """The axes of a tile, the vector axis last: the layout of the stack buffer."""
        found = [axis for axis in self.levels if axis.role != "outer"]
        return sorted(found, key=lambda axis: axis.role == "x" and axis is self.vector)

    @property
    def vector(self) -> TileAxis:
        return next(axis for axis in reversed(self.levels) if axis.role == "x" and axis.lanes >= self._lanes)

    @property
    def _lanes(self) -> int:
        return max(axis.lanes for axis in self.levels if axis.role == "x")

    def _level(self, depth: int, bases: dict[TileAxis, Expr], segments: dict[TileAxis, Segment]) -> Stmt:
        if depth == len(self.levels):
            return _Tile(self, bases, segments).statement()
        axis = self.levels[depth]
        stmts: list[Stmt] = []
        for segment in axis.segments:
            loop = Var(axis.var.name)
            base = as_expr(segment.begin) if segment.count == 1 else segment.begin + loop * segment.size
            inner = {**bases, axis: base}
            body = self._level(depth + 1, inner, {**segments, axis: segment})
            if axis in self.copies:
                body = Block((self.copies[axis](self.names(inner)), body))
            stmts.append(body if segment.count == 1 else For(loop, segment.count, body, kind="independent"))
        return Block(stmts) if len(stmts) != 1 else stmts[0]

    def names(self, bases: Mapping[TileAxis, Expr]) -> dict[Var, Expr]:
        """The operands' names of the first position of a tile."""
        return {var: value for axis, base in bases.items() for var, value in axis.names(base, 0).items()}


class _Tile:
    """One tile: its accumulators, updates and stores."""

    def __init__(self, tiling: Tiling, bases: Mapping[TileAxis, Expr], segments: Mapping[TileAxis, Segment]) -> None:
        self.tiling = tiling
        self.bases = bases
        self.segments = segments
        self.dtype: DType = tiling.c.dtype
        self.lanes = tiling.vector.lanes
        self.xs = self._positions("x")
        self.ys = self._positions("y")
        self.rows = self._whole_rows()
        names = [(i, j, s) for j in range(len(self.ys)) for i in range(len(self.xs)) for s in range(tiling.splits)]
        self.acc = {
            (i, j, s): Var(f"acc{i}_{j}" + "abcdefgh"[s : s + 1] * (s > 0), self.dtype, self.lanes) for i, j, s in names
        }

    def _positions(self, role: str) -> list[dict[TileAxis, int]]:
        axes = [axis for axis in self.tiling.levels if axis.role == role]
        return [dict(zip(axes, starts, strict=True)) for starts in product(*(self.segments[a].starts for a in axes))]

    def statement(self) -> Stmt:
        zero = Const(0.0 if self.dtype.is_float else 0, self.dtype, self.lanes)
        stmts: list[Stmt] = [Declare(acc, zero) for acc in self.acc.values()]
        stmts.append(self._reduction())
        finished = self._finish_vectors()
        if finished is not None:
            return Block((*stmts, *finished))
        stmts.extend(self._write())
        if self.tiling.turned is not None:
            stmts.extend(self._turn(self.tiling.turned))
        stmts.append(self._finish())
        return Block(stmts)

    def _reduction(self) -> Stmt:
        """One nest for each part of the taps' ranges over which the same products are inside the data.

        Parts are nests of their own, not statements side by side, unless the tile is small: a C compiler would
        keep the broadcasts that they share in registers, and the accumulators in memory.
        """
        if len(self.acc) <= MIN_CHAINS:
            whole = product(*(range(extent) for _, extent in self.tiling.taps))
            return self._nest([stmt for at in whole for stmt in self._updates([range(k, k + 1) for k in at])])
        stmts: list[Stmt] = []
        for runs in product(*(self._runs(var, extent) for var, extent in self.tiling.taps)):
            body = self._nest(self._updates(runs))
            for (var, _), run in reversed(list(zip(self.tiling.taps, runs, strict=True))):
                body = body if len(run) == 1 else For(var, run.stop, body, begin=run.start, kind="reduction")
            stmts.append(body)
        return Block(stmts)

    def _nest(self, updates: Sequence[Stmt]) -> Stmt:
        """Updates inside the loops of the reduction, where the data is in range."""
        condition = all_of(*(test for dim in self.tiling.guards for test in self._inside(dim)))
        if isinstance(condition, Const) and not condition.value:
            return Block(())  # nothing but padding
        body: Stmt = Block(updates)
        body = body if isinstance(condition, Const) else If(condition, body)
        for var, extent in reversed(self.tiling.looped):
            body = For(var, extent, body, kind="reduction")
        return body

    def _runs(self, tap: Var, extent: int) -> list[range]:
        """The range of a tap, cut where the positions that are inside the data change."""
        dims = [dim for dim in self.tiling.borders if tap in linear_variables(dim.index)]
        others = {var for var, _ in self.tiling.taps} - {tap}
        if any(linear_variables(dim.index) & others for dim in dims):
            return [range(k, k + 1) for k in range(extent)]
        runs: list[range] = []
        last: object = None
        for k in range(extent):
            mark = [self._present(y, {tap: k}, dims) for y in self.ys]
            if runs and mark == last:
                runs[-1] = range(runs[-1].start, k + 1)
            else:
                runs.append(range(k, k + 1))
            last = mark
        return runs

    def _inside(self, dim: Dimension) -> tuple[Expr, Expr]:
        index = simplify(substitute(dim.index.expr(), self.tiling.names(self.bases)), {})
        return index >= 0, index < dim.extent

    def _updates(self, runs: Sequence[range]) -> list[Stmt]:
        """The products of one part of the taps' ranges."""
        taps = dict(zip((var for var, _ in self.tiling.taps), runs, strict=True))
        first = {var: run.start for var, run in taps.items()}
        present = [j for j, y in enumerate(self.ys) if self._present(y, first, self.tiling.borders)]
        pairs = tuple((i, j) for j in present for i in range(len(self.xs)))
        fixed = {var: run.start for var, run in taps.items() if len(run) == 1}
        unrolled = [var for var, _ in self.tiling.unrolled]
        stmts: list[Stmt] = []
        for number, values in enumerate(product(*(range(extent) for _, extent in self.tiling.unrolled))):
            step = {**fixed, **dict(zip(unrolled, values, strict=True))}
            stmts.extend(self._step(Update(step, pairs), number % self.tiling.splits))
        return stmts

    def _present(self, y: Mapping[TileAxis, int], taps: Mapping[Var, int], dims: Sequence[Dimension]) -> bool:
        """Whether products are inside the data in some dimensions; the same for all tiles of a segment."""
        at: dict[Expr, int] = {axis.var: self.segments[axis].begin + offset for axis, offset in y.items()}
        for var, value in taps.items():
            at[var] = value
        return all(0 <= dim.at(at) < dim.extent for dim in dims)

    def _step(self, update: Update, split: int) -> list[Stmt]:
        """Load what is used more than once into registers, then multiply and add."""
        if self.tiling.along:
            return self._step_along(update, split)
        xs = {i: self._load(self.tiling.x, self.xs[i], update.taps, self.lanes) for i, _ in update.pairs}
        ys = {j: self._broadcast(self.ys[j], update.taps) for _, j in update.pairs}
        stmts: list[Stmt] = []
        if len(ys) > 1:
            xs = {i: _register("x", value, stmts) for i, value in xs.items()}
        done: set[int] = set()
        for i, j in update.pairs:
            if j not in done and len(xs) > 1:
                ys[j] = _register("y", ys[j], stmts)
            done.add(j)
            acc = self.acc[i, j, split]
            stmts.append(Assign(acc, acc + xs[i] * ys[j]))
        return stmts

    def _step_along(self, update: Update, split: int) -> list[Stmt]:
        """Products of vectors; no vector of `y` has two uses here."""
        stmts: list[Stmt] = []
        xs = {i: self._load(self.tiling.x, self.xs[i], update.taps, self.lanes) for i, _ in update.pairs}
        if len(update.pairs) > len(xs):
            xs = {i: _register("x", value, stmts) for i, value in xs.items()}
        for i, j in update.pairs:
            acc = self.acc[i, j, split]
            y = self._load(self.tiling.y, {**self.xs[i], **self.ys[j]}, update.taps, self.lanes)
            stmts.append(Assign(acc, acc + xs[i] * y))
        return stmts

    def _load(self, operand: Operand, offsets: Mapping[TileAxis, int], taps: Mapping[Var, int], lanes: int) -> Expr:
        names = self.tiling.names(self.bases)
        for axis, offset in offsets.items():
            names.update(axis.names(self.bases[axis], offset))
        names.update({var: as_expr(value) for var, value in taps.items()})
        index = simplify(substitute(operand.flat, names), {})
        return cast(Load(operand.buffer, index, lanes), self.dtype)

    def _broadcast(self, offsets: Mapping[TileAxis, int], taps: Mapping[Var, int]) -> Expr:
        value = self._load(self.tiling.y, offsets, taps, 1)
        return value if self.lanes == 1 else Broadcast(value, self.lanes)

    def _strides(self) -> dict[TileAxis, int]:
        strides: dict[TileAxis, int] = {}
        step = 1
        for axis in reversed(self.tiling.tiled):
            strides[axis] = step
            step *= axis.width
        if self.rows is not None:
            strides[self.rows] = self.segments[self.tiling.vector].size
        return strides

    def _whole_rows(self) -> TileAxis | None:
        """The axis of whole rows in the output, which are kept without gaps: their elements are one run."""
        vector = self.tiling.vector
        order = [var for var, _ in self.tiling.c.axes]
        place = order.index(vector.var) - 1
        segment = self.segments[vector]
        if place < 0 or segment.size != vector.extent or segment.clip or self._shift(vector):
            return None
        above = [a for a in self.tiling.levels if a.role == "x" and a.var is order[place] and a.extent > 1]
        return above[0] if above else None

    def _shift(self, axis: TileAxis) -> int:
        """Where position 0 of a tile lies: an overlapping vector may begin before it."""
        return -min(0, *self.segments[axis].starts)

    def _finished(self) -> Iterator[tuple[dict[TileAxis, int], Expr]]:
        """The offsets of each accumulator, and its value with all partial sums."""
        for i, j, split in self.acc:
            if split:
                continue
            value: Expr = self.acc[i, j, 0]
            for s in range(1, self.tiling.splits):
                value = value + self.acc[i, j, s]
            yield {**self.xs[i], **self.ys[j]}, value

    def _write(self) -> list[Stmt]:
        """Finished accumulators to the stack."""
        strides = self._strides()
        return [
            Store(
                self.tiling.buffer,
                as_expr(sum(strides[axis] * (offset + self._shift(axis)) for axis, offset in offsets.items())),
                value,
            )
            for offsets, value in self._finished()
        ]

    def _finish_vectors(self) -> list[Stmt] | None:
        """Each accumulator stored from its register; None where vectors lie across the output or stick out."""
        vector, lane, scalar = self.tiling.vector, Var("lane"), Var("done", self.dtype)
        segment = self.segments[vector]
        whole = segment.starts == tuple(range(0, segment.size, self.lanes)) and segment.size % self.lanes == 0
        if self.lanes == 1 or not whole or any(self.segments[a].clip for a in self.tiling.tiled):
            return None
        stmts: list[Stmt] = []
        for offsets, value in self._finished():
            values: dict[Var, Expr] = {a.var: base + offsets.get(a, 0) for a, base in self.bases.items()}
            values[vector.var] = values[vector.var] + lane
            element = vectorized(self.tiling.store(self._outputs(values), scalar), lane, self.lanes, {scalar: value})
            if element is None:
                return None
            stmts.append(element)
        return stmts

    def _outputs(self, values: dict[Var, Expr]) -> tuple[Expr, ...]:
        """The indices in the output of what the axes of the tiling call `values`."""
        return tuple(substitute(self.tiling.unfuse.get(var, var), values) for var, _ in self.tiling.c.axes)

    def _turn(self, turned: Buffer) -> list[Stmt]:
        """The tile transposed, square by square; rows of the last squares that hold nothing are cleared first."""
        lanes, width = self.lanes, self.tiling.vector.width
        strides = self._strides()
        used = {sum(strides[axis] * offset for axis, offset in y.items()) // width for y in self.ys}
        blocks = range(0, max(used) + 1, lanes)
        zero = Const(0.0 if self.dtype.is_float else 0, self.dtype, lanes)
        rows = (row for row in range(blocks[-1] + lanes) if row not in used)
        stmts: list[Stmt] = [
            Store(self.tiling.buffer, as_expr(row * width + part), zero)
            for row in rows
            for part in range(0, width, lanes)
        ]
        for part, row in product(range(0, width, lanes), blocks):
            source = Load(self.tiling.buffer, as_expr(row * width + part), lanes)
            index = as_expr(part * self.tiling.positions + row)
            stmts.append(Transpose(turned, index, self.tiling.positions, source, width))
        return stmts

    def _places(self) -> dict[TileAxis, int]:
        """The strides of the buffer that finished elements are read from."""
        strides = self._strides()
        if self.tiling.turned is None:
            return strides
        width = self.tiling.vector.width
        turned = {axis: stride // width for axis, stride in strides.items()}
        return {**turned, self.tiling.vector: self.tiling.positions}

    def _finish(self) -> Stmt:
        """Loops over the tile, in the order of the output, that store each element."""
        strides = self._places()
        place = {var: number for number, (var, _) in enumerate(self.tiling.c.axes)}
        axes = sorted(self.tiling.tiled, key=lambda axis: place.get(axis.var, -1))
        values: dict[Var, Expr] = {axis.var: base for axis, base in self.bases.items()}
        index: Expr = as_expr(0)
        nest: list[tuple[Var, Expr]] = []
        for axis in axes:
            segment = self.segments[axis]
            index = index + self._shift(axis) * strides[axis]
            run = self.rows is not None and axis is self.tiling.vector
            if (segment.size == 1 and not segment.clip and not run) or axis is self.rows:
                continue
            loop = Var(axis.var.name)
            end: Expr = as_expr(segment.size)
            if segment.clip:
                end = minimum(end, axis.extent - self.bases[axis])
            if self.rows is not None and axis is self.tiling.vector:
                end = as_expr(segment.size * self.segments[self.rows].size)
                values[self.rows.var] = self.bases[self.rows] + loop // segment.size
                values[axis.var] = loop % segment.size
            else:
                values[axis.var] = self.bases[axis] + loop
            nest.append((loop, end))
            index = index + loop * strides[axis]
        body = self.tiling.store(self._outputs(values), Load(self.tiling.turned or self.tiling.buffer, index))
        for loop, end in reversed(nest):
            body = For(loop, end, body, kind="independent")
        return body


def _register(name: str, value: Expr, stmts: list[Stmt]) -> Expr:
    register = Var(name, value.dtype, value.lanes)
    stmts.append(Declare(register, value))
    return register


@dataclass(frozen=True, slots=True)
class BorderSignature:
    """Which taps are inside the data at a position of `axis`."""

    dims: tuple[Dimension, ...]
    axis: Var
    taps: tuple[te.Axis, ...]

    @classmethod
    def of(cls, dims: Sequence[Dimension], axis: Var, taps: Sequence[te.Axis]) -> BorderSignature:
        """The dimensions among `dims` that depend on `axis` are looked at."""
        return cls(tuple(dim for dim in dims if axis in linear_variables(dim.index)), axis, tuple(taps))

    def _places(self, position: int) -> Iterator[dict[Expr, int]]:
        names = [var for var, _ in self.taps]
        for values in product(*(range(extent) for _, extent in self.taps)):
            yield {self.axis: position, **dict(zip(names, values, strict=True))}

    def at(self, position: int) -> tuple[bool, ...]:
        """Per combination of taps, whether the data has the element."""
        return tuple(all(0 <= dim.at(at) < dim.extent for dim in self.dims) for at in self._places(position))

    def changes(self) -> set[int]:
        """The positions whose signature may not be that of the position before them."""
        found = set()
        for dim in self.dims:
            step = dim.index.terms[self.axis]
            first, last = (0, dim.extent) if step > 0 else (-1, dim.extent - 1)
            for at in self._places(0):  # from the first position on whose index is at least `first`, `last`
                found |= {-((dim.at(at) - end) // step) for end in (first, last)}
        return found
