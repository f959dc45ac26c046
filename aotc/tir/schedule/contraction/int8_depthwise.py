# SPDX-License-Identifier: Apache-2.0
"""CPU tilings of int8 depthwise convolutions with channels last, four kernel offsets (taps) at a
time.

The data of four taps of a kernel column are four vectors of adjacent channels, padded with zero
vectors. Interleaved byte by byte, each quarter of the result is an operand of a dot product of four
bytes. The quarters of an output row, with the padding, are stored in a panel before the row is
computed, so that one loop serves all its tiles:

    for 64 channels:
        for row: for column of the data: panel[column] = quarters of 3 rows and zeros, or of the padding
            for 6 columns: for column of the kernel: for k in 0..4:
                acc[k][j] = dot4(acc[k][j], panel[j + column][k], weights[column][k]) ...

The weights are rearranged in this order once for each tile of channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final, TypeAlias

from aotc.ir import frozen
from aotc.tir import (
    BYTES,
    GROUP,
    LANES,
    Assign,
    Block,
    Buffer,
    Stmt,
    Store,
    all_of,
    as_expr,
    dot_name,
    kept,
    te,
    words_name,
)
from aotc.tir.expr import Const, Expr, Load, Var, call, private_buffer, substitute
from aotc.tir.schedule.contraction import tile_segments
from aotc.tir.schedule.contraction.epilogue import Accumulators
from aotc.tir.schedule.contraction.index_space import Dimension, Irregular, Operand, Split, flat, used
from aotc.tir.schedule.contraction.operand_staging import CopyFn
from aotc.tir.schedule.contraction.tile_segments import BorderSignature, Segment, TileAxis
from aotc.tir.schedule.contraction.tiling import Output, Product, Reduction, Tile, Tiling
from aotc.tir.schedule.contraction.tiling_candidate import Candidate, Request, attempts
from aotc.tir.simplify import Linear, Ranges, bounds, simplify
from aotc.tir.stmt import Declare, For, If, loops

#: Numbers of columns of a tile that are tried.
COLUMNS: Final = (7, 6, 5, 4, 3, 2)
#: Largest number of vector products of a row that is fully unrolled.
WRITTEN: Final = 100
#: Bytes of the shortest vectors.
LEAST: Final = 16
#: The values of the reduction axes at a tap.
_Tap: TypeAlias = Mapping[Var, int]


def by_taps(req: Request) -> Iterator[Candidate]:
    """Yield CPU tilings of an int8 depthwise convolution, if the channels are the last axis of data
    and weights.
    """
    c = req.c
    all_bytes = c.dtype == "int32" and {req.a.dtype, req.b.dtype} <= {*BYTES}
    if all_bytes and req.lanes > 1 and not c.block:
        # registers hold the accumulators of a tile and one column of weights
        fitting = [n for n in COLUMNS if GROUP * (n + 1) <= req.target.registers] or COLUMNS[-1:]
        yield from attempts(_candidate, req, ((columns,) for columns in fitting))


def _candidate(req: Request, columns: int) -> Candidate:
    """Return a tiling of a depthwise convolution with tiles of `columns` columns.

    The channels are split into vectors of decreasing width.
    """
    axis = req.c.axes[-1]
    most = min(req.target.vector_bytes, GROUP * LANES[-1])
    widths = [n for n in (most >> k for k in range(most.bit_length())) if LEAST <= n <= axis[1]]
    found: list[Candidate] = []
    begin = 0
    while rest := axis[1] - begin:
        # the last channels may be computed by one vector that begins earlier, in whole quarters
        last = [n for n in widths if n > rest and rest % (n // GROUP) == 0]
        width = min(last) if last else next((n for n in widths if n <= rest), 0)
        if not width:
            raise Irregular("channels that do not fill vectors")
        size, count = (rest, 1) if last else (width, rest // width)
        tiles = Segment(begin, count, size, tuple(range(0, size, width // GROUP)))
        found.append(_part(req, columns, tiles, width))
        begin += count * size
    first, *others = found
    scratch = tuple(b for one in found for b in one.workspace)
    cost = sum(one.cost for one in found)
    return replace(first, workspace=scratch, cost=cost, others=tuple(others))


def _part(req: Request, columns: int, channels: Segment, width: int) -> Candidate:
    """Return the tiling of a segment of the channels, in vectors of `width` bytes; raise Irregular
    if the layout is unsuitable.
    """
    axis = req.c.axes[-1]
    split = Split.of(req.analysis, axis, width)
    position, weights = flat(split.a), flat(split.b)
    steps = [p.coefficient(split.lane) for p in (position, weights)]
    tiles_apart = [p.coefficient(split.tile) for p in (position, weights)]
    along = axis[1] <= width or tiles_apart == [width, width]
    if steps != [1, 1] or not along or not req.analysis.pixel:
        raise Irregular("channels that do not lie side by side")
    open_dims = [d for d in split.a if not d.inside and split.lane not in d.variables]
    static = used(open_dims) <= req.pixel_vars | req.reduction_vars
    if not static or not all(isinstance(t, Var) for d in open_dims for t in d.index.terms):
        raise Irregular("borders that are not known when a tile is written")
    lane = TileAxis(axis[0], axis[1], (channels,), "x", width // GROUP, split.names)
    *rows, column = req.analysis.pixel
    made = _Panels.of(req, split, open_dims, column, width - channels.size)
    inner = [tile_segments.single(*row) for row in rows]
    tiles = TileAxis(*column, tile_segments.even_segments(column[1], columns), "y")
    panel, dtype = Operand(made.weights, as_expr(0)), req.c.dtype
    # a short row that is a single tile needs no panel
    written = tiles.trips == 1 and made.steps * column[1] <= WRITTEN
    copies: dict[TileAxis | None, CopyFn] = {lane: made.fill_weights if inner or written else made.fill_both}
    if inner and not written:
        copies[inner[-1]] = made.fill_panel
    tiling = Tiling(
        [*req.around(axis), lane, *inner, tiles],
        Product(panel, made.a, dtype, lane.lanes, True, req.c.fill),
        Reduction((), (), req.c.reduce_axes, open_dims),
        Output(req.c.axes, req.store, {}),
        copies,
        made.written if written else made.accumulated,
    )
    name = req.name("taps", axis, columns=columns)
    scratch = (made.weights,) if written else (made.weights, made.panel)
    return Candidate(tiling, scratch, made.cost(tiling, req), name)


def _taps(axes: Sequence[te.Axis]) -> list[dict[Var, int]]:
    """Return, for each point of some axes, the values of their variables."""
    names = [var for var, _ in axes]
    places = product(*(range(n) for _, n in axes))
    return [dict(zip(names, at, strict=True)) for at in places]


@frozen(eq=False)
class _Panels:
    """Panels of data and weights for a tile of channels, in the order in which they are multiplied.

    split            the operands with channels split into vectors
    early            channels of the previous tile at the beginning of the vectors
    a, b             the operands; `a` is indexed by `entry` of the panel in place of columns of
                     output and kernel
    dims             dimensions of the data that may be out of range, indexed by `entry` as well
    ranges           ranges of the output axes that the panel is filled for
    column           the column axis of the output
    entry            variable and number of panel entries: output column j and kernel column k use
                     entry step * j + dilation * k
    step, dilation   see `entry`
    across           the taps at an entry (rows of the kernel)
    along            the columns of the kernel
    weights, panel   the buffers of weights and data
    fill             value of the data outside of its range
    """

    split: Split
    early: int
    a: Operand
    b: Operand
    dims: Sequence[Dimension]
    ranges: Ranges
    column: Var
    entry: te.Axis
    step: int
    dilation: int
    across: Sequence[_Tap]
    along: Sequence[_Tap]
    weights: Buffer
    panel: Buffer
    fill: int

    @classmethod
    def of(cls, req: Request, split: Split, open_dims: Sequence[Dimension], column: te.Axis, early: int) -> _Panels:
        """Return the panels of a depthwise convolution.

        Raise Irregular if the data's index is not a sum of output column and kernel column.
        """
        taps = [(v, n) for v, n in req.c.reduce_axes if n > 1]
        own = {var for d in split.a if column[0] in d.variables for var in d.variables}
        across = [axis for axis in taps if axis[0] not in own] or taps
        kernel = [axis for axis in taps if axis not in across]
        if len(kernel) > 1:
            raise Irregular("columns of the kernel along several axes")
        position = flat(split.a)
        step, dilation = (position.coefficient(v) or 0 for v, _ in (column, *kernel, *[column] * (1 - len(kernel))))
        apart = math.gcd(step, dilation) if kernel else step
        (tap, count) = kernel[0] if kernel else (None, 1)
        if min(step, dilation) < 1:
            raise Irregular("columns that run backwards")
        step, dilation = step // apart, dilation // apart
        entry = (Var("entry"), (column[1] - 1) * step + (count - 1) * dilation + 1)
        moved = {column[0], tap}

        def at_entry(index: Linear) -> Linear:
            terms = {t: c for t, c in index.terms.items() if t not in moved}
            factors = [index.terms.get(v, 0) // k for v, k in ((column[0], step), (tap, dilation)) if v is not None]
            if len(set(factors)) > 1:
                raise Irregular("columns of output and kernel with an index of their own")
            return Linear(terms | ({entry[0]: factors[0]} if factors[0] else {}), index.const)

        places = [dict.fromkeys((v for v, _ in req.c.reduce_axes), 0) | at for at in _taps(across)]
        groups = -(-len(places) // GROUP)
        return cls(
            split,
            early,
            Operand(req.a, at_entry(position).expr() - early),
            Operand(req.b, flat(split.b).expr() - early),
            [replace(d, index=at_entry(d.index)) for d in open_dims],
            split.ranges,
            column[0],
            entry,
            step,
            dilation,
            places,
            _taps(kernel),
            private_buffer("taps", req.b.dtype, count * groups * GROUP * split.size),
            private_buffer("panel", req.a.dtype, entry[1] * groups * GROUP * split.size),
            req.c.fill,
        )

    @property
    def groups(self) -> list[Sequence[_Tap]]:
        """The kernel offsets (taps) of a panel entry in groups of four; the last group may be
        smaller.
        """
        return [self.across[k : k + GROUP] for k in range(0, len(self.across), GROUP)]

    @property
    def steps(self) -> int:
        """Number of vector products per output position of a depthwise convolution."""
        return len(self.along) * len(self.groups) * GROUP

    def fill_both(self, names: Mapping[Var, Expr]) -> Stmt:
        """Return statements that fill the panels of weights and data, for outputs without rows."""
        return Block((self.fill_weights(names), self.fill_panel(names)))

    def fill_weights(self, names: Mapping[Var, Expr]) -> Stmt:
        """Return statements that rearrange the weights of a tile of channels into a panel."""
        stmts: list[Stmt] = []
        size, column = self.split.size, Var("column")
        kernel = dict.fromkeys(self.along[0], column)
        for number, group in enumerate(self.groups):
            places = [_place(self.b, {**names, **tap, **kernel}) for tap in group]
            for k, value in enumerate(self.quarters(self.b, places, stmts)):
                index = (column * len(self.groups) + number) * (GROUP * size) + k * size
                stmts.append(Store(self.weights, simplify(index, {}), value))
        return loops([(column, as_expr(len(self.along)))], Block(stmts))

    def fill_panel(self, names: Mapping[Var, Expr]) -> Stmt:
        """Return statements that fill the data panel for an output row.

        There is one loop for each set of kernel offsets (taps) that is in range.
        """
        stmts: list[Stmt] = []
        taps = [(v, 1 + max(tap[v] for tap in self.across)) for v in self.across[0]]
        signature = BorderSignature.of(self._along, self.entry[0], taps)
        for segment in tile_segments.bordered_segments(self.entry[1], 1, signature):
            var = Var("entry")
            place = var + segment.begin if segment.count > 1 else as_expr(segment.begin)
            body = self._entry({**names, self.entry[0]: place}, place, segment.begin)
            stmts.append(For(var, segment.count, body) if segment.count > 1 else body)
        return Block(stmts)

    @property
    def _along(self) -> list[Dimension]:
        """The dimensions of the data whose index depends on the panel entry (the column)."""
        return [d for d in self.dims if self.entry[0] in d.variables]

    def _entry(self, names: Mapping[Var, Expr], entry: Expr, like: int) -> Stmt:
        """Return statements that store an entry of the data panel, with the set of taps in range
        that entry number `like` has.
        """
        stmts: list[Stmt] = []
        size = self.split.size
        for number, values in enumerate(self._quarters(names, like, stmts)):
            for k, value in enumerate(values):
                index = (entry * len(self.groups) + number) * (GROUP * size) + k * size
                stmts.append(Store(self.panel, simplify(index, {}), value))
        return Block(stmts)

    def _quarters(self, names: Mapping[Var, Expr], like: int, stmts: list[Stmt]) -> Iterator[list[Expr]]:
        """Yield, for each group of four kernel offsets at a panel entry, the four interleaved
        vectors of data.
        """
        at: dict[Expr, int] = {self.entry[0]: like}
        for group in self.groups:
            here = [all(d.has(at | dict(tap)) for d in self._along) for tap in group]
            if any(here):
                rows = [
                    self._row(names, tap, stmts) if inside else self._padding
                    for tap, inside in zip(group, here, strict=True)
                ]
                yield self.interleaved(rows, stmts)
            else:
                yield [self._padding] * GROUP

    @property
    def _padding(self) -> Const:
        """A vector of the padding value."""
        return Const(self.fill, self.a.buffer.dtype, self.split.size)

    def _row(self, names: Mapping[Var, Expr], tap: _Tap, stmts: list[Stmt]) -> Expr:
        """Return the data vector at a kernel offset (tap) and column; padding where its row is out
        of range.
        """
        values = dict(names) | {var: as_expr(at) for var, at in tap.items()}
        tests: list[Expr] = []
        for dim in self.dims:
            if self.entry[0] not in dim.variables:
                index = simplify(substitute(dim.index.expr(), values), self.ranges)
                low, high = bounds(index, self.ranges)
                tests += [index >= 0] * (low < 0) + [index < dim.extent] * (high >= dim.extent)
        value = Load(self.a.buffer, _place(self.a, values), self.split.size)
        if not tests:
            return kept("row", value, stmts)
        row = Var("row", value.dtype, value.lanes)
        stmts += [Declare(row, self._padding), If(all_of(*tests), Assign(row, value))]
        return row

    def quarters(self, operand: Operand, places: Sequence[Expr], stmts: list[Stmt]) -> list[Expr]:
        """Return vectors loaded from up to four addresses, interleaved byte by byte into four
        vectors.
        """
        rows = [kept("row", Load(operand.buffer, place, self.split.size), stmts) for place in places]
        return self.interleaved(rows, stmts)

    def interleaved(self, rows: Sequence[Expr], stmts: list[Stmt]) -> list[Expr]:
        """Interleave up to four vectors byte by byte into four vectors; missing vectors count as
        zeros.
        """
        none = Const(0, rows[0].dtype, self.split.size)
        four = [*rows, *[none] * (GROUP - len(rows))]
        return [kept("quarter", call(f"quarter{k}", *four), stmts) for k in range(GROUP)]

    def accumulated(self, tile: Tile, accs: Accumulators) -> Sequence[Stmt]:
        """Return the dot products of a register tile: loops over the kernel columns and over groups
        of four kernel offsets.
        """
        column, group, stmts = Var("column"), Var("group"), list[Stmt]()
        size, groups = self.split.size, len(self.groups)
        step = (column * groups + group) * (GROUP * size)
        weights = [kept("x", self._weights(step, k), stmts) for k in range(GROUP)]
        base = next(base for axis, base in tile.bases.items() if axis.var is self.column)
        for j, y in enumerate(tile.ys):
            (offset,) = y.values()
            entry = (base + offset) * self.step + column * self.dilation
            data: list[Expr] = []
            for k in range(GROUP):
                index = simplify((entry * groups + group) * (GROUP * size) + k * size, {})
                data.append(Load(self.panel, index, size))
            stmts += self._products(accs, j, data, weights)
        return [loops([(column, as_expr(len(self.along))), (group, as_expr(groups))], Block(stmts), "reduction")]

    def written(self, tile: Tile, accs: Accumulators) -> Sequence[Stmt]:
        """Return the dot products of a whole output row, unrolled, with interleaved data in
        registers instead of the panel.
        """
        stmts: list[Stmt] = []
        groups = len(self.groups)
        for entry in range(self.entry[1]):
            names = {**tile.origin, self.entry[0]: as_expr(entry)}
            for number, data in enumerate(self._quarters(names, entry, stmts)):
                if not self.fill and all(isinstance(value, Const) for value in data):
                    continue
                for j, column in product(range(len(tile.ys)), range(len(self.along))):
                    if j * self.step + column * self.dilation == entry:
                        step = as_expr((column * groups + number) * (GROUP * self.split.size))
                        stmts += self._products(accs, j, data, [self._weights(step, k) for k in range(GROUP)])
        return stmts

    def _weights(self, step: Expr, k: int) -> Load:
        """Return the load of one of the four interleaved weight vectors of a step."""
        size = self.split.size
        return Load(self.weights, simplify(step + k * size, {}), size)

    def _products(self, accs: Accumulators, j: int, data: Sequence[Expr], weights: Sequence[Expr]) -> Iterator[Stmt]:
        """Yield the dot products of interleaved data and weights, added to the accumulators of one
        column of a tile.
        """
        lanes = self.split.size // GROUP
        name = dot_name(self.panel.dtype, self.weights.dtype, lanes)
        words = words_name(self.panel.dtype, lanes)
        for i, k in enumerate(range(self.early // lanes, GROUP)):
            yield Assign(accs[0][i, j], call(name, accs[0][i, j], call(words, data[k]), weights[k]))

    def cost(self, tiling: Tiling, req: Request) -> float:
        """Return the cycles of a tiling: shuffles that fill the panel (its stores are hidden),
        products, and finishing vectors.
        """
        columns = max(segment.size for segment in tiling.levels[-1].segments)
        trips = math.prod(axis.trips for axis in tiling.levels)
        filled = math.prod(axis.trips for axis in tiling.levels[:-1]) * self.entry[1] * len(self.groups)
        finish = GROUP * req.target.tiles.finish_vector
        return filled * 3 * GROUP / 2 + trips * columns * (self.steps + finish)


def _place(operand: Operand, names: Mapping[Var, Expr | int]) -> Expr:
    """Return the address of an operand's element for given values of its variables."""
    values = {var: as_expr(value) for var, value in names.items()}
    return simplify(substitute(operand.flat, values), {})
