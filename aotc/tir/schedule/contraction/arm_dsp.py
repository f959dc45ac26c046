# SPDX-License-Identifier: Apache-2.0
"""Sums of products of bytes by functions on memory (`aotc.tir.arm_dsp_kernels`).  A Request in, statements out.

What two positions read of the data is gathered run by run, a run being what lies side by side at one tap; each block of
outputs is one call then, which every layer of a network shares, since sizes are its arguments:

    for two positions:
      for taps: col[...] = pairs2(data of position 0, 1)      # bytes of `fill` outside of the data
      for block of outputs: tile = pairs2x4(col, weights); for output: for position: store(tile[...])

One position alone, as in a product of a vector by a matrix, is not gathered: `bytes1x4`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import GROUP, Buffer, Expr, Load, Target, Var, all_of, as_expr, call, filled, minimum, private_buffer, te
from aotc.tir.arm_dsp_kernels import BLOCK, POSITIONS, paired
from aotc.tir.expr import Select, substitute
from aotc.tir.schedule.contraction import index_space
from aotc.tir.schedule.contraction.index_space import Dimension, Irregular, Split, flat, fused, in_groups, row_axis
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.contraction.operand_staging import Staging
from aotc.tir.schedule.contraction.tiling_candidate import Request
from aotc.tir.simplify import Linear, linear, simplify
from aotc.tir.stmt import Block, If, Stmt, Store, forall, loops

#: Bytes of weights of a group of steps.
_STEP: Final = BLOCK * GROUP
#: Rows of fewer positions, which are no whole tiles, are gone through as one.
NARROW: Final = 4


def by_runs(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> ContractionNest:
    """The nest of a contraction; raises Irregular for those whose weights are not packed for it."""
    paired = target.dots is not None and target.dots.paired
    known = c.dtype == "int32" and a.dtype == b.dtype == "int8"
    if not (known and paired) or (c.group, c.block) != (GROUP, BLOCK):
        raise Irregular("weights that are not packed for pairs")
    number = row_axis(c)
    req = Request(*in_groups(c), a, b, store, target, 1)
    return _Runs.of(req, req.c.reduce_axes[number][0], c.reduce_axes[number][1]).nest()


@frozen(eq=False)
class Data:
    """The data of a contraction, or a copy of it with a border.

    position   of an element in it
    borders    indices that may be outside of it
    workspace  that the copy takes, filled by `before`
    """

    buffer: Buffer
    position: Linear
    borders: Sequence[Dimension]
    workspace: Sequence[Buffer] = ()
    before: Sequence[Stmt] = ()

    @staticmethod
    def of(req: Request, split: Split, steps: Var, run: int) -> Data:
        """A copy where runs would not lie side by side, or reach over a border."""
        place = req.group
        assert place is not None
        along = [d for d in split.a if place in d.variables]
        whole = all(d.inside or (d.variables <= {steps, place} and not d.index.const) for d in along)
        position = flat(split.a)
        near = run <= req.c.group or position.coefficient(steps) == req.c.group
        if whole and near and position.coefficient(place) == 1:
            borders = [d for d in split.a if not d.inside and d not in along]
            return Data(req.a, position, borders)
        return Data.padded(req, split)

    @staticmethod
    def padded(req: Request, split: Split) -> Data:
        """A copy with the border, in which groups lie side by side."""
        inner = req.pixel_vars | req.reduction_vars
        how = {"inner": inner, "fill": req.c.fill, "vector": req.group}
        return Data.copied(req.stage("padded", req.a, split.a, split, **how), split)

    @staticmethod
    def copied(copy: Staging, split: Split) -> Data:
        """A copy that is made before everything else."""
        before = [make({}) for make in (copy.zero, copy.copy) if make is not None]
        buffer = copy.operand.buffer
        return Data(buffer, linear(copy.operand.flat, split.ranges), (), (buffer,), before)

    def run(self, index: Expr, blank: Buffer, size: int, names: Mapping[Var, Expr]) -> Expr:
        """So many bytes from `index` on; those of `blank` where they are outside of the data.

        names   what the data's axes are there
        """
        found = Load(self.buffer, simplify(index, {}), size)
        places = ((substitute(dim.index.expr(), names), dim.extent) for dim in self.borders)
        inside = [test for place, end in places for test in (place >= 0, place < end)]
        return Select(all_of(*inside), found, Load(blank, as_expr(0), size)) if inside else found


@frozen(eq=False)
class _Positions:
    """The axes that positions are counted along, the last one in tiles, and what the data's axes are by them."""

    axes: Sequence[te.Axis]
    names: Mapping[Var, Expr]
    position: Expr

    @staticmethod
    def of(req: Request, data: Data) -> _Positions:
        pixels = fused(req.analysis, data.borders, data.position)
        axes = [axis for axis in pixels.axes if axis[1] > 1]
        names: dict[Var, Expr] = {v: as_expr(0) for v, n in req.c.axes if n == 1}
        if len(axes) > 1 and axes[-1][1] % POSITIONS and axes[-1][1] < NARROW:
            (high, height), (low, width) = axes[-2:]
            both = Var("q")
            names |= {high: both // width, low: both % width}
            axes[-2:] = [(both, height * width)]
        whole = {v: substitute(e, names) for v, e in pixels.unfuse.items()}
        return _Positions(axes, {**names, **whole}, substitute(pixels.position.expr(), names))

    @property
    def count(self) -> int:
        """Of the tiled axis."""
        return self.axes[-1][1] if self.axes else 1


@frozen(eq=False)
class _Runs:
    """A contraction by runs.

    run      bytes that lie side by side, counted by `steps` in groups
    taps     the other axes of the reduction
    weights  where one is, by a block of outputs, an output in it, taps and steps
    """

    req: Request
    split: Split
    data: Data
    at: _Positions
    steps: Var
    run: int
    taps: Sequence[te.Axis]
    weights: Linear

    @staticmethod
    def of(req: Request, steps: Var, run: int) -> _Runs:
        split = req.split(BLOCK)
        data = Data.of(req, split, steps, run)
        taps = [axis for axis in req.c.reduce_axes if axis[0] is not steps]
        weights = flat(split.b)
        index_space.require_dense(weights, [*taps, (steps, -(-run // GROUP))], _STEP)
        return _Runs(req, split, data, _Positions.of(req, data), steps, run, taps, weights)

    @property
    def elements(self) -> int:
        """Of gathered data."""
        return math.prod(n for _, n in self.taps) * paired(self.run)

    @property
    def size(self) -> int:
        """Bytes of a block of weights."""
        return self.elements // POSITIONS * BLOCK

    def nest(self) -> ContractionNest:
        """The loops, and what they need."""
        alone = self.at.count == 1
        if alone and (self.taps or self.data.borders):
            alone = math.prod(n for _, n in self.taps) == 1 and not self.data.borders
        tile = private_buffer("tile", self.req.c.dtype, BLOCK if alone else BLOCK * POSITIONS, "stack")
        if alone:
            body, scratch = self._alone(tile), list[Buffer]()
        else:
            col = private_buffer("col", DType("int16"), self.elements)
            blank = private_buffer("blank", self.req.a.dtype, self.run)
            scratch = [col, blank] if self.data.borders else [col]
            body = self._tiles(tile, col, blank)
        start = [filled(blank, self.req.c.fill)] if not alone and self.data.borders else []
        nest = Block((*self.data.before, *start, loops(self.at.axes[:-1], body, "independent")))
        return ContractionNest(nest, (tile,), (*self.data.workspace, *scratch))

    def _tiles(self, tile: Buffer, col: Buffer, blank: Buffer) -> Stmt:
        """Tiles of positions along an axis."""
        count, number, block, output = self.at.count, Var("t"), Var("o"), Var("o")
        column = self.at.axes[-1][0] if self.at.axes else Var("none")
        base, whole = number * POSITIONS, count % POSITIONS == 0
        places = [base + k if whole or k == 0 else minimum(base + k, count - 1) for k in range(POSITIONS)]
        gathered = loops(self.taps, self._gather(col, blank, [{column: place} for place in places]), "independent")
        sums = call("pairs2x4", Load(col, as_expr(0), self.elements), self._weights(block))
        stored: list[Stmt] = []
        for k in range(POSITIONS):
            value = Load(tile, output * POSITIONS + k)
            element = self._store(block * BLOCK + output, {column: base + k}, value)
            stored.append(element if whole or k == 0 else If(base + k < count, element))
        finish = forall(output, self._outputs(block), Block(stored))
        outputs = self.req.outputs[1]
        body = forall(block, -(-outputs // BLOCK), Block((Store(tile, as_expr(0), sums), finish)))
        return forall(number, -(-count // POSITIONS), Block((gathered, body)))

    def _gather(self, col: Buffer, blank: Buffer, places: Sequence[Mapping[Var, Expr]]) -> Stmt:
        """The runs of some positions at a tap."""
        zero, runs = self._zero(), list[Expr]()
        for place in places:
            at = substitute(self.at.position, {**zero, **place})
            runs.append(self.data.run(at, blank, self.run, self._at(place)))
        to = substitute(self.weights.expr(), zero)
        return Store(col, simplify(to * POSITIONS // BLOCK, {}), call("pairs2", *runs))

    def _outputs(self, block: Expr) -> Expr:
        """How many there are in a block."""
        outputs = self.req.outputs[1]
        return as_expr(BLOCK) if outputs % BLOCK == 0 else minimum(BLOCK, outputs - block * BLOCK)

    def _weights(self, block: Expr) -> Load:
        """Those of a block of outputs."""
        names = dict.fromkeys((v for v, _ in self.taps), as_expr(0))
        names |= {**self._zero(), self.split.tile: block}
        begin = substitute(self.weights.expr(), names)
        return Load(self.req.b, begin, self.size)

    def _zero(self) -> dict[Var, Expr]:
        """The first output, the first step of a run."""
        split, group = self.split, self.req.group
        assert group is not None
        return dict.fromkeys((split.tile, split.lane, self.steps, group), as_expr(0))

    def _alone(self, tile: Buffer) -> Stmt:
        """Outputs of one position."""
        outputs, block, output = self.req.outputs[1], Var("o"), Var("o")
        zero: dict[Var, Expr] = {v: as_expr(0) for v in index_space.used(self.split.a)}
        data = Load(self.data.buffer, substitute(self.data.position.expr(), zero), self.run)
        sums = call("bytes1x4", data, self._weights(block))
        finish = forall(output, self._outputs(block), self._store(block * BLOCK + output, {}, Load(tile, output)))
        return forall(block, -(-outputs // BLOCK), Block((Store(tile, as_expr(0), sums), finish)))

    def _store(self, output: Expr, place: Mapping[Var, Expr], value: Expr) -> Stmt:
        """What becomes of an element."""
        names = {self.req.outputs[0]: output, **self._at(place)}
        return self.req.store(tuple(names.get(v, v) for v, _ in self.req.c.axes), value)

    def _at(self, place: Mapping[Var, Expr]) -> dict[Var, Expr]:
        """What the data's axes are at a position."""
        return {**place, **{v: substitute(e, place) for v, e in self.at.names.items()}}
