# SPDX-License-Identifier: Apache-2.0
"""Quantized LSTM layers over whole sequences in integer arithmetic: qnn.lstm_by_table and
qnn.lstm_by_series.

lstm_by_table(x, r, bias, multiplier, shift, h, c, table)      # x int16[28, 1, 80], r int8[80, 20] -> int8[28, 1, 20]

The input x is already multiplied by the input weights; one tensor program computes all time steps
in a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, Dim, TensorType, Type, Types, declare_arguments, frozen, require
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples
from aotc.relay.op.operator_definition import (
    exact_sample,
    greater,
    lesser,
    may_be_equal_dims,
    random_array,
    require_tensor_type,
    shape_text,
)
from aotc.relay.op.qnn import fixed_point_int16
from aotc.tir import Buffer, ExternProgram, Load, Scratch, Tensor, Var, as_expr, te
from aotc.tir.stmt import Assign, Block, Declare, For, Stmt, Store, bind_to_new_register, forall

_GATE_COUNT: Final = 4
#: Largest number of hidden units: int8 dot products of this length stay below 2^30.
_MAX_HIDDEN_UNITS: Final = 1 << 14


class QuantizedLSTMAttrs(Attrs):
    """Attributes of the LSTM operators.

    digits      number of fractional bits of the cell state
    clip        largest magnitude of the cell state; 0 for no limit
    zero_point  zero point of the outputs
    """

    digits: int = 12
    clip: int = 0
    zero_point: int = 0


@frozen
class _FixedPointArithmetic:
    """16-bit fixed-point arithmetic of an interpreter; the last arguments of its functions are
    table and `keep`.

    digits    the supported numbers of fractional bits of a cell state
    logistic  logistic function
    tanh      hyperbolic tangent
    product   a * b / 2^bits
    gate      sum of the input's and the hidden state's contribution, the latter in 32 bits
    """

    digits: range
    logistic: Callable[..., Any]
    tanh: Callable[..., Any]
    product: Callable[[Any, Any, int], Any]
    gate: Callable[[Any, Any], Any]

    def lstm_cell_step(
        self,
        a: QuantizedLSTMAttrs,
        gate_sums: list[Any],
        cell_state: Any,
        output_factor: fixed_point_int16.FixedPointFactor,
        *curve: Any,
    ) -> tuple[Any, Any]:
        """Return the hidden state and the cell state after a time step, as scalar expressions or
        arrays.

        gate_sums        the sums of the four gates
        cell_state       the cell state before the step
        output_factor    the factor that scales the hidden state
        curve            the table, if there is one, and `keep`
        """
        keep = curve[-1]
        i, f, o = (keep(self.logistic(gate_sums[k], *curve)) for k in (0, 1, 3))
        new = keep(self.tanh(gate_sums[2], fixed_point_int16.LOGISTIC_FRACTION_BITS, *curve))
        part = self.product(i, new, 2 * fixed_point_int16.INT16_MAGNITUDE_BITS - a.digits)
        cell_state = fixed_point_int16.saturate_to_signed_bits(
            self.product(f, cell_state, fixed_point_int16.INT16_MAGNITUDE_BITS) + part
        )
        cell_state = keep(lesser(greater(cell_state, -a.clip), a.clip) if a.clip > 0 else cell_state)
        h = fixed_point_int16.multiply_by_fixed_point_factor(
            keep(o * self.tanh(cell_state, a.digits, *curve)), output_factor, keep
        )
        return fixed_point_int16.saturate_to_signed_bits(h + a.zero_point, 8), cell_state


def _multiply_and_shift_rounding_twice(a: Any, b: Any, bits: int) -> Any:
    """Return a * b / 2^bits as int16, rounded first to one bit more with halves up, then away from
    zero.
    """
    return fixed_point_int16.saturate_to_signed_bits(
        fixed_point_int16.right_shift_rounding_half_away((a * b + 1) >> 1, bits - 1)
    )


_TABLE_ARITHMETIC: Final = _FixedPointArithmetic(
    range(30),
    fixed_point_int16.logistic_q15_by_table,
    fixed_point_int16.tanh_q15_by_table,
    _multiply_and_shift_rounding_twice,
    lambda x, h: fixed_point_int16.saturate_to_signed_bits(x + fixed_point_int16.saturate_to_signed_bits(h)),
)
_SERIES_ARITHMETIC: Final = _FixedPointArithmetic(
    range(9, 16),
    fixed_point_int16.logistic_q15_by_series,
    fixed_point_int16.tanh_q15_by_series,
    lambda a, b, bits: fixed_point_int16.saturate_to_signed_bits(
        fixed_point_int16.right_shift_rounding_half_away(a * b, bits)
    ),
    lambda x, h: fixed_point_int16.saturate_to_signed_bits(x + h),
)


def _infer_lstm_type(arithmetic: _FixedPointArithmetic, a: QuantizedLSTMAttrs, types: Types) -> Type:
    data, weight = require_tensor_type(types[0], "data"), require_tensor_type(types[1], "the recurrent weight")
    text = f"data must be (steps, batch, 4 * hidden), got {data}"
    require("recurrent.data", data.rank == 3, text)
    text = f"the recurrent weight must be a matrix, got {weight}"
    require("recurrent.weight", weight.rank == 2, text)
    steps, batch, _ = data.shape
    hidden = weight.shape[1]
    fits = isinstance(hidden, int) and 0 < hidden <= _MAX_HIDDEN_UNITS
    text = f"the state must have 1 to {_MAX_HIDDEN_UNITS} units, got {weight}"
    require("recurrent.hidden", fits, text)
    assert isinstance(hidden, int)
    columns = _GATE_COUNT * hidden
    expected_types: list[tuple[tuple[Dim, ...], str]] = [
        ((steps, batch, columns), "int16"),
        ((columns, hidden), "int8"),
    ]
    expected_types += [((columns,), "int32"), ((_GATE_COUNT + 1,), "int32"), ((_GATE_COUNT + 1,), "int32")]
    expected_types += [((batch, hidden), "int8"), ((batch, hidden), "int16"), ((256,), "uint16")]
    for number, (ty, (shape, dtype)) in enumerate(zip(types, expected_types, strict=False)):
        given = require_tensor_type(ty)
        same = given.dtype == dtype and given.rank == len(shape) and all(map(may_be_equal_dims, given.shape, shape))
        text = f"argument {number} must be {dtype} {shape_text(shape)}, got {ty}"
        require("recurrent.argument", same, text)
    ends = arithmetic.digits[0], arithmetic.digits[-1]
    text = f"digits must be {ends[0]} to {ends[1]}, got {a.digits}"
    require("recurrent.argument", a.digits in arithmetic.digits, text)
    return TensorType((steps, batch, hidden), "int8")


def _lstm_axis_map(_: Any, types: Types) -> AxisMap:
    """Return the axis map of an LSTM layer, which maps only the batch axis of the data, h and c."""
    batch = {0: 1, 5: 0, 6: 0}
    return AxisMap(tuple((None, batch.get(number), None) for number in range(len(types))))


def _lstm_reference(
    arithmetic: _FixedPointArithmetic, a: QuantizedLSTMAttrs, x: Array, recurrent_weight: Array, *other_arguments: Array
) -> Array:
    bias, multiplier, shift, h, c, *tables = other_arguments
    tables = [t.astype(np.int32) for t in tables]
    curve = (*(t.__getitem__ for t in tables), lambda v: v)
    hidden = recurrent_weight.shape[1]
    each = np.repeat(multiplier[:_GATE_COUNT], hidden), np.repeat(shift[:_GATE_COUNT], hidden)
    c = c.astype(np.int32)
    outputs = np.empty((*x.shape[:2], hidden), np.int8)
    for t, part in enumerate(x):
        sums = h.astype(np.int32) @ recurrent_weight.T.astype(np.int32) + bias
        gates = arithmetic.gate(
            part.astype(np.int32), fixed_point_int16.multiply_by_fixed_point_factor(sums, each, curve[-1])
        )
        output = (multiplier[_GATE_COUNT], shift[_GATE_COUNT])
        h, c = arithmetic.lstm_cell_step(a, np.split(gates, _GATE_COUNT, axis=1), c, output, *curve)
        outputs[t] = h
    return outputs


@frozen(eq=False)
class _LstmLoopBuilder:
    """Builds the statements of an LSTM layer.

    arithmetic         the fixed-point arithmetic
    attributes  the attributes of the call
    shape       (time steps, batch, hidden units)
    inputs      the buffers of the arguments
    gates       scratch buffer: the four gates of one time step of one sequence
    h, c        scratch buffers: hidden states and cell states of all sequences
    """

    arithmetic: _FixedPointArithmetic
    attributes: QuantizedLSTMAttrs
    shape: tuple[int, int, int]
    inputs: list[Buffer]
    gates: Buffer
    h: Buffer
    c: Buffer

    def build_lstm_layer_loops(self, output_buffer: Buffer) -> Stmt:
        steps, batch, hidden = self.shape
        t, b, unit = Var("t"), Var("b"), Var("unit")
        row = t * batch + b
        cell = forall(unit, hidden, self._build_lstm_cell_update(output_buffer, row, b, unit))
        step = For(b, batch, Block((self._build_lstm_gate_sums(row, b), cell)))
        first = [
            _copy_buffer_loop(source, state) for source, state in zip(self.inputs[5:7], (self.h, self.c), strict=True)
        ]
        return Block((*first, For(t, steps, step)))

    def _load_fixed_point_factor_of_gate(self, gate: Any) -> fixed_point_int16.FixedPointFactor:
        return Load(self.inputs[3], gate), Load(self.inputs[4], gate)

    def _build_lstm_gate_sums(self, row: Any, sequence: Any) -> Stmt:
        """Return the statements that compute the sums of all gates of sequence `sequence` at time
        step and batch row `row`.
        """
        x, weight, bias = self.inputs[:3]
        hidden = self.shape[2]
        gate, unit, k, acc = Var("gate"), Var("unit"), Var("k"), Var("acc", bias.dtype)
        place = gate * hidden + unit
        stmts: list[Stmt] = [Declare(acc, Load(bias, place))]
        pair = Load(weight, place * hidden + k).astype("int32") * Load(self.h, sequence * hidden + k).astype("int32")
        stmts.append(For(k, hidden, Assign(acc, acc + pair), kind="reduction"))
        h = fixed_point_int16.multiply_by_fixed_point_factor(
            acc, self._load_fixed_point_factor_of_gate(gate), lambda v: bind_to_new_register("scaled", v, stmts)
        )
        given = Load(x, row * (_GATE_COUNT * hidden) + place).astype("int32")
        stmts.append(Store(self.gates, place, self.arithmetic.gate(given, h).astype("int16")))
        return For(gate, _GATE_COUNT, forall(unit, hidden, Block(stmts)))

    def _build_lstm_cell_update(self, output_buffer: Buffer, row: Any, sequence: Any, unit: Any) -> Stmt:
        hidden = self.shape[2]
        here = sequence * hidden + unit
        stmts: list[Stmt] = []
        tables = [lambda v, t=t: Load(t, v.astype("int64")).astype("int32") for t in self.inputs[7:]]
        curve = (*tables, lambda v: bind_to_new_register("word", v, stmts))
        sums = [
            bind_to_new_register("gate", Load(self.gates, k * hidden + unit).astype("int32"), stmts)
            for k in range(_GATE_COUNT)
        ]
        output = self._load_fixed_point_factor_of_gate(as_expr(_GATE_COUNT))
        old = Load(self.c, here).astype("int32")
        h, c = self.arithmetic.lstm_cell_step(self.attributes, sums, old, output, *curve)
        out = bind_to_new_register("out", h.astype("int8"), stmts)
        stmts += [Store(self.c, here, c.astype("int16")), Store(self.h, here, out)]
        return Block((*stmts, Store(output_buffer, row * hidden + unit, out)))


def _copy_buffer_loop(source: Buffer, target: Buffer) -> Stmt:
    i = Var("i")
    return forall(i, target.size, Store(target, i, Load(source, i)))


def _compute_lstm(
    arithmetic: _FixedPointArithmetic,
    a: QuantizedLSTMAttrs,
    x: Tensor,
    recurrent_weight: Tensor,
    *other_arguments: Tensor,
) -> Tensor:
    steps, batch, columns = x.shape
    shape = steps, batch, columns // _GATE_COUNT
    scratch = (Scratch(x.dtype, columns, private=True), *(Scratch(v.dtype, v.size) for v in other_arguments[3:5]))
    program = ExternProgram(
        lambda i, o, s: _LstmLoopBuilder(arithmetic, a, shape, list(i), *s).build_lstm_layer_loops(o[0]), scratch
    )
    macs = steps * batch * columns * shape[2]
    return te.extern_for_target(
        "layer", [(shape, "int8")], (x, recurrent_weight, *other_arguments), lambda _: program, macs=macs
    )[0]


def _lstm_test_samples(arithmetic: _FixedPointArithmetic, argument_count: int) -> Samples:
    def lstm_sample(steps: int, batch: int, hidden: int, **rest: Any) -> Sample:
        rng = np.random.default_rng(steps)
        x = rng.integers(-32768, 32768, (steps, batch, 4 * hidden)).astype(np.int16)
        r, h = (random_array(s, "int8", k) for k, s in enumerate(((4 * hidden, hidden), (batch, hidden))))
        bias = rng.integers(-900, 900, 4 * hidden).astype(np.int32)
        multiplier = rng.integers(1 << 30, 1 << 31, 5).astype(np.int32)
        c = rng.integers(-32768, 32768, (batch, hidden)).astype(np.int16)
        logistic = 65536 / (1 + np.exp(-np.arange(256) / 24))
        table = np.minimum(np.rint(logistic), 65535).astype(np.uint16)
        given = (x, r, bias, multiplier, np.array([0, -1, 2, -5, -22], np.int32), h, c, table)
        return exact_sample(QuantizedLSTMAttrs(**rest), *given[:argument_count])

    yield lstm_sample(1, 1, 3)
    yield lstm_sample(7, 1, 20, digits=11, zero_point=-5)
    yield lstm_sample(5, 3, 9, digits=15, clip=20000)
    yield lstm_sample(4, 2, 16, digits=9, clip=300, zero_point=127)


_LSTM_ARGUMENT_NAMES: Final = "data recurrent bias multiplier shift h c table"
_LSTM_DOC_TEMPLATE: Final = """A layer of long short-term memory of states of 16 bits, as {} computes it.

data (steps, batch, 4 * hidden), the inputs times their weights with 12 digits behind the point;
the recurrent weight (4 * hidden, hidden); bias (4 * hidden), added to its products with h;
their multipliers of 31 bits and shifts, and those of the outputs (5); first h and c (batch, hidden){}.
Gates: input, forget, cell, output.  The result is int8 (steps, batch, hidden).
"""


def _lstm_op(name: str, arithmetic: _FixedPointArithmetic, argument_count: int, *texts: str) -> OpDef:
    return OpDef(
        name=name,
        doc=_LSTM_DOC_TEMPLATE.format(*texts),
        attrs=QuantizedLSTMAttrs,
        args=declare_arguments(*_LSTM_ARGUMENT_NAMES.split()[:argument_count]),
        infer=partial(_infer_lstm_type, arithmetic),
        reference=partial(_lstm_reference, arithmetic),
        axes=_lstm_axis_map,
        compute=partial(_compute_lstm, arithmetic),
        samples=partial(_lstm_test_samples, arithmetic, argument_count),
    )


_TABLE_ARGUMENT_DOC: Final = ";\nthe logistic function at multiples of 1/24, times 2^16"
lstm_by_table: Final = _lstm_op("qnn.lstm_by_table", _TABLE_ARITHMETIC, 8, "TFLite Micro", _TABLE_ARGUMENT_DOC)
lstm_by_series: Final = _lstm_op("qnn.lstm_by_series", _SERIES_ARITHMETIC, 7, "LiteRT", "")
