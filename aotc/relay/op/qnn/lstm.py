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

from aotc.ir import Attrs, AxisMap, Dim, TensorType, Type, Types, args, frozen, require
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples
from aotc.relay.op.operator_definition import exact, greater, lesser, may_equal, random_array, shape_text, tensor
from aotc.relay.op.qnn import fixed_point_int16
from aotc.tir import Buffer, ExternProgram, Load, Scratch, Tensor, Var, as_expr, te
from aotc.tir.stmt import Assign, Block, Declare, For, Stmt, Store, forall, kept

_GATES: Final = 4
#: Largest number of hidden units: int8 dot products of this length stay below 2^30.
_MOST_UNITS: Final = 1 << 14


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
class _Arithmetic:
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

    def cell(
        self, a: QuantizedLSTMAttrs, sums: list[Any], c: Any, output: fixed_point_int16.Factor, *curve: Any
    ) -> tuple[Any, Any]:
        """Return the hidden state and the cell state after a time step, as scalar expressions or
        arrays.

        sums    the sums of the four gates
        c       the cell state before the step
        output  the factor that scales the hidden state
        curve   the table, if there is one, and `keep`
        """
        keep = curve[-1]
        i, f, o = (keep(self.logistic(sums[k], *curve)) for k in (0, 1, 3))
        new = keep(self.tanh(sums[2], fixed_point_int16.GATE, *curve))
        part = self.product(i, new, 2 * fixed_point_int16.WORD - a.digits)
        c = fixed_point_int16.saturated(self.product(f, c, fixed_point_int16.WORD) + part)
        c = keep(lesser(greater(c, -a.clip), a.clip) if a.clip > 0 else c)
        h = fixed_point_int16.scaled(keep(o * self.tanh(c, a.digits, *curve)), output, keep)
        return fixed_point_int16.saturated(h + a.zero_point, 8), c


def _halved(a: Any, b: Any, bits: int) -> Any:
    """Return a * b / 2^bits as int16, rounded first to one bit more with halves up, then away from
    zero.
    """
    return fixed_point_int16.saturated(fixed_point_int16.divided((a * b + 1) >> 1, bits - 1))


_TABLE: Final = _Arithmetic(
    range(30),
    fixed_point_int16.logistic_by_table,
    fixed_point_int16.tanh_by_table,
    _halved,
    lambda x, h: fixed_point_int16.saturated(x + fixed_point_int16.saturated(h)),
)
_SERIES: Final = _Arithmetic(
    range(9, 16),
    fixed_point_int16.logistic_by_series,
    fixed_point_int16.tanh_by_series,
    lambda a, b, bits: fixed_point_int16.saturated(fixed_point_int16.divided(a * b, bits)),
    lambda x, h: fixed_point_int16.saturated(x + h),
)


def _infer(how: _Arithmetic, a: QuantizedLSTMAttrs, types: Types) -> Type:
    data, weight = tensor(types[0], "data"), tensor(types[1], "the recurrent weight")
    text = f"data must be (steps, batch, 4 * hidden), got {data}"
    require("recurrent.data", data.rank == 3, text)
    text = f"the recurrent weight must be a matrix, got {weight}"
    require("recurrent.weight", weight.rank == 2, text)
    steps, batch, _ = data.shape
    hidden = weight.shape[1]
    fits = isinstance(hidden, int) and 0 < hidden <= _MOST_UNITS
    text = f"the state must have 1 to {_MOST_UNITS} units, got {weight}"
    require("recurrent.hidden", fits, text)
    assert isinstance(hidden, int)
    columns = _GATES * hidden
    wanted: list[tuple[tuple[Dim, ...], str]] = [((steps, batch, columns), "int16"), ((columns, hidden), "int8")]
    wanted += [((columns,), "int32"), ((_GATES + 1,), "int32"), ((_GATES + 1,), "int32")]
    wanted += [((batch, hidden), "int8"), ((batch, hidden), "int16"), ((256,), "uint16")]
    for number, (ty, (shape, dtype)) in enumerate(zip(types, wanted, strict=False)):
        given = tensor(ty)
        same = given.dtype == dtype and given.rank == len(shape) and all(map(may_equal, given.shape, shape))
        text = f"argument {number} must be {dtype} {shape_text(shape)}, got {ty}"
        require("recurrent.argument", same, text)
    ends = how.digits[0], how.digits[-1]
    text = f"digits must be {ends[0]} to {ends[1]}, got {a.digits}"
    require("recurrent.argument", a.digits in how.digits, text)
    return TensorType((steps, batch, hidden), "int8")


def _axes(_: Any, types: Types) -> AxisMap:
    """Return the axis map of an LSTM layer, which maps only the batch axis of the data, h and c."""
    batch = {0: 1, 5: 0, 6: 0}
    return AxisMap(tuple((None, batch.get(number), None) for number in range(len(types))))


def _reference(how: _Arithmetic, a: QuantizedLSTMAttrs, x: Array, r: Array, *rest: Array) -> Array:
    bias, multiplier, shift, h, c, *tables = rest
    tables = [t.astype(np.int32) for t in tables]
    curve = (*(t.__getitem__ for t in tables), lambda v: v)
    hidden = r.shape[1]
    each = np.repeat(multiplier[:_GATES], hidden), np.repeat(shift[:_GATES], hidden)
    c = c.astype(np.int32)
    outputs = np.empty((*x.shape[:2], hidden), np.int8)
    for t, part in enumerate(x):
        sums = h.astype(np.int32) @ r.T.astype(np.int32) + bias
        gates = how.gate(part.astype(np.int32), fixed_point_int16.scaled(sums, each, curve[-1]))
        output = (multiplier[_GATES], shift[_GATES])
        h, c = how.cell(a, np.split(gates, _GATES, axis=1), c, output, *curve)
        outputs[t] = h
    return outputs


@frozen(eq=False)
class _Builder:
    """Builds the statements of an LSTM layer.

    how         the fixed-point arithmetic
    attributes  the attributes of the call
    shape       (time steps, batch, hidden units)
    inputs      the buffers of the arguments
    gates       scratch buffer: the four gates of one time step of one sequence
    h, c        scratch buffers: hidden states and cell states of all sequences
    """

    how: _Arithmetic
    attributes: QuantizedLSTMAttrs
    shape: tuple[int, int, int]
    inputs: list[Buffer]
    gates: Buffer
    h: Buffer
    c: Buffer

    def statement(self, y: Buffer) -> Stmt:
        steps, batch, hidden = self.shape
        t, b, unit = Var("t"), Var("b"), Var("unit")
        row = t * batch + b
        cell = forall(unit, hidden, self._cell(y, row, b, unit))
        step = For(b, batch, Block((self._products(row, b), cell)))
        first = [_copied(source, state) for source, state in zip(self.inputs[5:7], (self.h, self.c), strict=True)]
        return Block((*first, For(t, steps, step)))

    def _factor(self, place: Any) -> fixed_point_int16.Factor:
        return Load(self.inputs[3], place), Load(self.inputs[4], place)

    def _products(self, row: Any, b: Any) -> Stmt:
        """Return the statements that compute the sums of all gates of sequence `b` at time step and
        batch row `row`.
        """
        x, weight, bias = self.inputs[:3]
        hidden = self.shape[2]
        gate, unit, k, acc = Var("gate"), Var("unit"), Var("k"), Var("acc", bias.dtype)
        place = gate * hidden + unit
        stmts: list[Stmt] = [Declare(acc, Load(bias, place))]
        pair = Load(weight, place * hidden + k).astype("int32") * Load(self.h, b * hidden + k).astype("int32")
        stmts.append(For(k, hidden, Assign(acc, acc + pair), kind="reduction"))
        h = fixed_point_int16.scaled(acc, self._factor(gate), lambda v: kept("scaled", v, stmts))
        given = Load(x, row * (_GATES * hidden) + place).astype("int32")
        stmts.append(Store(self.gates, place, self.how.gate(given, h).astype("int16")))
        return For(gate, _GATES, forall(unit, hidden, Block(stmts)))

    def _cell(self, y: Buffer, row: Any, b: Any, unit: Any) -> Stmt:
        hidden = self.shape[2]
        here = b * hidden + unit
        stmts: list[Stmt] = []
        tables = [lambda v, t=t: Load(t, v.astype("int64")).astype("int32") for t in self.inputs[7:]]
        curve = (*tables, lambda v: kept("word", v, stmts))
        sums = [kept("gate", Load(self.gates, k * hidden + unit).astype("int32"), stmts) for k in range(_GATES)]
        output = self._factor(as_expr(_GATES))
        old = Load(self.c, here).astype("int32")
        h, c = self.how.cell(self.attributes, sums, old, output, *curve)
        out = kept("out", h.astype("int8"), stmts)
        stmts += [Store(self.c, here, c.astype("int16")), Store(self.h, here, out)]
        return Block((*stmts, Store(y, row * hidden + unit, out)))


def _copied(source: Buffer, target: Buffer) -> Stmt:
    i = Var("i")
    return forall(i, target.size, Store(target, i, Load(source, i)))


def _compute(how: _Arithmetic, a: QuantizedLSTMAttrs, x: Tensor, r: Tensor, *rest: Tensor) -> Tensor:
    steps, batch, columns = x.shape
    shape = steps, batch, columns // _GATES
    scratch = (Scratch(x.dtype, columns, private=True), *(Scratch(v.dtype, v.size) for v in rest[3:5]))
    program = ExternProgram(lambda i, o, s: _Builder(how, a, shape, list(i), *s).statement(o[0]), scratch)
    macs = steps * batch * columns * shape[2]
    return te.extern_for("layer", [(shape, "int8")], (x, r, *rest), lambda _: program, macs=macs)[0]


def _samples(how: _Arithmetic, parameters: int) -> Samples:
    def sample(steps: int, batch: int, hidden: int, **rest: Any) -> Sample:
        rng = np.random.default_rng(steps)
        x = rng.integers(-32768, 32768, (steps, batch, 4 * hidden)).astype(np.int16)
        r, h = (random_array(s, "int8", k) for k, s in enumerate(((4 * hidden, hidden), (batch, hidden))))
        bias = rng.integers(-900, 900, 4 * hidden).astype(np.int32)
        multiplier = rng.integers(1 << 30, 1 << 31, 5).astype(np.int32)
        c = rng.integers(-32768, 32768, (batch, hidden)).astype(np.int16)
        logistic = 65536 / (1 + np.exp(-np.arange(256) / 24))
        table = np.minimum(np.rint(logistic), 65535).astype(np.uint16)
        given = (x, r, bias, multiplier, np.array([0, -1, 2, -5, -22], np.int32), h, c, table)
        return exact(QuantizedLSTMAttrs(**rest), *given[:parameters])

    yield sample(1, 1, 3)
    yield sample(7, 1, 20, digits=11, zero_point=-5)
    yield sample(5, 3, 9, digits=15, clip=20000)
    yield sample(4, 2, 16, digits=9, clip=300, zero_point=127)


_ARGUMENTS: Final = "data recurrent bias multiplier shift h c table"
_DOC: Final = """A layer of long short-term memory of states of 16 bits, as {} computes it.

data (steps, batch, 4 * hidden), the inputs times their weights with 12 digits behind the point;
the recurrent weight (4 * hidden, hidden); bias (4 * hidden), added to its products with h;
their multipliers of 31 bits and shifts, and those of the outputs (5); first h and c (batch, hidden){}.
Gates: input, forget, cell, output.  The result is int8 (steps, batch, hidden).
"""


def _layer(name: str, how: _Arithmetic, count: int, *texts: str) -> OpDef:
    return OpDef(
        name=name,
        doc=_DOC.format(*texts),
        attrs=QuantizedLSTMAttrs,
        args=args(*_ARGUMENTS.split()[:count]),
        infer=partial(_infer, how),
        reference=partial(_reference, how),
        axes=_axes,
        compute=partial(_compute, how),
        samples=partial(_samples, how, count),
    )


_TABLE_TEXT: Final = ";\nthe logistic function at multiples of 1/24, times 2^16"
lstm_by_table: Final = _layer("qnn.lstm_by_table", _TABLE, 8, "TFLite Micro", _TABLE_TEXT)
lstm_by_series: Final = _layer("qnn.lstm_by_series", _SERIES, 7, "LiteRT", "")
