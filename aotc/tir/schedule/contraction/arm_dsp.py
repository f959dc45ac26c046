# SPDX-License-Identifier: Apache-2.0
"""int8 GEMM schedule for Cortex-M with the DSP extension (SMLAD): from a Request, calls of
`aotc.tir.arm_dsp_kernels`.

im2col for two positions at a time, in runs (the bytes that are contiguous at one kernel offset),
widened to int16; then one micro-kernel call per block of outputs. Sizes are arguments of the
micro-kernel, so that all layers share it:

    for two positions:
      for taps: col[...] = pairs2(data of position 0, 1)      # bytes of `fill` outside of the data
      for block of outputs: tile = pairs2x4(col, weights); for output: for position: store(tile[...])

A single position, as in a vector-matrix product, is not copied: `bytes1x4`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
#: Rows with fewer positions, unless they are whole tiles, are fused with the next outer axis.
NARROW: Final = 4


def by_runs(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> ContractionNest:
    """Return the loop nest of an int8 contraction for Cortex-M DSP; raise Irregular if its weights
    are not packed for it.
    """
    paired = target.dots is not None and target.dots.paired
    known = c.dtype == "int32" and a.dtype == b.dtype == "int8"
    if not (known and paired) or (c.group, c.block) != (GROUP, BLOCK):
        raise Irregular("weights that are not packed for pairs")
    number = row_axis(c)
    req = Request(*in_groups(c), a, b, store, target, 1)
    return _Runs.of(req, req.c.reduce_axes[number][0], c.reduce_axes[number][1]).nest()


@frozen(eq=False)
class Spare:
    """Buffers that replace runs (contiguous bytes of the data) which are outside of the data.

    blank   a run of padding; None if no run is completely outside
    edges   for each position, a buffer for a run that crosses a border
    """

    blank: Buffer | None
    edges: tuple[Buffer, ...]

    @property
    def buffers(self) -> list[Buffer]:
        """All buffers for padding and border runs."""
        return [*([] if self.blank is None else [self.blank]), *self.edges]

    def start(self, fill: int) -> list[Stmt]:
        """Return the statements that fill the padding buffer, before all runs are gathered."""
        return [] if self.blank is None else [filled(self.blank, fill)]


@frozen(eq=False)
class Data:
    """The data of a contraction, or a copy of it with a border.

    buffer, position   the data, and the address of an element
    borders            indices that may be out of range, and are constant along a run
    crossed            indices that may be out of range for some elements of a run
    element            variable that counts the elements of a run
    workspace          buffers of the copy, filled by `before`
    """

    buffer: Buffer
    position: Linear
    borders: Sequence[Dimension]
    crossed: Sequence[Dimension] = ()
    element: Var | None = None
    workspace: Sequence[Buffer] = ()
    before: Sequence[Stmt] = ()

    @staticmethod
    def of(req: Request, split: Split, steps: Var, run: int) -> Data:
        """Return the data of a contraction itself if runs (bytes at one kernel offset) are
        contiguous in it, else a padded copy.

        A run that crosses a border is completed when it is gathered: a padded copy would take as
        much memory as the data.
        """
        place = req.group
        assert place is not None
        along = [d for d in split.a if place in d.variables]
        # elements of the last group beyond the end of a run are never read
        crossed = [d for d in along if not d.inside and not (d.variables <= {steps, place} and not d.index.const)]
        position = flat(split.a)
        near = run <= req.c.group or position.coefficient(steps) == req.c.group
        others = req.reduction_vars - {steps, place}
        regular = all(d.index.coefficient(place) == 1 and not d.variables & others for d in crossed)
        if near and position.coefficient(place) == 1 and regular:
            first: dict[Var, Expr] = {steps: as_expr(0)}
            ends = [replace(d, index=linear(substitute(d.index.expr(), first), split.ranges)) for d in crossed]
            borders = [d for d in split.a if not d.inside and d not in along]
            return Data(req.a, position, borders, ends, place)
        return Data.padded(req, split)

    @staticmethod
    def padded(req: Request, split: Split) -> Data:
        """Return a copy of the data with its padding, in which the groups of a dot product are
        contiguous.
        """
        inner = req.pixel_vars | req.reduction_vars
        how = {"inner": inner, "fill": req.c.fill, "vector": req.group}
        return Data.copied(req.stage("padded", req.a, split.a, split, **how), split)

    @staticmethod
    def copied(copy: Staging, split: Split) -> Data:
        """Return a scratch copy of the data, filled before the loop nest."""
        before = [make({}) for make in (copy.zero, copy.copy) if make is not None]
        buffer = copy.operand.buffer
        position = linear(copy.operand.flat, split.ranges)
        return Data(buffer, position, (), workspace=(buffer,), before=before)

    @property
    def open(self) -> list[Dimension]:
        """All indices of the data that may be out of range."""
        return [*self.borders, *self.crossed]

    def spare(self, run: int, positions: int) -> Spare:
        """Return padding buffers for runs (contiguous bytes of the data) of `run` bytes,
        `positions` runs at a time.
        """
        blank = private_buffer("blank", self.buffer.dtype, run) if self.borders else None
        edges = (private_buffer("edge", self.buffer.dtype, run) for _ in range(positions if self.crossed else 0))
        return Spare(blank, tuple(edges))

    def run(self, index: Expr, spare: Spare, size: int, names: Mapping[Var, Expr]) -> Expr:
        """Return the load of `size` contiguous bytes of data from `index` on, or of padding if they
        are out of range.

        names   values of the data's axes
        """
        return self._or_blank(Load(self.buffer, simplify(index, {}), size), spare, names)

    def is_whole(self, size: int, names: Mapping[Var, Expr]) -> list[Expr]:
        """Return the conditions under which no run (contiguous bytes) of `size` bytes crosses a
        border of the data.
        """
        first, last = (_inside(self.crossed, {**names, **self._at(as_expr(k))}) for k in (0, size - 1))
        return [first[k] if k % 2 == 0 else last[k] for k in range(len(first))]

    def completed(
        self, index: Expr, number: int, spare: Spare, size: int, names: Mapping[Var, Expr]
    ) -> tuple[Stmt, Expr]:
        """Return the load of a run of data that crosses a border, and the statements that complete
        it with padding before.
        """
        k, edge = Var("k"), spare.edges[number]
        element = Store(edge, k, Load(self.buffer, simplify(index + k, {})))
        copy: Stmt = forall(k, size, If(all_of(*_inside(self.crossed, {**names, **self._at(k)})), element))
        inside = _inside(self.borders, names)
        return If(all_of(*inside), copy) if inside else copy, self._or_blank(Load(edge, as_expr(0), size), spare, names)

    def _or_blank(self, found: Load, spare: Spare, names: Mapping[Var, Expr]) -> Expr:
        """Return a load of data, replaced by a load of padding where the run is out of range."""
        inside = _inside(self.borders, names)
        return Select(all_of(*inside), found, Load(spare.blank, as_expr(0), found.lanes)) if spare.blank else found

    def _at(self, element: Expr) -> dict[Var, Expr]:
        """Return a substitution that sets the index within a run to `element`."""
        return {} if self.element is None else {self.element: element}

    def gathered(
        self,
        places: Sequence[tuple[Expr, Mapping[Var, Expr]]],
        spare: Spare,
        size: int,
        taps: Sequence[te.Axis],
        take: Callable[[list[Expr]], Stmt],
        fill: int,
    ) -> Stmt:
        """Return loops over kernel offsets (taps) around a statement that `take` makes from the
        data runs of some positions.

        places   for each position, the index of its first element, and the values of the data's
                 axes
        spare    buffers for runs outside of the data
        size     bytes of a run
        taps     reduction axes outside of a run
        fill     the padding
        """
        plain = loops(taps, take([self.run(index, spare, size, names) for index, names in places]), "independent")
        if not self.crossed:
            return plain
        parts = [self.completed(index, k, spare, size, names) for k, (index, names) in enumerate(places)]
        body = Block((*(copy for copy, _ in parts), take([run for _, run in parts])))
        completed = Block((*(filled(edge, fill) for edge in spare.edges), loops(taps, body, "independent")))
        whole = [test for _, names in places for test in self.is_whole(size, names)]
        return If(all_of(*whole), plain, completed)


def _inside(dims: Sequence[Dimension], names: Mapping[Var, Expr]) -> list[Expr]:
    """Return, for each index, the conditions that it is at least 0 and less than its extent."""
    places = ((substitute(dim.index.expr(), dict(names)), dim.extent) for dim in dims)
    return [test for place, end in places for test in (place >= 0, place < end)]


@frozen(eq=False)
class _Positions:
    """The output positions of a contraction.

    axes       the axes that positions are counted along; the last one is tiled
    names      the data's axes as expressions of them
    position   address of an element of the data
    """

    axes: Sequence[te.Axis]
    names: Mapping[Var, Expr]
    position: Expr

    @staticmethod
    def of(req: Request, data: Data) -> _Positions:
        """Return the output positions of a contraction; short rows are fused with the next outer
        axis.
        """
        pixels = fused(req.analysis, data.open, data.position)
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
        """Extent of the tiled axis of output positions."""
        return self.axes[-1][1] if self.axes else 1


@frozen(eq=False)
class _Runs:
    """The Cortex-M DSP schedule of one contraction.

    req, split, data, at   contraction, blocks of outputs, data and positions
    steps                  variable that counts the groups of a run
    run                    contiguous bytes of the data at one kernel offset
    taps                   the other reduction axes
    weights                address of a weight, by block, output in it, taps and steps
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
        """Return the Cortex-M DSP schedule of a contraction; raise Irregular if the weights are not
        dense.
        """
        split = req.split(BLOCK)
        data = Data.of(req, split, steps, run)
        taps = [axis for axis in req.c.reduce_axes if axis[0] is not steps]
        weights = flat(split.b)
        index_space.require_dense(weights, [*taps, (steps, -(-run // GROUP))], _STEP)
        return _Runs(req, split, data, _Positions.of(req, data), steps, run, taps, weights)

    @property
    def elements(self) -> int:
        """Elements of the im2col column buffer."""
        return math.prod(n for _, n in self.taps) * paired(self.run)

    @property
    def size(self) -> int:
        """Bytes of the packed weights of a block of outputs."""
        return self.elements // POSITIONS * BLOCK

    def nest(self) -> ContractionNest:
        """Return the loop nest of an int8 contraction on Cortex-M DSP with the buffers it needs."""
        alone = self.at.count == 1
        if alone and (self.taps or self.data.open):
            alone = math.prod(n for _, n in self.taps) == 1 and not self.data.open
        tile = private_buffer("tile", self.req.c.dtype, BLOCK if alone else BLOCK * POSITIONS, "stack")
        if alone:
            body, scratch, start = self._alone(tile), list[Buffer](), list[Stmt]()
        else:
            col = private_buffer("col", DType("int16"), self.elements)
            spare = self.data.spare(self.run, POSITIONS)
            scratch = [col, *spare.buffers]
            body = self._tiles(tile, col, spare)
            start = spare.start(self.req.c.fill)
        nest = Block((*self.data.before, *start, loops(self.at.axes[:-1], body, "independent")))
        return ContractionNest(nest, (tile,), (*self.data.workspace, *scratch))

    def _tiles(self, tile: Buffer, col: Buffer, spare: Spare) -> Stmt:
        """Return the loop over tiles of output positions: gather, call the micro-kernel for each
        block of channels, store.
        """
        count, number, block, output = self.at.count, Var("t"), Var("o"), Var("o")
        column = self.at.axes[-1][0] if self.at.axes else Var("none")
        base, whole = number * POSITIONS, count % POSITIONS == 0
        places = [base + k if whole or k == 0 else minimum(base + k, count - 1) for k in range(POSITIONS)]
        gathered = self._gather(col, spare, [{column: place} for place in places])
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

    def _gather(self, col: Buffer, spare: Spare, places: Sequence[Mapping[Var, Expr]]) -> Stmt:
        """Return the statements that gather the data of a tile's output positions into the im2col
        buffer.
        """
        zero = self._zero()
        found = [(substitute(self.at.position, {**zero, **place}), self._at(place)) for place in places]
        to = substitute(self.weights.expr(), zero)

        def take(runs: list[Expr]) -> Stmt:
            return Store(col, simplify(to * POSITIONS // BLOCK, {}), call("pairs2", *runs))

        return self.data.gathered(found, spare, self.run, self.taps, take, self.req.c.fill)

    def _outputs(self, block: Expr) -> Expr:
        """Return the number of output channels in a block, which is smaller in the last block."""
        outputs = self.req.outputs[1]
        return as_expr(BLOCK) if outputs % BLOCK == 0 else minimum(BLOCK, outputs - block * BLOCK)

    def _weights(self, block: Expr) -> Load:
        """Return the load of the packed weights of a block of output channels."""
        names = dict.fromkeys((v for v, _ in self.taps), as_expr(0))
        names |= {**self._zero(), self.split.tile: block}
        begin = substitute(self.weights.expr(), names)
        return Load(self.req.b, begin, self.size)

    def _zero(self) -> dict[Var, Expr]:
        """Return a substitution that sets the variables of outputs and of steps of a run to 0."""
        split, group = self.split, self.req.group
        assert group is not None
        return dict.fromkeys((split.tile, split.lane, self.steps, group), as_expr(0))

    def _alone(self, tile: Buffer) -> Stmt:
        """Return the loop over blocks of output channels for a contraction with a single output
        position.
        """
        outputs, block, output = self.req.outputs[1], Var("o"), Var("o")
        zero: dict[Var, Expr] = {v: as_expr(0) for v in index_space.used(self.split.a)}
        data = Load(self.data.buffer, substitute(self.data.position.expr(), zero), self.run)
        sums = call("bytes1x4", data, self._weights(block))
        finish = forall(output, self._outputs(block), self._store(block * BLOCK + output, {}, Load(tile, output)))
        return forall(block, -(-outputs // BLOCK), Block((Store(tile, as_expr(0), sums), finish)))

    def _store(self, output: Expr, place: Mapping[Var, Expr], value: Expr) -> Stmt:
        """Return the statement that finishes and stores an output element."""
        names = {self.req.outputs[0]: output, **self._at(place)}
        return self.req.store(tuple(names.get(v, v) for v, _ in self.req.c.axes), value)

    def _at(self, place: Mapping[Var, Expr]) -> dict[Var, Expr]:
        """Return the values of the data's axes at an output position."""
        return {**place, **{v: substitute(e, place) for v, e in self.at.names.items()}}
