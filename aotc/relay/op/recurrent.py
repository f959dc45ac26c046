# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers over whole sequences: nn.lstm, nn.gru, nn.rnn.

lstm(x, w, r, bias, h, c)              # x[50, 1, 40], w[40, 512], r[128, 512] -> (y[50, 1, 128], h, c)

An operator computes one direction of one layer. Weights have the shape (inputs, gates * hidden), or
are packed by AlterOpLayout: in blocks of units, (hidden / block, inputs, gates, block), or in
blocks of columns, the last one padded, (ceil(gates * hidden / block), inputs, 1, block).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, Dim, DType, TensorType, TupleType, Type, Types, declare_arguments, frozen, require
from aotc.relay.op.elementwise_op_constructors import (
    NumpyFn,
    dispatch_scalar_or_array,
    greater,
    intrinsic_for_scalars_and_arrays,
)
from aotc.relay.op.elementwise_unary import sigmoid_of_scalar
from aotc.relay.op.opdef import Accuracy, Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import (
    may_be_equal_dims,
    random_array,
    require_known_name,
    require_tensor_type,
    shape_text,
)
from aotc.tir import Target, Tensor, const, te
from aotc.tir.schedule.algorithms.cpu_recurrence import Cell, RecurrentLayer, Scalars, cpu_recurrence
from aotc.tir.schedule.algorithms.gpu_persistent_recurrence import persistent_gpu_recurrence

RECURRENT_DTYPES: Final = ("float32", "float64")


class RecurrentAttrs(Attrs):
    """`reverse`: iterate from the last time step to the first; outputs remain at the index of their
    step.
    """

    reverse: bool = False


class RNNAttrs(RecurrentAttrs):
    """`activation`: "tanh" or "relu"."""

    activation: str = "tanh"


@frozen
class _RecurrentKind:
    """Properties of a kind of recurrent layer: RNN, GRU or LSTM.

    gates       number of gates
    states      number of states
    extras      number of further vector arguments (hidden)
    cell        returns a function that computes the new states of an element, for scalar expressions or
                arrays, from its parts of x W + b, its parts of h R, its states and its extras
    """

    gates: int
    states: int
    extras: int
    cell: Callable[[Any], Cell]


_tanh: Final = intrinsic_for_scalars_and_arrays("tanh")
_sigmoid: Final = dispatch_scalar_or_array(sigmoid_of_scalar, lambda x: 1 / (1 + np.exp(-x)))
_RNN_ACTIVATIONS: Final[dict[str, NumpyFn]] = {"tanh": _tanh, "relu": lambda x: greater(x, 0)}


def _lstm_cell(input_gates: Scalars, recurrent_gates: Scalars, states: Scalars, extras: Scalars) -> Sequence[Scalar]:
    i, f, g, o = (x + h for x, h in zip(input_gates, recurrent_gates, strict=True))
    c = _sigmoid(f) * states[1] + _sigmoid(i) * _tanh(g)
    return _sigmoid(o) * _tanh(c), c


def _gru_cell(input_gates: Scalars, recurrent_gates: Scalars, states: Scalars, extras: Scalars) -> Sequence[Scalar]:
    r, z = _sigmoid(input_gates[0] + recurrent_gates[0]), _sigmoid(input_gates[1] + recurrent_gates[1])
    n = _tanh(input_gates[2] + r * (recurrent_gates[2] + extras[0]))
    return ((1.0 - z) * n + z * states[0],)


def _rnn_cell_function(a: RNNAttrs) -> Cell:
    activation = _RNN_ACTIVATIONS[a.activation]
    return lambda xs, hs, states, extras: (activation(xs[0] + hs[0]),)


_LSTM_KIND: Final = _RecurrentKind(4, 2, 0, lambda _: _lstm_cell)
_GRU_KIND: Final = _RecurrentKind(3, 1, 1, lambda _: _gru_cell)
_RNN_KIND: Final = _RecurrentKind(1, 1, 0, _rnn_cell_function)


def _check_recurrent_weight(ty: Type, name: str, rows: Dim, gates: int, hidden: int, dtype: DType) -> None:
    """Raise AotcError unless a weight is (rows, gates * hidden) or its packed form in blocks of
    units or columns.
    """
    weight = require_tensor_type(ty, name)
    shape = weight.shape
    expected_shape: tuple[Dim, ...] = (rows, gates * hidden)
    block = shape[3] if weight.rank == 4 else 0
    if isinstance(block, int) and block > 0 and _is_packed_in_column_blocks(weight, gates, hidden):
        expected_shape = (-(-gates * hidden // block), rows, 1, block)
    elif isinstance(block, int) and block > 0 and hidden % block == 0:
        expected_shape = (hidden // block, rows, gates, block)
    fits = len(shape) == len(expected_shape) and all(map(may_be_equal_dims, shape, expected_shape))
    require(
        "recurrent.weight",
        fits,
        lambda: f"{name} must have shape {shape_text(expected_shape)}, got {shape_text(shape)}",
    )
    require("dtype", weight.dtype == dtype, lambda: f"{name} must be {dtype}, got {weight.dtype}")


def _is_packed_in_column_blocks(weight: TensorType | Tensor, gates: int, hidden: int) -> bool:
    """Return True if a packed weight has blocks of columns of all gates, rather than blocks of
    units.
    """
    _, _, parts, block = weight.shape
    return parts == 1 and (gates > 1 or (isinstance(block, int) and hidden % block > 0))


def _infer_recurrent_type(kind: _RecurrentKind, a: RecurrentAttrs, types: Types) -> Type:
    data, r = require_tensor_type(types[0], "data"), require_tensor_type(types[2], "the recurrent weight")
    require(
        "dtype",
        str(data.dtype) in RECURRENT_DTYPES,
        lambda: f"data must be one of {', '.join(RECURRENT_DTYPES)}, got {data.dtype}",
    )
    require("recurrent.data", data.rank == 3, lambda: f"data must be (steps, batch, inputs), got {data}")
    require("recurrent.weight", r.rank in (2, 4), lambda: f"the recurrent weight must be a matrix, got {r}")
    steps, batch, inputs = data.shape
    require("recurrent.steps", steps != 0, "data has no steps")
    hidden = r.shape[r.rank // 2 - 1]
    require("recurrent.hidden", isinstance(hidden, int), lambda: f"the size of the state must be known, got {r}")
    assert isinstance(hidden, int)
    _check_recurrent_weight(types[1], "the weight", inputs, kind.gates, hidden, data.dtype)
    _check_recurrent_weight(types[2], "the recurrent weight", hidden, kind.gates, hidden, data.dtype)
    state = TensorType((batch, hidden), data.dtype)
    vector = TensorType((hidden,), data.dtype)
    expected_types = [TensorType((kind.gates * hidden,), data.dtype), *[state] * kind.states, *[vector] * kind.extras]
    for number, (ty, want) in enumerate(zip(types[3:], expected_types, strict=True), 3):
        given = require_tensor_type(ty)
        same = (given.dtype, given.rank) == (want.dtype, want.rank) and all(
            map(may_be_equal_dims, given.shape, want.shape)
        )
        require("recurrent.argument", same, f"argument {number} must be {want}, got {ty}")
    if isinstance(a, RNNAttrs):
        require_known_name("recurrent.activation", "activation", a.activation, _RNN_ACTIVATIONS)
    return TupleType((TensorType((steps, batch, hidden), data.dtype), *[state] * kind.states))


def _unpack_recurrent_weight(weight: Array, columns: int) -> Array:
    """Return a weight unpacked to (rows, columns)."""
    if weight.ndim == 2:
        return weight
    blocks, rows, parts, block = weight.shape
    return np.moveaxis(weight, 0, 2).reshape(rows, parts * blocks * block)[:, :columns]


def _recurrent_reference(
    kind: _RecurrentKind,
    a: RecurrentAttrs,
    x: Array,
    weight: Array,
    recurrent_weight: Array,
    bias: Array,
    *states_and_extras: Array,
) -> Any:
    cell: Any = kind.cell(a)
    recurrent_weight = _unpack_recurrent_weight(recurrent_weight, bias.size)
    states, extras = list(states_and_extras[: kind.states]), states_and_extras[kind.states :]
    outputs = np.empty((*x.shape[:2], recurrent_weight.shape[0]), x.dtype)
    products = x @ _unpack_recurrent_weight(weight, bias.size) + bias
    for t in reversed(range(len(x))) if a.reverse else range(len(x)):
        parts = (np.split(p, kind.gates, axis=1) for p in (products[t], states[0] @ recurrent_weight))
        states = list(cell(*parts, states, extras))
        outputs[t] = states[0]
    return (outputs, *states)


def _recurrence_program(layer: RecurrentLayer, target: Target) -> te.ExternProgram:
    return persistent_gpu_recurrence(layer, target) or cpu_recurrence(layer, target)


def _compute_recurrent(kind: _RecurrentKind, a: RecurrentAttrs, *args: Tensor) -> tuple[Tensor, ...]:
    x, w, r, *_ = args
    steps, batch, inputs = x.shape
    layer = RecurrentLayer(
        dtype=x.dtype,
        steps=steps,
        batch=batch,
        inputs=inputs,
        hidden=r.shape[r.rank // 2 - 1],
        gates=kind.gates,
        states=kind.states,
        extras=kind.extras,
        reverse=a.reverse,
        blocks=(w.shape[3] if w.rank == 4 else 0, r.shape[3] if r.rank == 4 else 0),
        by_columns=r.rank == w.rank == 4 and _is_packed_in_column_blocks(r, kind.gates, r.shape[1]),
        cell=kind.cell(a),
    )
    state = ((batch, layer.hidden), x.dtype)
    shapes = [((steps, batch, layer.hidden), x.dtype), *[state] * kind.states]
    if 0 in (batch, layer.hidden):  # there is nothing to compute
        return tuple(te.compute(shape, lambda *_: const(0).astype(x.dtype), "layer") for shape, _ in shapes)
    return te.extern_for_target("layer", shapes, args, partial(_recurrence_program, layer), macs=layer.macs)


def _recurrent_test_samples(kind: _RecurrentKind, attrs_class: type[RecurrentAttrs]) -> Samples:
    def random_recurrent_test_sample(
        steps: int,
        batch: int,
        inputs: int,
        hidden: int,
        weight_block: int = 0,
        dtype: str = "float32",
        blocks_span_gates: bool = False,
        **rest: Any,
    ) -> Sample:
        columns = kind.gates * hidden
        shapes = [(inputs, columns), (hidden, columns), (columns,), *[(batch, hidden)] * kind.states]
        shapes += [(hidden,)] * kind.extras
        w, r, *extra_args = (random_array(s, dtype, seed=k) / 2 for k, s in enumerate(shapes, 1))
        if weight_block:
            parts = 1 if blocks_span_gates else kind.gates
            padded = (np.pad(m, ((0, 0), (0, -columns % weight_block if blocks_span_gates else 0))) for m in (w, r))
            split = (m.reshape(len(m), parts, -1, weight_block) for m in padded)
            w, r = (np.ascontiguousarray(np.moveaxis(m, 2, 0)) for m in split)
        args = (random_array((steps, batch, inputs), dtype), w, r, *extra_args)
        return Sample(args=args, attrs=attrs_class(**rest), accuracy=Accuracy.LOOSE)

    yield random_recurrent_test_sample(1, 1, 3, 4)
    yield random_recurrent_test_sample(21, 1, 5, 12)
    yield random_recurrent_test_sample(19, 1, 40, 64, weight_block=32)
    yield random_recurrent_test_sample(7, 3, 4, 8, weight_block=4, reverse=True)
    yield random_recurrent_test_sample(18, 1, 5, 23, weight_block=16, blocks_span_gates=True)
    yield random_recurrent_test_sample(6, 2, 3, 13, weight_block=24, blocks_span_gates=True, reverse=True)
    yield random_recurrent_test_sample(30, 1, 2, 3, reverse=True)
    yield random_recurrent_test_sample(5, 14, 6, 5)
    yield random_recurrent_test_sample(4, 2, 3, 6, dtype="float64")
    if attrs_class is RNNAttrs:
        yield random_recurrent_test_sample(9, 1, 3, 5, activation="relu")


def _recurrent_op(
    name: str, kind: _RecurrentKind, parameters: str, doc: str, attrs_class: type[RecurrentAttrs] = RecurrentAttrs
) -> OpDef:
    return OpDef(
        name=name,
        doc=doc,
        attrs=attrs_class,
        args=declare_arguments(*parameters.split()[: 4 + kind.states + kind.extras]),
        order=parameters,
        infer=partial(_infer_recurrent_type, kind),
        reference=partial(_recurrent_reference, kind),
        compute=partial(_compute_recurrent, kind),
        samples=partial(_recurrent_test_samples, kind, attrs_class),
    )


lstm: Final = _recurrent_op(
    "nn.lstm",
    _LSTM_KIND,
    "data weight recurrent bias h c reverse",
    """A layer of long short-term memory (Hochreiter and Schmidhuber, 1997): (outputs, last h, last c).

    data (steps, batch, inputs); weights (inputs, 4 * hidden) and (hidden, 4 * hidden), gates in the order input,
    forget, cell, output; bias (4 * hidden); h, c (batch, hidden).
    """,
)
gru: Final = _recurrent_op(
    "nn.gru",
    _GRU_KIND,
    "data weight recurrent bias h inner reverse",
    """A layer of gated recurrent units (Cho et al., 2014): (outputs, last h).

    data (steps, batch, inputs); weights (inputs, 3 * hidden) and (hidden, 3 * hidden), gates in the order reset,
    update, new; bias (3 * hidden); h (batch, hidden); `inner` (hidden) is added to the new gate's part of the state's
    product before the reset gate scales that.
    """,
)
rnn: Final = _recurrent_op(
    "nn.rnn",
    _RNN_KIND,
    "data weight recurrent bias h activation reverse",
    "A layer of h = activation(x W + bias + h R): (outputs, last h); shapes as in `lstm`, with one gate.",
    RNNAttrs,
)
