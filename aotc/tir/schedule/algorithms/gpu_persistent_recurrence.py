# SPDX-License-Identifier: Apache-2.0
"""GPU program of a recurrent layer: one launch for the inputs' products, one persistent launch for
all time steps.

    products = x W + bias                                  # of all steps at once: they wait for no step before
    for b in 0..batch block: for t in 0..512 thread:       # a block has a sequence from its first step to its last
        kept = the first rows of R in the thread's columns, in registers
        for step:
            for k: gates[column] += h[k] * kept[k]         # h, other states and gates are shared memory
            sync
            for unit: h, c = update_unit_state(products, gates, c)  # by the threads of so many units
            sync

A launch per step would take longer than most steps, and would read all weights again (persistent
kernels: Diamos et al., "Persistent RNNs", ICML 2016). Weights that exceed the registers are loaded
in each step, several rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from aotc.ir import frozen
from aotc.tir import (
    Buffer,
    Expr,
    ExternProgram,
    Gpu,
    Load,
    Scratch,
    Target,
    Var,
    aligned_shared_memory_bytes,
    as_expr,
    const,
)
from aotc.tir.instruction_statements import block_barrier
from aotc.tir.schedule.algorithms.cpu_recurrence import RecurrentLayer, RecurrentLayerBuilder
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, Store, bind_to_new_register, loop_nest

#: Largest number of threads of a block; registers of a thread that do not hold weights.
_MAX_THREADS_PER_BLOCK: Final = 512
_REGISTERS_NOT_FOR_WEIGHTS: Final = 88
#: Rows of weights whose loads are in flight together.
_ROWS_LOADED_TOGETHER: Final = 16


@frozen
class _ThreadDivision:
    """Division of a recurrent layer's product h R (states times weights) among the threads of a GPU
    block.

    threads                   threads of a block; thread t has the columns t, t + threads and so on
    max_columns_per_thread    largest number of columns of a thread
    register_rows             number of rows of R that threads hold in registers; the other rows are loaded in
                              groups of `_ROWS_LOADED_TOGETHER`
    """

    layer: RecurrentLayer
    threads: int
    max_columns_per_thread: int
    register_rows: int

    @staticmethod
    def divide_product_among_threads(layer: RecurrentLayer, gpu: Gpu) -> _ThreadDivision:
        """Return the division of a recurrent layer's matrix products among the threads of a GPU
        block.
        """
        threads = min(_MAX_THREADS_PER_BLOCK, -(-layer.padded_columns_per_product_row // gpu.warp) * gpu.warp)
        columns_per_thread = -(-layer.padded_columns_per_product_row // threads)
        registers = min(gpu.registers, gpu.costs.processor_registers // threads) - _REGISTERS_NOT_FOR_WEIGHTS
        room = registers * 4 // (max(4, layer.dtype.itemsize) * columns_per_thread)
        left = max(0, layer.hidden - room)
        return _ThreadDivision(
            layer,
            threads,
            columns_per_thread,
            max(0, layer.hidden - -(-left // _ROWS_LOADED_TOGETHER) * _ROWS_LOADED_TOGETHER),
        )


def persistent_gpu_recurrence(layer: RecurrentLayer, target: Target) -> ExternProgram | None:
    """Return the GPU program of a recurrent layer; None if the target has no GPU, or a block too
    little shared memory.
    """
    dtype, gpu = layer.dtype, target.gpu
    shared = [layer.padded_columns_per_product_row] * 2 + [layer.hidden] * layer.states
    if gpu is None or aligned_shared_memory_bytes(Buffer("", dtype, size) for size in shared) > gpu.shared_bytes:
        return None
    plan = _ThreadDivision.divide_product_among_threads(layer, gpu)
    products = layer.steps * layer.batch * layer.padded_columns_per_product_row
    register_weights = max(1, plan.register_rows * plan.max_columns_per_thread)
    scratch = (
        Scratch(dtype, products, scope="workspace"),
        Scratch(dtype, register_weights, scope="stack"),
        Scratch(dtype, _ROWS_LOADED_TOGETHER, scope="stack"),
        *(Scratch(dtype, size, scope="shared") for size in shared),
    )
    return ExternProgram(
        lambda i, o, s: _PersistentRecurrenceBuilder(plan, i, o, s).build_input_and_recurrence_launches(), scratch
    )


class _PersistentRecurrenceBuilder(RecurrentLayerBuilder):
    """Builds the statements of a recurrent layer on a GPU over its buffers."""

    def __init__(
        self, plan: _ThreadDivision, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Sequence[Buffer]
    ) -> None:
        super().__init__(plan.layer, inputs, outputs)
        self.plan = plan
        self.products, self.scratch_buffers, self.fetched, *rest = scratch
        self.inputs, self.gates, *self.states = rest
        self.block, self.thread = Var("b"), Var("t")

    def build_input_and_recurrence_launches(self) -> Stmt:
        """Return both launches of a recurrent layer: the inputs' products, and the persistent loop
        over time steps.
        """
        plan, layer = self.plan, self.layer
        step = Var("step")
        steps = For(step, layer.steps, self.time_step_stmts(step))
        keep = self.loop_over_thread_columns(self.load_register_resident_weights)
        begin = self.loop_over_thread_units(self.load_initial_states)
        end = self.loop_over_thread_units(self.store_last_states)
        body = Block((keep, begin, block_barrier(), steps, end))
        threads = For(self.thread, plan.threads, body, kind="thread")
        blocks = For(self.block, layer.batch, threads, kind="block")
        return Block((self.project_inputs_for_all_steps(), blocks))

    def time_step_stmts(self, step: Expr) -> Stmt:
        """Return the statements of one time step: h R in all columns, then the cells of all hidden
        units.
        """
        columns = self.loop_over_thread_columns(partial(self.multiply_state_by_weight_column, step))
        units = self.loop_over_thread_units(partial(self.update_unit_state, step))
        return Block((columns, block_barrier(), units, block_barrier()))

    def load_initial_states(self, unit: Expr) -> list[Stmt]:
        """Return stores that copy a unit's initial recurrent states to shared memory."""
        here = self.state_address_of_hidden_unit(unit)
        pairs = zip(self.states, self.initial_states, strict=True)
        return [Store(to, unit, Load(b, here)) for to, b in pairs]

    def store_last_states(self, unit: Expr) -> list[Stmt]:
        """Return stores that copy a unit's last recurrent states from shared memory to the results."""
        here = self.state_address_of_hidden_unit(unit)
        pairs = zip(self.final_states, self.states, strict=True)
        return [Store(to, here, Load(b, unit)) for to, b in pairs]

    # --- addresses

    def state_address_of_hidden_unit(self, unit: Expr) -> Expr:
        """Return the address of a hidden unit of the block's sequence in the arrays of initial and
        last states.
        """
        return self.block * self.layer.hidden + unit

    def load_recurrent_weight(self, k: Expr, column: Expr) -> Expr:
        """Return element (k, column) of the recurrent weights R."""
        hidden = self.layer.hidden
        gate, unit = as_expr(0), column
        if self.r.block not in (0, hidden):
            gate, unit = column // hidden, column % hidden
        return Load(self.r.buffer, self.r.weight_address(k, gate, unit))

    # --- computation

    def project_inputs_for_all_steps(self) -> Stmt:
        """Return the loops that compute x W + bias for all time steps of a recurrent layer."""
        layer, row, gate, unit, k = self.layer, *map(Var, ("row", "gate", "unit", "k"))
        column, acc = gate * layer.hidden + unit, Var("acc", layer.dtype)
        x = Load(self.x, row * layer.inputs + k)
        add = Assign(acc, acc + x * Load(self.w.buffer, self.w.weight_address(k, gate, unit)))
        sums = For(k, layer.inputs, add, kind="reduction")
        place, total = row * layer.padded_columns_per_product_row + column, acc + Load(self.bias, column)
        begin, end = Declare(acc, const(0, layer.dtype)), Store(self.products, place, total)
        body = Block((begin, sums, end))
        rows = layer.steps * layer.batch
        axes = (row, rows), (gate, layer.gates), (unit, layer.hidden)
        return loop_nest(axes, body, "independent")

    def loop_over_thread_columns(self, body: Callable[[Expr, Expr], list[Stmt]]) -> Stmt:
        """Return a loop over the columns of h R that belong to a GPU thread; `body` receives the
        iteration and the column.
        """
        plan, turn, column = self.plan, Var("turn"), Var("column")
        inner: Stmt = Block(body(turn, column))
        if plan.layer.padded_columns_per_product_row % plan.threads:
            inner = If(column < plan.layer.padded_columns_per_product_row, inner)
        number = Declare(column, turn * plan.threads + self.thread)
        return For(turn, plan.max_columns_per_thread, Block((number, inner)))

    def loop_over_thread_units(self, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        """Return a loop over the hidden units that belong to a GPU thread, with the statements of
        `body` for each of them.
        """
        unit, hidden = Var("unit"), self.layer.hidden
        if hidden > self.plan.threads:
            loop_body = Block(body(unit))
            return For(unit, hidden, loop_body, begin=self.thread, step=self.plan.threads)
        single_body = Block((Declare(unit, self.thread), *body(unit)))
        return If(self.thread < hidden, single_body)

    def load_register_resident_weights(self, iteration: Expr, column: Expr) -> list[Stmt]:
        """Return the loop that loads the rows of recurrent weights which stay in a thread's
        registers for all time steps.
        """
        k, size = Var("k"), self.plan.register_rows
        store = Store(self.scratch_buffers, iteration * size + k, self.load_recurrent_weight(k, column))
        return [For(k, size, store)] if size else []

    def input_or_output_row_of_time_step(self, step: Expr) -> Expr:
        """Return the row of inputs or outputs of the block's sequence at a time step, reversed for
        a reverse layer.
        """
        step = self.layer.steps - 1 - step if self.layer.reverse else step
        return step * self.layer.batch + self.block

    def multiply_state_by_weight_column(self, step: Expr, iteration: Expr, column: Expr) -> list[Stmt]:
        """Return the statements that compute a column of h R at a time step, while the column of x
        W is loaded.
        """
        layer, size = self.layer, self.plan.register_rows
        dtype, left = layer.dtype, layer.hidden - size
        k, group, fetch_index, other = map(Var, ("k", "group", "one", "other"))
        x, acc = Var("x", dtype), Var("acc", dtype)

        def accumulate_product(row: Expr, weight: Expr) -> Stmt:
            h = Load(self.states[0], row)
            return Assign(acc, acc + h * weight)

        place = self.input_or_output_row_of_time_step(step) * layer.padded_columns_per_product_row + column
        stmts: list[Stmt] = [Declare(x, Load(self.products, place)), Declare(acc, const(0, dtype))]
        if size:
            weight = Load(self.scratch_buffers, iteration * size + k)
            stmts.append(For(k, size, accumulate_product(k, weight)))
        if left:
            row = size + group * _ROWS_LOADED_TOGETHER
            store = Store(self.fetched, fetch_index, self.load_recurrent_weight(row + fetch_index, column))
            weight = Load(self.fetched, other)
            fetch = For(fetch_index, _ROWS_LOADED_TOGETHER, store)
            use = For(other, _ROWS_LOADED_TOGETHER, accumulate_product(row + other, weight))
            both = Block((fetch, use))
            stmts.append(For(group, left // _ROWS_LOADED_TOGETHER, both))
        stmts.append(Store(self.inputs, column, x))
        stmts.append(Store(self.gates, column, acc))
        return stmts

    def update_unit_state(self, step: Expr, unit: Expr) -> list[Stmt]:
        """Return the statements that compute the new recurrent states and the output of a hidden
        unit at a time step.
        """
        layer, stmts = self.layer, list[Stmt]()
        gates = range(layer.gates)
        parts = [gate * layer.hidden + unit for gate in gates]
        xs = [Load(self.inputs, part) for part in parts]
        hs = [Load(self.gates, part) for part in parts]
        old = [Load(state, unit) for state in self.states]
        extras = [Load(extra, unit) for extra in self.extras]
        new_values = layer.cell(xs, hs, old, extras)
        new = [bind_to_new_register("state", value, stmts) for value in new_values]
        place = self.input_or_output_row_of_time_step(step) * layer.hidden + unit
        stmts.append(Store(self.y, place, new[0]))
        pairs = zip(self.states, new, strict=True)
        stmts += [Store(to, unit, value) for to, value in pairs]
        return stmts
