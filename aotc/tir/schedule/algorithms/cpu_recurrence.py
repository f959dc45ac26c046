# SPDX-License-Identifier: Apache-2.0
"""CPU loop nest of a recurrent layer (LSTM, GRU, RNN): from its sizes and a cell function, a
program for a target.

    for block of steps:
        for step:
            before = h
            for tile of units:                         # h R for all gates, beside it a part of x W of the next block
                for k: acc0 += r0 * before[k] ... acc7 += r7 * before[k]; next0 += w * x0[k] ... next7 += w * x7[k]
                for unit: h, c = cell(x W, h R, c)

The recurrent weights are read once per time step; if they exceed the first-level cache, half of the
arithmetic throughput is lost waiting for them. The products of inputs and weights do not depend on
previous steps: they use each weight for as many steps as a block has, and are interleaved to fill
that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import TypeAlias

from aotc.ir import DType, frozen
from aotc.tir import (
    Assign,
    Block,
    Declare,
    ExternProgram,
    For,
    Scratch,
    Stmt,
    Store,
    Target,
    bind_to_new_register,
    copy_buffer_loop,
    forall,
)
from aotc.tir.expr import Broadcast, Buffer, Const, Expr, Load, Operand, Var, as_expr, minimum

Scalars: TypeAlias = "Sequence[Expr]"
#: Function that computes the new states of a unit, the output first, from its parts of x W + b, its
#: parts of h R, its states and its extra inputs.
Cell: TypeAlias = Callable[[Scalars, Scalars, Scalars, Scalars], Sequence[Expr]]
RowAddress: TypeAlias = Callable[[Expr], Expr]
#: Function (row, column, value) that returns the statement to store a vector.
StoreVector: TypeAlias = Callable[[Expr, Expr, Expr], Stmt]


@frozen
class RecurrentLayer:
    """Sizes, layouts and cell of a recurrent layer from x (steps, batch, inputs) to y (steps,
    batch, hidden).

    Each unit has `gates` values per step. The program's arguments are x, the weights W (inputs,
    gates * hidden) and R (hidden, gates * hidden), the bias of W, `states` initial states (batch,
    hidden), and `extras` vectors (hidden); its results are y and the last states. If an element of
    `blocks` is not 0, W or R is in blocks of that many units: (hidden / block, rows, gates, block).
    With `by_columns`, both are in blocks of columns of all gates, the last one padded: (ceil(gates
    * hidden / block), rows, 1, block).
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
    by_columns: bool = False

    @property
    def gate_parts_per_product_row(self) -> int:
        """Parts of a row of products for which a tile has vectors: one per gate, or one for all
        columns.
        """
        return 1 if self.by_columns else self.gates

    @property
    def elements_per_gate_part(self) -> int:
        """Elements of a part."""
        block = self.blocks[0]
        return -(-self.gates * self.hidden // block) * block if self.by_columns else self.hidden

    @property
    def padded_columns_per_product_row(self) -> int:
        """Elements of a row of x W or h R; elements beyond gates * hidden are padding."""
        return self.gate_parts_per_product_row * self.elements_per_gate_part

    @property
    def macs(self) -> int:
        """Number of multiply-adds of the recurrent layer."""
        return self.steps * self.batch * self.gates * self.hidden * (self.inputs + self.hidden)


def cpu_recurrence(layer: RecurrentLayer, target: Target) -> ExternProgram:
    """Return the program that computes a recurrent layer on a CPU target."""
    plan = _RecurrenceTiling.choose_recurrence_tiling(layer, target)
    rows = layer.batch * layer.padded_columns_per_product_row
    gates = Scratch(layer.dtype, rows, private=True)
    state = Scratch(layer.dtype, layer.batch * layer.hidden)
    products = Scratch(layer.dtype, 2 * plan.block * rows)
    return ExternProgram(
        lambda i, o, s: _CpuRecurrenceBuilder(plan, i, o, s).build_loop_nest(), (gates, products, state)
    )


def hidden_units_per_weight_block(hidden: int, gates: int, dtype: DType, target: Target) -> int:
    """Return the best number of hidden units per block in the layout of recurrent weights; 0 for
    whole rows.
    """
    block = _hidden_unit_vectors_per_row_tile(gates, target) * target.lanes(dtype)
    return 0 if target.is_scalar or hidden % block or hidden == block else block


def columns_per_weight_block(hidden: int, gates: int, dtype: DType, target: Target) -> int:
    """Return the best number of columns (of all gates) in a block of recurrent-layer weights; 0 for
    whole rows.

    Columns are used if the hidden units do not fill whole blocks.
    """
    lanes, most = target.lanes(dtype), _hidden_unit_vectors_per_row_tile(1, target)
    vectors = -(-gates * hidden // lanes)
    if target.is_scalar or vectors < 2 or hidden % (_hidden_unit_vectors_per_row_tile(gates, target) * lanes) == 0:
        return 0
    overhead = target.strips.recurrence_block_overhead
    return min(range(most, 0, -1), key=lambda size: -(-vectors // size) * (size + overhead)) * lanes


def _hidden_unit_vectors_per_row_tile(gates: int, target: Target) -> int:
    """Return the number of vectors of hidden units in a tile of one row, such that recurrent sums
    use a quarter of the registers.
    """
    return max(1, target.registers // 4 // gates)


@frozen
class _RecurrenceTiling:
    """Tile sizes of a recurrent layer on a CPU.

    lanes                   elements of a vector
    vectors                 adjacent vectors of units in a tile of one row
    wide                    adjacent vectors of units in a tile of several rows
    rows                    largest number of rows of a tile
    block                   steps whose inputs are multiplied together
    multiplies_next_block   True if the next block's inputs are multiplied in the loop of the recurrence
    """

    layer: RecurrentLayer
    lanes: int
    vectors: int
    wide: int
    rows: int
    block: int
    multiplies_next_block: bool

    @staticmethod
    def choose_recurrence_tiling(layer: RecurrentLayer, target: Target) -> _RecurrenceTiling:
        """Return the tile sizes of a recurrent layer for a target."""
        lanes = target.lanes(layer.dtype)
        while lanes > layer.elements_per_gate_part or any(block % lanes for block in layer.blocks):
            lanes //= 2
        most = layer.elements_per_gate_part // lanes
        vectors = min(_hidden_unit_vectors_per_row_tile(layer.gate_parts_per_product_row, target), most)
        wide = min(max(1, target.registers // 8 // layer.gate_parts_per_product_row), most)
        if layer.by_columns:
            vectors = layer.blocks[0] // lanes
            wide = vectors if vectors < target.registers // 4 or vectors % 2 else vectors // 2
        strips = target.strips
        most_rows = target.registers * 3 // 4 // (wide * layer.gate_parts_per_product_row)
        rows = max(1, min(strips.max_recurrence_rows, most_rows))
        # with 16 vector registers the two products are slower interleaved than one after the other
        roomy = target.registers >= 32 or target.is_scalar
        row_bytes = layer.padded_columns_per_product_row * layer.dtype.itemsize
        near = layer.hidden * row_bytes <= strips.interleaved_l2_caches * target.l2 or target.is_scalar
        is_interleaved = (
            roomy and near and layer.batch == 1 and layer.steps > vectors * layer.gate_parts_per_product_row
        )
        tiles = 2 if near or layer.inputs * row_bytes <= target.l2 else strips.input_tiles_beyond_l2
        block = (
            vectors * layer.gate_parts_per_product_row
            if is_interleaved
            else min(layer.steps, -(-tiles * rows // layer.batch))
        )
        return _RecurrenceTiling(layer, lanes, vectors, wide, rows, block, is_interleaved)


@frozen
class BlockedWeights:
    """A matrix (depth, gates * hidden), in blocks of `block` units; 0 for whole rows."""

    buffer: Buffer
    depth: int
    gates: int
    hidden: int
    block: int

    def weight_address(self, k: Expr, gate: Operand, unit: Expr) -> Expr:
        """Return the address of element (k, gate, unit) in a matrix of recurrent-layer weights."""
        block = self.block or self.hidden
        place = k * (self.gates * block) + gate * as_expr(block)
        if block == self.hidden:
            return place + unit
        return unit // block * (self.depth * self.gates * block) + place + unit % block


class RecurrentLayerBuilder:
    """Arguments of the program of a recurrent layer.

    x, bias, y    inputs, bias, outputs
    w, r          the weights of inputs and of states
    initial_states, final_states   states before the first step, and after the last one
    extras        further inputs of the cell
    """

    def __init__(self, layer: RecurrentLayer, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        self.layer = layer
        self.x, w, r, self.bias, *rest = inputs
        self.w = BlockedWeights(
            w, layer.inputs, layer.gate_parts_per_product_row, layer.elements_per_gate_part, layer.blocks[0]
        )
        self.r = BlockedWeights(
            r, layer.hidden, layer.gate_parts_per_product_row, layer.elements_per_gate_part, layer.blocks[1]
        )
        self.initial_states, self.extras = rest[: layer.states], rest[layer.states :]
        self.y, *self.final_states = outputs


@frozen
class _PartialProduct:
    """Part of a matrix product: rows of `a`, and some vectors of columns.

    name        prefix of the accumulators' names
    a, starts   the left operand, and the addresses of its rows
    weights     the right operand
    columns     gate and first unit of each vector
    lanes       elements of a vector
    """

    name: str
    a: Buffer
    starts: Sequence[Expr]
    weights: BlockedWeights
    columns: Sequence[tuple[Operand, Expr]]
    lanes: int

    def new_accumulators(self) -> list[list[Var]]:
        """Return a new accumulator register for each row and vector of columns."""
        dtype, size = self.weights.buffer.dtype, range(len(self.columns))
        return [[Var(f"{self.name}{r}_{v}", dtype, self.lanes) for v in size] for r in range(len(self.starts))]

    def multiply_add_step(self, sums: Sequence[Sequence[Var]], k: Expr) -> list[Stmt]:
        """Return the multiply-adds of element k of each row with row k of the weights."""
        lanes, stmts = self.lanes, list[Stmt]()
        xs: list[Expr] = [
            Load(self.weights.buffer, self.weights.weight_address(k, *column), lanes) for column in self.columns
        ]
        if len(self.starts) > 1:
            xs = [bind_to_new_register("w", x, stmts) for x in xs]
        for start, row in zip(self.starts, sums, strict=True):
            value = Load(self.a, start + k)
            y = bind_to_new_register("y", Broadcast(value, lanes) if lanes > 1 else value, stmts)
            stmts.extend(Assign(acc, acc + x * y) for acc, x in zip(row, xs, strict=True))
        return stmts


def _interleave_matrix_products_in_one_loop(
    products: Sequence[_PartialProduct],
) -> tuple[list[Stmt], list[list[list[Var]]]]:
    """Return the statements and accumulators of several products, interleaved in one loop over
    their common depth.
    """
    sums = [p.new_accumulators() for p in products]
    stmts: list[Stmt] = []
    for p, rows in zip(products, sums, strict=True):
        zero = Const(0.0, p.weights.buffer.dtype, p.lanes)
        stmts.extend(Declare(acc, zero) for acc in chain(*rows))
    done = 0
    for depth in sorted({p.weights.depth for p in products}):
        k = Var("k")
        parts = [
            p.multiply_add_step(rows, k) for p, rows in zip(products, sums, strict=True) if p.weights.depth >= depth
        ]
        mixed = (stmt for group in zip_longest(*parts) for stmt in group if stmt is not None)
        stmts.append(For(k, depth, Block(mixed), begin=done, kind="reduction"))
        done = depth
    return stmts, sums


class _CpuRecurrenceBuilder(RecurrentLayerBuilder):
    """Builds the statements of a recurrent layer on a CPU over its buffers.

    gates      h R (states times recurrent weights) of a tile's units
    products   x W + b of two blocks of steps: the current and the next one
    before     h before the current step
    """

    def __init__(
        self, plan: _RecurrenceTiling, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Sequence[Buffer]
    ) -> None:
        super().__init__(plan.layer, inputs, outputs)
        self.plan = plan
        self.gates, self.products, self.before = scratch
        self.blocks = -(-plan.layer.steps // plan.block)

    def build_loop_nest(self) -> Stmt:
        """Return the statements of the whole recurrent layer: loops over blocks of time steps and
        over steps.
        """
        layer, plan = self.layer, self.plan
        last = self.blocks - 1
        stmts = [
            copy_buffer_loop(source, state)
            for source, state in zip(self.initial_states, self.final_states, strict=True)
        ]
        if plan.multiplies_next_block:
            stmts.append(self._multiply_inputs_of_time_block(as_expr(0)))
        block, s = Var("block"), Var("s")
        steps = For(s, plan.block, self._time_step_stmts(block, s, plan.multiplies_next_block))
        stmts.append(
            For(
                block,
                last,
                steps if plan.multiplies_next_block else Block((self._multiply_inputs_of_time_block(block), steps)),
            )
        )
        if not plan.multiplies_next_block:
            stmts.append(self._multiply_inputs_of_time_block(as_expr(last)))
        s = Var("s")
        stmts.append(For(s, layer.steps - last * plan.block, self._time_step_stmts(as_expr(last), s, False)))
        return Block(stmts)

    # --- addresses

    def _sequence_position_of_step(self, step: Expr) -> Expr:
        """Return the position in the sequence of a time step of the recurrence; steps beyond the
        end count as the last one.
        """
        step = minimum(step, self.layer.steps - 1)
        return self.layer.steps - 1 - step if self.layer.reverse else step

    def _address_of_input_product_row_in_ring(self, time_block: Expr, row: Operand) -> Expr:
        """Return the address of a row of x W (inputs times weights) in the ring buffer of two
        blocks of time steps.

        Rows count steps, and sequences of a batch.
        """
        rows = self.plan.block * self.layer.batch
        return (time_block % 2 * rows + row) * self.layer.padded_columns_per_product_row

    def _input_row_address(self, time_block: Expr, row: Operand) -> Expr:
        """Return the address of the inputs of a row; rows count time steps of a block, and
        sequences of a batch.
        """
        batch, row = self.layer.batch, as_expr(row)
        return (
            self._sequence_position_of_step(time_block * self.plan.block + row // batch) * batch + row % batch
        ) * self.layer.inputs

    def _product_column_of_hidden_unit(self, gate: Operand, unit: Expr) -> Expr:
        """Return the column of x W or h R that belongs to a hidden unit of a part (gate)."""
        return gate * as_expr(self.layer.elements_per_gate_part) + unit

    def _gate_and_first_unit_of_tile_vectors(self, unit: Expr, vectors: int) -> list[tuple[int, Expr]]:
        """Return the part (gate) and the first hidden unit of each of a tile's vectors."""
        return [
            (part, unit + v * self.plan.lanes)
            for part in range(self.layer.gate_parts_per_product_row)
            for v in range(vectors)
        ]

    @property
    def _are_product_rows_longer_than_bias(self) -> bool:
        """True if rows of x W are padded beyond the length of the bias; then the cell adds the
        bias.
        """
        return self.layer.padded_columns_per_product_row > self.layer.gates * self.layer.hidden

    def _add_bias_unless_cell_does(self, value: Expr, column: Expr) -> Expr:
        """Return a vector of x W with its bias added, unless the cell adds it."""
        return value if self._are_product_rows_longer_than_bias else value + Load(self.bias, column, value.lanes)

    # --- products

    def _multiply_inputs_of_time_block(self, time_block: Expr) -> Stmt:
        """Return the statements that compute x W + b for all time steps of a block."""
        rows, width, j = self.plan.block * self.layer.batch, self.plan.wide * self.plan.lanes, Var("j")

        def store_input_product_vector(row: Expr, column: Expr, value: Expr) -> Stmt:
            return Store(
                self.products,
                self._address_of_input_product_row_in_ring(time_block, row) + column,
                self._add_bias_unless_cell_does(value, column),
            )

        unit = _shift_tile_begin_back_into_axis(j * width, width, self.layer.elements_per_gate_part)
        body = self._multiply_rows_by_weights(
            self.x, lambda row: self._input_row_address(time_block, row), rows, self.w, unit, store_input_product_vector
        )
        return For(
            j,
            -(-self.layer.elements_per_gate_part // width),
            body,
            kind=_loop_kind_for_overlapping_last_tile(width, self.layer.elements_per_gate_part),
        )

    def _multiply_rows_by_weights(
        self, a: Buffer, row_address: RowAddress, rows: int, weights: BlockedWeights, unit: Expr, store: StoreVector
    ) -> Stmt:
        """Return all rows of a matrix product for the hidden units of a tile; the last tile of rows
        overlaps the previous one.
        """
        plan, i = self.plan, Var("i")
        height = -(-rows // -(-rows // plan.rows))
        row, columns = (
            _shift_tile_begin_back_into_axis(i * height, height, rows),
            self._gate_and_first_unit_of_tile_vectors(unit, plan.wide),
        )
        product = _PartialProduct("acc", a, [row_address(row + k) for k in range(height)], weights, columns, plan.lanes)
        stmts, (sums,) = _interleave_matrix_products_in_one_loop([product])
        for k, accs in enumerate(sums):
            stmts.extend(
                store(row + k, self._product_column_of_hidden_unit(*c), acc)
                for c, acc in zip(columns, accs, strict=True)
            )
        return For(i, -(-rows // height), Block(stmts), kind=_loop_kind_for_overlapping_last_tile(height, rows))

    # --- a step

    def _time_step_stmts(self, time_block: Expr, step: Expr, interleaves_projection: bool) -> Stmt:
        """Return the statements of one time step: for each tile, products and cell, so that the
        cell overlaps with weight loads.
        """
        plan, layer, j, b = self.plan, self.layer, Var("j"), Var("b")
        width = (plan.vectors if layer.batch == 1 else plan.wide) * plan.lanes
        unit = _shift_tile_begin_back_into_axis(j * width, width, layer.elements_per_gate_part)
        if layer.batch == 1:
            following = (
                self._input_product_of_next_time_block(time_block + 1, step, j * width)
                if interleaves_projection
                else None
            )
            products = self._multiply_state_of_single_sequence(time_block, unit, following)
        else:
            products = self._multiply_rows_by_weights(
                self.before, lambda row: row * layer.hidden, layer.batch, self.r, unit, self._store_recurrent_product
            )
        kind, count = (
            _loop_kind_for_overlapping_last_tile(width, layer.elements_per_gate_part),
            -(-layer.elements_per_gate_part // width),
        )
        before = copy_buffer_loop(self.final_states[0], self.before)
        if layer.by_columns:  # the columns of a tile belong to different units
            cell = forall(
                b, layer.batch, self._update_states_of_units(time_block, step, b, as_expr(0), as_expr(layer.hidden))
            )
            return Block((before, For(j, count, products, kind=kind), cell))
        units = minimum(width, layer.hidden - j * width) if layer.hidden % width else as_expr(width)
        cell = forall(b, layer.batch, self._update_states_of_units(time_block, step, b, j * width, units))
        # no other tile uses a tile's gates
        return Block(
            (before, For(j, count, Block((products, cell)), kind=kind if interleaves_projection else "independent"))
        )

    def _store_recurrent_product(self, row: Expr, column: Expr, value: Expr) -> Stmt:
        """Return the statement that stores a vector of h R."""
        return Store(self.gates, row * self.layer.padded_columns_per_product_row + column, value)

    def _multiply_state_of_single_sequence(
        self, time_block: Expr, unit: Expr, interleaved_product: _PartialProduct | None
    ) -> Stmt:
        """Return h R of a single sequence for a tile's units, interleaved with x W + b of the next
        block of time steps.
        """
        plan, columns = self.plan, self._gate_and_first_unit_of_tile_vectors(unit, self.plan.vectors)
        recur = _PartialProduct("acc", self.before, [as_expr(0)], self.r, columns, plan.lanes)
        stmts, sums = _interleave_matrix_products_in_one_loop(
            [recur, interleaved_product] if interleaved_product else [recur]
        )
        stmts.extend(
            self._store_recurrent_product(as_expr(0), self._product_column_of_hidden_unit(*c), acc)
            for c, acc in zip(columns, sums[0][0], strict=True)
        )
        if interleaved_product:
            column = self._product_column_of_hidden_unit(*interleaved_product.columns[0])
            for step, (acc,) in enumerate(sums[1]):
                stmts.append(
                    Store(
                        self.products,
                        self._address_of_input_product_row_in_ring(time_block + 1, step) + column,
                        self._add_bias_unless_cell_does(acc, column),
                    )
                )
        return Block(stmts)

    def _input_product_of_next_time_block(
        self, next_time_block: Expr, weight_vector: Expr, unit: Expr
    ) -> _PartialProduct:
        """Return the product of inputs and the s-th weight vector of a tile, for all time steps of
        the next block.
        """
        plan = self.plan
        gate, vector = weight_vector // plan.vectors, weight_vector % plan.vectors
        unit = _shift_tile_begin_back_into_axis(
            unit + vector * plan.lanes, plan.lanes, self.layer.elements_per_gate_part, plan.vectors * plan.lanes
        )
        starts = [self._input_row_address(next_time_block, step) for step in range(plan.block)]
        return _PartialProduct("next", self.x, starts, self.w, [(gate, unit)], plan.lanes)

    def _update_states_of_units(
        self, time_block: Expr, step: Expr, sequence: Expr, first_unit: Expr, unit_count: Expr
    ) -> Stmt:
        """Return the loop that computes new recurrent states and outputs for some hidden units of
        one sequence.
        """
        layer, i = self.layer, Var("i")
        unit = first_unit + i
        here = sequence * layer.hidden + unit
        row = self._address_of_input_product_row_in_ring(time_block, step * layer.batch + sequence)
        parts = [gate * layer.hidden + unit for gate in range(layer.gates)]
        xs: list[Expr] = [Load(self.products, row + part) for part in parts]
        if self._are_product_rows_longer_than_bias:
            xs = [x + Load(self.bias, part) for x, part in zip(xs, parts, strict=True)]
        hs = [Load(self.gates, sequence * layer.padded_columns_per_product_row + part) for part in parts]
        old = [Load(state, here) for state in (self.before, *self.final_states[1:])]
        stmts = list[Stmt]()
        new_values = layer.cell(xs, hs, old, [Load(e, unit) for e in self.extras])
        new = [bind_to_new_register("state", value, stmts) for value in new_values]
        place = self._sequence_position_of_step(time_block * self.plan.block + step) * (layer.batch * layer.hidden)
        stores = [Store(state, here, var) for state, var in zip(self.final_states, new, strict=True)]
        body = Block((*stmts, Store(self.y, place + here, new[0]), *stores))
        return forall(i, unit_count, body)


def _shift_tile_begin_back_into_axis(begin: Expr, size: int, extent: int, whole_tile_size: int = 0) -> Expr:
    """Return the begin of a tile, shifted back if the tile would exceed the axis.

    whole_tile_size    if given, the size of the tile that this part of it belongs to
    """
    return begin if extent % (whole_tile_size or size) == 0 else minimum(begin, extent - size)


def _loop_kind_for_overlapping_last_tile(size: int, extent: int) -> str:
    """Return the kind of a loop over tiles: serial if the last tile overlaps the previous one, as
    it recomputes elements.
    """
    return "serial" if extent % size else "independent"
