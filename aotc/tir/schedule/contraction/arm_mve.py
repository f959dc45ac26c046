# SPDX-License-Identifier: Apache-2.0
"""int8 GEMM and depthwise schedule for Cortex-M with Helium (MVE): calls of
`aotc.tir.arm_mve_kernels`.

The data of a position is one row, gathered run by run (im2col) if it is not contiguous, and the
weights of an output are one row; in depthwise convolutions, a run holds the channels at one kernel
offset:

    for position:
      for taps: col[...] = bytes(data)                     # bytes of `fill` outside of the data
      tile[0:n] = byte_rows(col, weights of n outputs); y[0:n] = requantize(tile[0:n], ...)

The sums are requantized to bytes by one call if the requantization uses 32-bit words, else one by
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import Buffer, Expr, Load, Target, as_expr, call, const, linear, private_buffer, substitute, te
from aotc.tir.expr import Binary, Call, Const, Var
from aotc.tir.schedule.contraction import index_space
from aotc.tir.schedule.contraction.arm_dsp import Data, Spare
from aotc.tir.schedule.contraction.index_space import (
    Irregular,
    Pixels,
    Split,
    analyze,
    flat,
    fused,
    in_groups,
    row_axis,
)
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.contraction.tiling_candidate import Request
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Block, Declare, Stmt, Store, forall, loops

#: Largest number of sums that are computed at a time, in a stack buffer.
SUMS: Final = 64


def by_rows(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> ContractionNest:
    """Return the loop nest of an int8 contraction for Cortex-M Helium (MVE).

    Raise Irregular if operands are not in rows or the target has no MVE.
    """
    known = c.dtype == "int32" and a.dtype == b.dtype == "int8"
    if not known or target.dots is None or not target.dots.along:
        raise Irregular("no sums of rows of bytes")
    if 0 in (index_space.points(c.axes), index_space.points(c.reduce_axes)) or c.group or c.block:
        raise Irregular("no rows")
    req = Request(analyze(c), None, a, b, store, target, 1)
    return (_depthwise if req.outputs[0] in index_space.used(req.analysis.a) else _whole)(req).nest()


def _whole(req: Request) -> _Rows:
    """Return the MVE schedule of a contraction in which each output has weights for a whole row of
    data.
    """
    c, channel = req.c, req.outputs
    number = row_axis(c)
    axis = c.reduce_axes[number]
    taps = [one for one in c.reduce_axes if one is not axis]
    index_space.require_dense(flat(req.analysis.b), [channel, *taps, axis], 1)
    grouped = Request(*in_groups(replace(c, group=axis[1])), req.a, req.b, req.store, req.target, 1)
    steps, split = grouped.c.reduce_axes[number][0], Split.of(grouped.analysis, channel, 1)
    data = Data.of(grouped, split, steps, axis[1])
    at = fused(grouped.analysis, data.open, data.position)
    assert grouped.group is not None
    return _Rows(grouped, data, at, taps, axis[1], (steps, grouped.group, split.tile, split.lane))


def _depthwise(req: Request) -> _Rows:
    """Return the MVE schedule of a depthwise convolution, in which each output has a channel of the
    data.
    """
    channel, outputs = req.outputs
    position, weights = flat(req.analysis.a), flat(req.analysis.b)
    borders = [d for d in req.analysis.a if not d.inside]
    lies = position.coefficient(channel) == weights.coefficient(channel) == 1
    if (outputs > 1 and not lies) or channel in index_space.used(borders):
        raise Irregular("channels that are not in rows")
    taps = req.c.reduce_axes
    steps = (weights.coefficient(v) for v, n in reversed(taps) if n > 1)
    apart = next(steps, outputs) or outputs
    index_space.require_dense(weights, taps, apart)
    at = fused(req.analysis, borders, position)
    return _Rows(req, Data(req.a, position, borders), at, taps, 0, (channel,), apart)


@frozen(eq=False)
class _Rows:
    """The MVE schedule of one contraction.

    req, data   the contraction and its data
    at          the axes that positions are counted along
    taps        reduction axes for each point of which a run is gathered
    run         contiguous bytes of the data at one kernel offset; 0 if a run consists of channels
    inner       variables that count the elements of a run
    apart       bytes between the weights of consecutive taps, for depthwise convolutions
    spread      for a value that is equal for all outputs, the buffer filled with it
    """

    req: Request
    data: Data
    at: Pixels
    taps: Sequence[te.Axis]
    run: int
    inner: Sequence[Var]
    apart: int = 0
    spread: dict[Expr, Buffer] = field(default_factory=dict)

    @property
    def gathers(self) -> bool:
        """True if the data of an output position must be gathered (im2col), as it is not
        contiguous.
        """
        return index_space.points(self.taps) > 1 or bool(self.data.open)

    def nest(self) -> ContractionNest:
        """Return the loop nest of an int8 contraction on Cortex-M Helium with the buffers it needs."""
        outputs, block = self.req.outputs[1], Var("o")
        width = min(SUMS, outputs)
        run = self.run or width
        tile = private_buffer("tile", DType("int32"), width, "stack")
        col = private_buffer("col", DType("int8"), index_space.points(self.taps) * run)
        spare = self.data.spare(run, 1)
        first: list[Stmt] = [self._gather(col, spare, as_expr(0), run)] if self.gathers and self.run else []

        def part(begin: Expr, count: int) -> Stmt:
            own = [self._gather(col, spare, begin, count)] if self.gathers and not self.run else []
            sums = Store(tile, as_expr(0), self._sums(col, begin, count))
            return Block((*own, sums, self._finished(tile, begin, count)))

        parts: list[Stmt] = [forall(block, outputs // width, part(block * width, width))]
        if rest := outputs % width:
            parts.append(part(as_expr(outputs - rest), rest))
        nest = loops(self.at.axes, Block((*first, *parts)), "independent")
        start = spare.start(self.req.c.fill)
        start += [_filled(buffer, value) for value, buffer in self.spread.items()]
        scratch = [col] * self.gathers + spare.buffers
        whole = Block((*self.data.before, *start, nest))
        return ContractionNest(whole, (tile, *self.spread.values()), (*self.data.workspace, *scratch))

    def _position(self, begin: Expr, taps: Mapping[Var, Expr]) -> Expr:
        """Return the address in the data of a run (contiguous bytes) of an output position at a
        kernel offset.
        """
        inner = dict.fromkeys(self.inner, as_expr(0))
        if not self.run:
            inner[self.inner[0]] = begin
        return simplify(substitute(self.at.position.expr(), {**inner, **taps}), {})

    def _gather(self, col: Buffer, spare: Spare, begin: Expr, run: int) -> Stmt:
        """Return the statements that gather the data of an output position, run by run, into a
        buffer.
        """
        place = te.flat_index([n for _, n in self.taps], [v for v, _ in self.taps]) * run

        def take(runs: list[Expr]) -> Stmt:
            return Store(col, simplify(place, {}), call("bytes", *runs))

        found = [(self._position(begin, {}), self.at.unfuse)]
        return self.data.gathered(found, spare, run, self.taps, take, self.req.c.fill)

    def _sums(self, col: Buffer, begin: Expr, count: int) -> Expr:
        """Return the micro-kernel call that computes the int32 sums of `count` output channels from
        `begin` on.
        """
        size, weights = index_space.points(self.taps), self.req.b
        zero = {v: as_expr(0) for v, _ in self.taps}
        run = self.run or count
        data = (
            Load(col, as_expr(0), size * run)
            if self.gathers
            else Load(self.data.buffer, self._position(begin, zero), run)
        )
        if self.run:
            return call("byte_rows", data, Load(weights, begin * (size * run), count * size * run))
        held = Load(weights, begin, (size - 1) * self.apart + count)
        return call("byte_taps", data, held, const(size, "int32"), const(self.apart, "int32"))

    def _finished(self, tile: Buffer, begin: Expr, count: int) -> Stmt:
        """Return the statement that finishes and stores int32 sums of some outputs: one
        requantization call, or a loop.
        """
        output, channel = Var("o"), self.req.outputs[0]
        names = {**self.at.unfuse, channel: begin + output}
        index = tuple(names.get(v, as_expr(0) if n == 1 else v) for v, n in self.req.c.axes)
        stmt = self.req.store(index, Load(tile, output))
        return self._requantized(stmt, output, count) or forall(output, count, stmt)

    def _requantized(self, stmt: Stmt, output: Var, count: int) -> Stmt | None:
        """Return one call that requantizes the int32 sums of some outputs; None if they are
        finished in another way.
        """
        match stmt:
            case Block(stmts=(Declare(var=var, value=total), Store() as last)):
                value = substitute(last.value, {var: total})
            case Store() as last:
                value = last.value
            case _:
                return None
        low, high, value = _limits(value)
        zero, value = _plus(value)
        if not isinstance(value, Call) or value.name not in ("scale_once", "scale_twice"):
            return None
        total, multiplier, shift = value.args
        bias, total = _plus(total)
        spread = dict(self.spread)
        operands = [self._vector(x, output, count, spread) for x in (total, bias, multiplier, shift)]
        to = linear(last.index, {})
        if None in operands or not isinstance(zero, Const) or to.coefficient(output) != 1 or high < low:
            return None
        self.spread.update(spread)
        name = f"requantize_{value.name.removeprefix('scale_')}"
        numbers = [const(n, "int32") for n in (int(zero.value), low, high)]
        made = call(name, *(x for x in operands if x is not None), *numbers)
        return Store(last.buffer, simplify(substitute(last.index, {output: as_expr(0)}), {}), made)

    def _vector(self, value: Expr, output: Var, count: int, spread: dict[Expr, Buffer]) -> Load | None:
        """Return a requantization operand of some outputs as a vector; a value equal for all is put
        in a buffer of `spread`.
        """
        if isinstance(value, Load) and linear(value.index, {}).coefficient(output) == 1:
            return Load(value.buffer, simplify(substitute(value.index, {output: as_expr(0)}), {}), count)
        if index_space.variables(value):
            return None
        if value not in spread:
            size = min(SUMS, self.req.outputs[1])
            spread[value] = private_buffer("spread", DType("int32"), size, "stack")
        return Load(spread[value], as_expr(0), count)


def _filled(buffer: Buffer, value: Expr) -> Stmt:
    """Return a loop that stores a value to all elements of a buffer."""
    i = Var("i")
    return forall(i, buffer.size, Store(buffer, i, value))


def _limits(value: Expr) -> tuple[int, int, Expr]:
    """Return the range to which a value is clamped, and the value itself; an empty range if it is
    not saturated to int8.
    """
    low, high = -128, 127
    while isinstance(value, Binary) and value.op in ("min", "max") and isinstance(value.b, Const):
        limit = int(value.b.value)
        # a value beyond one limit still has to satisfy the other
        if value.op == "min":
            high = max(min(high, limit), low)
        else:
            low = min(max(low, limit), high)
        value = value.a
    if isinstance(value, Call) and value.name == "saturate_int8":
        return low, high, value.args[0]
    return 1, 0, value


def _plus(value: Expr) -> tuple[Expr, Expr]:
    """Return (b, a) of an addition a + b; zero and the value for other expressions."""
    if isinstance(value, Binary) and value.op == "add":
        return value.b, value.a
    return const(0, "int32"), value
