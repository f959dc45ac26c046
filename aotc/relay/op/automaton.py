# SPDX-License-Identifier: Apache-2.0
"""The states of a finite automaton that reads the rows of an array (run_automaton).

run_automaton(symbols, table)                      # y[i, k] = table[y[i, k - 1], symbols[i, k]]
run_automaton(symbols, table, reverse=True)        # y[i, k] = table[y[i, k + 1], symbols[i, k]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.ir import (
    Attrs,
    AxisMap,
    PrecisionTreatment,
    TensorType,
    Type,
    Types,
    declare_arguments,
    product_of_dims,
    require,
)
from aotc.relay.op.opdef import Array, OpDef, Samples
from aotc.relay.op.operator_definition import exact_sample, require_tensor_of_rank, require_tensor_type
from aotc.tir import Assign, Block, Buffer, Declare, For, Load, Stmt, Store, Tensor, Var, forall, te
from aotc.tir.expr import INDEX, Const, maximum, minimum


class RunAutomatonAttrs(Attrs):
    """The state of a deterministic finite automaton after each symbol of each row of `symbols` (..., n).

    `table` (states, symbols) holds the next state for each state and symbol, and has the element type of the
    result. The automaton starts each row in state 0. Symbols and states that the table does not have count as the
    nearest ones that it has.

    reverse  True to read each row from its end
    """

    reverse: bool = False


def _infer_states_type(_: RunAutomatonAttrs, types: Types) -> Type:
    symbols = require_tensor_type(types[0], "symbols")
    table = require_tensor_of_rank("run_automaton.table", types[1], 2)
    is_integer = symbols.dtype.is_integer and table.dtype.is_integer
    require("run_automaton.dtype", is_integer, lambda: f"symbols and table must be integers, got {symbols} and {table}")
    require("run_automaton.symbols", symbols.rank > 0, "symbols must have an axis")
    require("run_automaton.table", 0 not in table.shape, lambda: f"a table needs a state and a symbol, got {table}")
    return TensorType(symbols.shape, table.dtype)


def _states_reference(a: RunAutomatonAttrs, symbols: Array, table: Array) -> Array:
    count, kinds = table.shape
    result = np.zeros(symbols.shape, table.dtype)
    state = np.zeros(symbols.shape[:-1], np.int64)
    steps = range(symbols.shape[-1])
    for k in reversed(steps) if a.reverse else steps:
        found = table[state, np.clip(symbols[..., k], 0, kinds - 1).astype(np.int64)]
        state = np.clip(found.astype(np.int64), 0, count - 1)
        result[..., k] = state
    return result


def _compute_states(a: RunAutomatonAttrs, symbols: Tensor, table: Tensor) -> Tensor:
    count, kinds = table.shape
    extent = symbols.shape[-1]
    # an automaton reads rows of one length, of which there may be any number
    takes_sizes = isinstance(extent, int) and extent > 0
    rows = product_of_dims(symbols.shape[:-1]) if takes_sizes else symbols.size // max(extent, 1)

    def build_steps(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        row, k, state = Var("row"), Var("k"), Var("state", INDEX)
        place = row * extent + ((extent - 1) - k if a.reverse else k)
        symbol = _clipped(Load(inputs[0], place), kinds)
        step = (
            Assign(state, _clipped(Load(inputs[1], state * kinds + symbol), count)),
            Store(outputs[0], place, state.astype(table.dtype)),
        )
        return forall(row, rows, Block((Declare(state, Const(0, INDEX)), For(k, extent, Block(step)))))

    shapes = [(symbols.shape, table.dtype)]
    return te.extern("automaton", shapes, [symbols, table], build_steps, takes_sizes=takes_sizes)[0]


def _clipped(value: Any, count: int) -> Any:
    """Return an index that is within 0 .. count - 1."""
    return minimum(maximum(value.astype(INDEX), 0), count - 1)


def _states_axis_map(_: RunAutomatonAttrs, types: Types) -> AxisMap:
    rank = require_tensor_type(types[0]).rank
    return AxisMap(((*range(rank - 1), None), (None,) * rank))


def _states_test_samples() -> Samples:
    rng = np.random.default_rng(5)
    for shape, dtype, kind, reverse in (
        ((9,), "uint8", "uint8", False),
        ((3, 7), "int32", "uint16", True),
        ((2, 3, 5), "int64", "int32", False),
        ((2, 1), "uint8", "int64", True),
        ((0, 4), "uint8", "uint8", False),
        ((4, 0), "uint8", "uint8", False),
    ):
        table = rng.integers(0, 6, (6, 4)).astype(kind)
        yield exact_sample(RunAutomatonAttrs(reverse=reverse), rng.integers(0, 4, shape).astype(dtype), table)
    outside = np.array([[-1, 9, 2], [3, -7, 0]], np.int32)
    yield exact_sample(RunAutomatonAttrs(), outside, np.array([[1, 0], [1, 1]], np.int8))


run_automaton = OpDef(
    name="run_automaton",
    attrs=RunAutomatonAttrs,
    args=declare_arguments("symbols", "table"),
    infer=_infer_states_type,
    reference=_states_reference,
    axes=_states_axis_map,
    compute=_compute_states,
    precision=PrecisionTreatment.FOLLOW,
    samples=_states_test_samples,
)
