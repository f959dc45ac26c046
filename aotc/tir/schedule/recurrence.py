# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer as loops: its sizes and a cell in, a program for a target out.

    for block of steps:
        for step:
            for tile of columns:                       # gates = h R, beside it a part of x W of the next block
                for k: acc0 += r0 * h[k] ... acc7 += r7 * h[k]; next0 += w * x0[k] ... next7 += w * x7[k]
            for unit: h, c = cell(x W, h R, c)

The weights of the recurrence are read once per step: where they do not fit the first-level cache, half of the
arithmetic that could be done waits for them.  The products of inputs and weights, which depend on no step before, use
each of their weights for as many steps as a block has, and fill the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final, TypeAlias

from aotc.ir.dtype import DType
from aotc.tir.expr import Broadcast, Buffer, Const, Expr, Load, Operand, Var, as_expr, minimum
from aotc.tir.stmt import Assign, Block, Declare, For, Stmt, Store, loops
from aotc.tir.target import Target
from aotc.tir.te import ExternProgram

ROWS: Final = 6
"""Rows of a register tile, at most."""

Scalars: TypeAlias = "Sequence[Expr]"
Cell: TypeAlias = Callable[[Scalars, Scalars, Scalars, Scalars], Sequence[Expr]]
"""The new states of a unit, the output first, from its parts of x W + b, of h R, its states and its extra inputs."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A layer: x (steps, batch, inputs) to y (steps, batch, hidden), `gates` values for each unit and step.

    The program's arguments are x, the weights W (inputs, gates * hidden) and R (hidden, gates * hidden), the bias of W,
    `states` first states (batch, hidden), and `extras` vectors (hidden); its results are y and the last states.  Where
    `blocks` is not 0, W or R is in blocks of so many columns: (gates * hidden / block, rows, block).
    """

    dtype: DType
    steps: int
    batch: int
    inputs: int
    hidden: int
    gates: int
    states: int
    extras: int
    reverse: bool
    blocks: tuple[int, int]
    cell: Cell

    @property
    def columns(self) -> int:
        return self.gates * self.hidden

    @property
    def macs(self) -> int:
        return self.steps * self.batch * self.columns * (self.inputs + self.hidden)


def recurrence(layer: Recurrence, target: Target) -> ExternProgram:
    """The program of a layer for a target."""
    plan = _Plan.of(layer, target)
    elements = layer.batch * layer.columns
    scratch = ((layer.dtype, elements), (layer.dtype, 2 * plan.block * elements))
    return ExternProgram(lambda i, o, s: _Builder(plan, i, o, s).statement(), scratch)


def recurrent_block(columns: int, dtype: DType, target: Target) -> int:
    """Columns that weights had best be kept in blocks of; 0 for whole rows."""
    block = _vectors(target) * target.lanes(dtype)
    return 0 if target.is_scalar or columns % block or columns == block else block


def _vectors(target: Target) -> int:
    """Accumulators of the recurrence in a tile: with as many for the inputs they fill half of the registers."""
    return target.registers // 4


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a layer is cut.

    lanes     elements of a vector
    vectors   vectors side by side in a tile of one row
    block     steps whose inputs are multiplied together
    beside    the next block's inputs are multiplied beside the recurrence
    """

    layer: Recurrence
    lanes: int
    vectors: int
    block: int
    beside: bool

    @staticmethod
    def of(layer: Recurrence, target: Target) -> _Plan:
        lanes = target.lanes(layer.dtype)
        while lanes > layer.columns or any(block % lanes for block in layer.blocks):
            lanes //= 2
        vectors = min(_vectors(target), layer.columns // lanes)
        beside = layer.batch == 1 and layer.steps > vectors
        block = vectors if beside else min(layer.steps, -(-2 * ROWS // layer.batch))
        return _Plan(layer, lanes, vectors, block, beside)


@dataclass(frozen=True, slots=True)
class _Weights:
    """A matrix (depth, columns), in blocks of columns."""

    buffer: Buffer
    depth: int
    columns: int
    block: int

    def at(self, k: Operand, column: Expr) -> Expr:
        if self.block in (0, self.columns):
            return k * as_expr(self.columns) + column
        return column // self.block * (self.depth * self.block) + k * as_expr(self.block) + column % self.block


@dataclass(frozen=True, slots=True)
class _Product:
    """Part of a product of matrices: rows that begin at `starts` of `a`, and `vectors` vectors from `column` on."""

    name: str
    a: Buffer
    starts: Sequence[Expr]
    weights: _Weights
    column: Expr
    vectors: int
    lanes: int

    def sums(self) -> list[list[Var]]:
        """A register for each row and vector."""
        names = [[f"{self.name}{r}_{v}" for v in range(self.vectors)] for r in range(len(self.starts))]
        return [[Var(name, self.weights.buffer.dtype, self.lanes) for name in row] for row in names]

    def step(self, sums: Sequence[Sequence[Var]], k: Expr) -> list[Stmt]:
        """What element k of the rows adds."""
        stmts: list[Stmt] = []
        lanes = self.lanes
        places = [self.weights.at(k, self.column + v * lanes) for v in range(self.vectors)]
        xs: list[Expr] = [Load(self.weights.buffer, place, lanes) for place in places]
        if len(self.starts) > 1:
            registers = [Var("w", x.dtype, lanes) for x in xs]
            stmts.extend(Declare(register, x) for register, x in zip(registers, xs, strict=True))
            xs = list(registers)
        for start, row in zip(self.starts, sums, strict=True):
            y = Var("y", self.a.dtype, lanes)
            value = Load(self.a, start + k)
            stmts.append(Declare(y, Broadcast(value, lanes) if lanes > 1 else value))
            stmts.extend(Assign(acc, acc + x * y) for acc, x in zip(row, xs, strict=True))
        return stmts


def _accumulate(products: Sequence[_Product]) -> tuple[list[Stmt], list[list[list[Var]]]]:
    """The sums of several products, in the loop over what their depths have in common side by side."""
    sums = [p.sums() for p in products]
    stmts: list[Stmt] = []
    for p, rows in zip(products, sums, strict=True):
        zero = Const(0.0, p.weights.buffer.dtype, p.lanes)
        stmts.extend(Declare(acc, zero) for acc in chain(*rows))
    done = 0
    for depth in sorted({p.weights.depth for p in products}):
        k = Var("k")
        parts = [p.step(rows, k) for p, rows in zip(products, sums, strict=True) if p.weights.depth >= depth]
        mixed = (stmt for group in zip_longest(*parts) for stmt in group if stmt is not None)
        stmts.append(For(k, depth, Block(mixed), begin=done))
        done = depth
    return stmts, sums


class _Builder:
    """The statements of one layer over its buffers."""

    def __init__(
        self, plan: _Plan, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Sequence[Buffer]
    ) -> None:
        self.plan = plan
        layer = self.layer = plan.layer
        self.x, w, r, self.bias, *rest = inputs
        self.w = _Weights(w, layer.inputs, layer.columns, layer.blocks[0])
        self.r = _Weights(r, layer.hidden, layer.columns, layer.blocks[1])
        self.first, self.extras = rest[: layer.states], rest[layer.states :]
        self.y, *self.states = outputs
        self.gates, self.products = scratch
        self.blocks = -(-layer.steps // plan.block)

    def statement(self) -> Stmt:
        layer, plan = self.layer, self.plan
        last = self.blocks - 1
        stmts = [self._copy(source, state) for source, state in zip(self.first, self.states, strict=True)]
        if plan.beside:
            stmts.append(self._project(as_expr(0)))
        block, s = Var("block"), Var("s")
        before = Block(()) if plan.beside else self._project(block)
        stmts.append(For(block, last, Block((before, For(s, plan.block, self._step(block, s, plan.beside))))))
        if not plan.beside:
            stmts.append(self._project(as_expr(last)))
        s = Var("s")
        stmts.append(For(s, layer.steps - last * plan.block, self._step(as_expr(last), s, False)))
        return Block(stmts)

    def _copy(self, source: Buffer, target: Buffer) -> Stmt:
        i = Var("i")
        return loops([(i, target.size)], Store(target, i, Load(source, i)), kind="vector")

    # --- where things are

    def _place(self, step: Expr) -> Expr:
        """The position in the sequence of a step of the scan; a step beyond the end is the last one."""
        step = minimum(step, self.layer.steps - 1)
        return self.layer.steps - 1 - step if self.layer.reverse else step

    def _slot(self, block: Expr, row: Operand) -> Expr:
        """The place of a row of x W in the ring of two blocks; rows count steps, and sequences of a batch."""
        rows = self.plan.block * self.layer.batch
        return (block % 2 * rows + row) * self.layer.columns

    def _x(self, block: Expr, row: Operand) -> Expr:
        """The place of the inputs of a row."""
        batch, row = self.layer.batch, as_expr(row)
        return (self._place(block * self.plan.block + row // batch) * batch + row % batch) * self.layer.inputs

    # --- products

    def _project(self, block: Expr) -> Stmt:
        """x W + b for all steps of a block."""

        def store(row: Expr, column: Expr, value: Expr) -> Stmt:
            return Store(self.products, self._slot(block, row) + column, value + Load(self.bias, column, value.lanes))

        return self._matrix(self.x, lambda row: self._x(block, row), self.plan.block * self.layer.batch, self.w, store)

    def _recur(self) -> Stmt:
        """h R."""

        def store(row: Expr, column: Expr, value: Expr) -> Stmt:
            return Store(self.gates, row * self.layer.columns + column, value)

        return self._matrix(self.states[0], lambda row: row * self.layer.hidden, self.layer.batch, self.r, store)

    def _matrix(
        self,
        a: Buffer,
        start: Callable[[Expr], Expr],
        rows: int,
        weights: _Weights,
        store: Callable[[Expr, Expr, Expr], Stmt],
    ) -> Stmt:
        """A product in tiles; the last tile of an axis overlaps the one before it."""
        lanes = self.plan.lanes
        height = -(-rows // -(-rows // ROWS))
        vectors = self.plan.vectors if rows == 1 else max(1, self.plan.vectors // 2)
        width, columns = vectors * lanes, weights.columns
        i, j = Var("i"), Var("j")
        row, column = _within(i * height, height, rows), _within(j * width, width, columns)
        product = _Product("acc", a, [start(row + k) for k in range(height)], weights, column, vectors, lanes)
        stmts, (sums,) = _accumulate([product])
        stmts.extend(
            store(row + k, column + v * lanes, acc) for k, accs in enumerate(sums) for v, acc in enumerate(accs)
        )
        return For(j, -(-columns // width), For(i, -(-rows // height), Block(stmts)))

    def _both(self, block: Expr, s: Expr) -> Stmt:
        """h R, and beside it x W + b of the next block: of each tile's columns the s-th vector, for all its steps."""
        plan, columns = self.plan, self.layer.columns
        lanes, vectors = plan.lanes, plan.vectors
        width, j = vectors * lanes, Var("j")
        column, part = _within(j * width, width, columns), _within(j * width + s * lanes, lanes, columns, width)
        steps = range(plan.block)
        recur = _Product("acc", self.states[0], [as_expr(0)], self.r, column, vectors, lanes)
        following = [self._x(block + 1, step) for step in steps]
        project = _Product("next", self.x, following, self.w, part, 1, lanes)
        stmts, (mine, others) = _accumulate([recur, project])
        stmts.extend(Store(self.gates, column + v * lanes, acc) for v, acc in enumerate(mine[0]))
        bias = Load(self.bias, part, lanes)
        stmts.extend(
            Store(self.products, self._slot(block + 1, step) + part, acc + bias)
            for step, (acc,) in zip(steps, others, strict=True)
        )
        return For(j, -(-columns // width), Block(stmts))

    # --- a step

    def _step(self, block: Expr, s: Expr, beside: bool) -> Stmt:
        return Block((self._both(block, s) if beside else self._recur(), self._cell(block, s)))

    def _cell(self, block: Expr, s: Expr) -> Stmt:
        """The new states and the output of all units."""
        layer = self.layer
        b, i = Var("b"), Var("i")
        here = b * layer.hidden + i
        row = self._slot(block, s * layer.batch + b)
        parts = [gate * layer.hidden + i for gate in range(layer.gates)]
        xs = [Load(self.products, row + part) for part in parts]
        hs = [Load(self.gates, b * layer.columns + part) for part in parts]
        old = [Load(state, here) for state in self.states]
        new = [_named("state", value) for value in layer.cell(xs, hs, old, [Load(e, i) for e in self.extras])]
        place = self._place(block * self.plan.block + s) * (layer.batch * layer.hidden)
        stores = [Store(state, here, var) for state, (_, var) in zip(self.states, new, strict=True)]
        body = Block((*(stmt for stmt, _ in new), Store(self.y, place + here, new[0][1]), *stores))
        return loops([(b, layer.batch), (i, layer.hidden)], body, kind="vector")


def _within(begin: Expr, size: int, extent: int, unit: int = 0) -> Expr:
    """Where a tile begins, shifted back if it would end beyond the axis, which multiples of its unit do not."""
    return begin if extent % (unit or size) == 0 else minimum(begin, extent - size)


def _named(name: str, value: Expr) -> tuple[Stmt, Var]:
    var = Var(name, value.dtype)
    return Declare(var, value), var
