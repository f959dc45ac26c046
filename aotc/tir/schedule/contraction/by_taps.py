# SPDX-License-Identifier: Apache-2.0
"""Tilings of depthwise convolutions of bytes, channels last, four taps at a time.  A Request in, candidates out.

A column of taps is four vectors of neighbouring channels, zeros where it is shorter.  Taken by turns byte by byte, each
quarter of it is an operand of sums of four products, for all positions that it belongs to:

    for 64 channels: for 8 columns: for column of taps: q = quarters of 3 rows and zeros;
        for k in 0..4: acc[k][j] = dot4(acc[k][j], q[k], weights[column - j][k]) ...

Weights are brought into this order once for each tile of channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final, TypeAlias

from aotc.ir import frozen
from aotc.tir import BYTES, GROUP, LANES, Assign, Block, Buffer, Stmt, Store, as_expr, dot_name, kept, te, words_name
from aotc.tir.expr import Const, Expr, Load, Var, call, private_buffer, substitute
from aotc.tir.schedule.contraction import segments
from aotc.tir.schedule.contraction.candidate import Candidate, Request, attempts
from aotc.tir.schedule.contraction.epilogue import Accumulators
from aotc.tir.schedule.contraction.segments import BorderSignature, Segment, TileAxis
from aotc.tir.schedule.contraction.space import Irregular, Operand, Split, flat, used
from aotc.tir.schedule.contraction.tile import is_present
from aotc.tir.schedule.contraction.tiling import Output, Product, Reduction, Tile, Tiling
from aotc.tir.simplify import simplify

#: Columns of tiles.
COLUMNS: Final = (8, 4, 2)
#: Bytes of the shortest vectors.
LEAST: Final = 16
#: What the reduction axes are at a tap.
_Tap: TypeAlias = Mapping[Var, int]


def by_taps(req: Request) -> Iterator[Candidate]:
    """Tilings along the channels, if they are the last axis of data and weights."""
    c = req.c
    all_bytes = c.dtype == "int32" and {req.a.dtype, req.b.dtype} <= {*BYTES}
    if all_bytes and req.lanes > 1 and not c.block:
        yield from attempts(_candidate, req, ((columns,) for columns in COLUMNS))


def _candidate(req: Request, columns: int) -> Candidate:
    """Tiles of so many columns, of channels in vectors of each length that fits the rest of them."""
    axis = req.c.axes[-1]
    found: list[Candidate] = []
    begin, width = 0, min(req.target.vector_bytes, GROUP * LANES[-1])
    while begin < axis[1]:
        if width < LEAST:
            raise Irregular("channels that do not fill vectors")
        if count := (axis[1] - begin) // width:
            starts = tuple(range(0, width, width // GROUP))
            tiles = Segment(begin, count, width, starts)
            found.append(_part(req, columns, tiles))
            begin += count * width
        width //= 2
    first, *others = found
    scratch = tuple(b for one in found for b in one.workspace)
    cost = sum(one.cost for one in found)
    return replace(first, workspace=scratch, cost=cost, others=tuple(others))


def _part(req: Request, columns: int, channels: Segment) -> Candidate:
    """Tiles of some of the channels."""
    axis = req.c.axes[-1]
    split = Split.of(req.analysis, axis, channels.size)
    position, weights = flat(split.a), flat(split.b)
    steps = [p.coefficient(split.lane) for p in (position, weights)]
    if steps != [1, 1] or not req.analysis.pixel:
        raise Irregular("channels that do not lie side by side")
    open_dims = [d for d in split.a if not d.inside and split.lane not in d.variables]
    places = used(open_dims) & req.pixel_vars
    taps = [(v, n) for v, n in req.c.reduce_axes if n > 1]
    static = used(open_dims) <= req.pixel_vars | req.reduction_vars
    if not static or not all(isinstance(t, Var) for d in open_dims for t in d.index.terms):
        raise Irregular("borders that are not known when a tile is written")
    lane = TileAxis(axis[0], axis[1], (channels,), "x", channels.size // GROUP, split.names)
    column = req.analysis.pixel[-1][0]
    inner: list[TileAxis] = []
    for var, extent in req.analysis.pixel:
        if var not in places and var is not column:
            inner.append(segments.single(var, extent))
            continue
        signature = BorderSignature.of(open_dims, var, req.c.reduce_axes)
        size = columns if var is column else 1
        found = segments.bordered_segments(extent, size, signature)
        inner.append(TileAxis(var, extent, found, "y"))
    along = {v for d in split.a if column in d.variables for v in d.variables}
    across = [a for a in taps if a[0] not in along] or taps
    zero: dict[Var, int] = dict.fromkeys((v for v, _ in req.c.reduce_axes), 0)
    rows, others = _taps(across), _taps([a for a in taps if a not in across])
    size = len(others) * -(-len(rows) // GROUP) * GROUP * channels.size
    made = _Columns(
        split,
        Operand(req.a, position.expr()),
        Operand(req.b, weights.expr()),
        [zero | row for row in rows],
        others,
        private_buffer("taps", req.b.dtype, size),
        req.c.fill,
    )
    bodies = math.prod(len(axis.segments) for axis in inner)
    if bodies * made.steps * columns > req.target.budget.written:
        raise Irregular("borders that take too much code")
    inner = sorted(inner, key=lambda a: a.var is column)
    panel, dtype = Operand(made.panel, as_expr(0)), req.c.dtype
    tiling = Tiling(
        [*req.around(axis), lane, *inner],
        Product(panel, made.a, dtype, lane.lanes, True, req.c.fill),
        Reduction((), (), req.c.reduce_axes, open_dims),
        Output(req.c.axes, req.store, {}),
        {lane: made.copy},
        made.accumulated,
    )
    name = req.name("taps", axis, columns=columns)
    return Candidate(tiling, (made.panel,), made.cost(tiling, req), name)


def _taps(axes: Sequence[te.Axis]) -> list[dict[Var, int]]:
    names = [var for var, _ in axes]
    places = product(*(range(n) for _, n in axes))
    return [dict(zip(names, at, strict=True)) for at in places]


@frozen(eq=False)
class _Columns:
    """Columns of taps of a vector of channels.

    a, b     the operands
    across   the taps of a column; `along` are those that tell columns apart
    panel    the weights in the order in which they are multiplied
    """

    split: Split
    a: Operand
    b: Operand
    across: Sequence[_Tap]
    along: Sequence[_Tap]
    panel: Buffer
    fill: int

    @property
    def groups(self) -> list[Sequence[_Tap]]:
        return [self.across[k : k + GROUP] for k in range(0, len(self.across), GROUP)]

    @property
    def steps(self) -> int:
        """Products of vectors at a position."""
        return len(self.along) * len(self.groups) * GROUP

    def copy(self, names: Mapping[Var, Expr]) -> Stmt:
        """Fills the panel for a tile of channels."""
        stmts: list[Stmt] = []
        for number, (column, group) in enumerate(product(self.along, self.groups)):
            places = [_place(self.b, {**names, **tap, **column}) for tap in group]
            made = self.quarters(self.b, places, 0, stmts)
            for k, value in enumerate(made):
                at = self.weights(number, k).index
                stmts.append(Store(self.panel, at, value))
        return Block(stmts)

    def weights(self, number: int, k: int) -> Load:
        """A quarter of a column of weights."""
        size = self.split.size
        return Load(self.panel, as_expr((number * GROUP + k) * size), size)

    def quarters(self, operand: Operand, places: Sequence[Expr | None], fill: int, stmts: list[Stmt]) -> list[Expr]:
        """Vectors from up to four places, brought side by side; `fill` where a place is none."""
        size, dtype = self.split.size, operand.buffer.dtype
        none = Const(0, dtype, size)
        rows: list[Expr] = []
        for place in places:
            row: Expr = Const(fill, dtype, size)
            if place is not None:
                row = kept("row", Load(operand.buffer, place, size), stmts)
            rows.append(row)
        rows += [none] * (GROUP - len(rows))
        return [kept("quarter", call(f"quarter{k}", *rows), stmts) for k in range(GROUP)]

    def accumulated(self, tile: Tile, accs: Accumulators) -> Sequence[Stmt]:
        """The products of a tile, column by column."""
        users: dict[tuple[Expr | None, ...], list[tuple[int, int]]] = {}
        for (j, y), column in product(enumerate(tile.ys), enumerate(self.along)):
            for g, group in enumerate(self.groups):
                places = tuple(self.place(tile, y, {**tap, **column[1]}) for tap in group)
                users.setdefault(places, []).append((j, column[0] * len(self.groups) + g))
        stmts: list[Stmt] = []
        data, lanes = self.a.buffer.dtype, self.split.size // GROUP
        name = dot_name(data, self.b.buffer.dtype, lanes)
        words = words_name(data, lanes)
        for places, found in users.items():
            if not self.fill and not any(places):
                continue
            made = self.quarters(self.a, places, self.fill, stmts)
            values = [call(words, quarter) for quarter in made]
            for (j, number), (k, value) in product(found, enumerate(values)):
                acc = accs[0][k, j]
                total = call(name, acc, value, self.weights(number, k))
                stmts.append(Assign(acc, total))
        return stmts

    def place(self, tile: Tile, y: Mapping[TileAxis, int], tap: _Tap) -> Expr | None:
        """Where the data of a tap of a position begins, None outside of it."""
        if not is_present(tile, y, tap, tile.tiling.reduction.borders):
            return None
        return _place(self.a, {**tile.names(tile.xs[0], y), **tap})

    def cost(self, tiling: Tiling, req: Request) -> float:
        """Cycles: of shuffles, of products, of finished vectors."""
        columns = max(segment.size for segment in tiling.levels[-1].segments)
        distinct = min(columns * len(self.along), columns + len(self.along) - 1)
        shuffles = 3 * GROUP * len(self.groups) * distinct
        finish = GROUP * columns * req.target.tiles.finish_vector
        trips = math.prod(axis.trips for axis in tiling.levels)
        return trips * (shuffles / 2 + self.steps * columns + finish)


def _place(operand: Operand, names: Mapping[Var, Expr | int]) -> Expr:
    values = {var: as_expr(value) for var, value in names.items()}
    return simplify(substitute(operand.flat, values), {})
