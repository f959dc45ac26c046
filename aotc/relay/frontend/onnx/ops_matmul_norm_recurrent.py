# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of matrix products, normalization and recurrent layers. Recurrent layers that the
operators nn.lstm, nn.gru and nn.rnn do not support are unrolled, with one product for the inputs of
all steps.

OPS["Gemm"](a, b, c, transB=1)          # nn.bias_add(nn.dense(a, b), c)
OPS["LSTM"](node=node)                  # [Y, Y_h, Y_c]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from aotc.ir import DType, require
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.activations import elu, hard_sigmoid, leaky_relu, softplus, softsign
from aotc.relay.frontend.converter_signatures import Axis, OptionalExpr, converter_parameters
from aotc.relay.frontend.matmul_einsum import einsum, matmul
from aotc.relay.frontend.normalization import (
    batch_norm,
    batch_norm_as_elementwise_arithmetic,
    mean_centered_and_variance,
    normalize_to_zero_mean_unit_variance,
    rms_norm,
    scale_and_shift_channels,
)
from aotc.relay.frontend.onnx.node import Converted, OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.recurrent import Activation, RecurrentState, RecurrentWeights, UnrolledLayer, call_recurrent_op
from aotc.relay.frontend.reductions import p_norm
from aotc.relay.frontend.slice_pad_depth_to_space import select_element
from aotc.relay.frontend.tail_recursion import MAX_UNROLLED_ITERATIONS

_FLOAT32: Final = DType("float32")


def _gemm(a: Expr, b: Expr, c: OptionalExpr = None, *, transA: int, transB: int, alpha: float, beta: float) -> Expr:
    matrices = g.rank(a) == g.rank(b) == 2
    require("onnx-gemm", matrices, lambda: f"Gemm needs matrices, got shapes {g.dims(a)} and {g.dims(b)}")
    if transA:
        a = g.transpose(a, (1, 0))
    if transB:
        units = g.dims(b)[0]
        y = g.call_op("nn.dense", a, b, units=units if isinstance(units, int) else None)
    else:
        y = g.call_op("nn.matmul", a, b, units=None)
    y = g.multiply_by_number(y, alpha)
    if c is None or beta == 0.0:
        return y
    c = g.multiply_by_number(c, beta)
    if g.rank(c) == 1 and g.dims(c)[0] == g.dims(y)[1]:
        return g.call_op("nn.bias_add", y, c, axis=1)
    return g.add(y, c)


# --- normalization


def _batch_normalization(
    x: Expr, scale: Expr, bias: Expr, mean: Expr, var: Expr, *, epsilon: float, momentum: float = 0.9, node: OnnxNode
) -> Converted:
    """Convert BatchNormalization; it is in training mode if an attribute says so, up to version 13 if it has outputs
    other than the first.
    """
    statistics = any(node.needs_output(k) for k in range(1, 5))
    training = statistics if node.since < 14 else bool(node.attrs.get("training_mode"))
    if not training:
        require(
            "onnx-training",
            not statistics,
            "BatchNormalization with statistics as outputs (training mode) is not supported",
        )
        if node.since < 9 and not node.attrs.get("spatial", 1):
            return [_normalize_each_feature(x, scale, bias, mean, var, epsilon)]
        return [batch_norm(x, scale, bias, mean, var, epsilon)]
    require("onnx-norm", bool(node.attrs.get("spatial", 1)), "training of BatchNormalization with spatial=0 is refused")
    # training mode: normalize with the statistics of the batch, and return updated running
    # statistics
    work, wide = g.dtype(mean), g.accumulation_dtype(g.dtype(mean))
    mean, var = g.cast(mean, wide), g.cast(var, wide)
    axes, data = [0, *range(2, g.rank(x))], g.cast(x, wide)
    batch_mean = g.call_reduction("mean", data, axes, False)
    centered = g.sub(data, g.reshape_along_axis(batch_mean, 1, g.rank(x)))
    batch_var = g.call_reduction("mean", g.mul(centered, centered), axes, False)
    y = batch_norm_as_elementwise_arithmetic(wide, x, scale, bias, batch_mean, batch_var, epsilon)
    pairs = ((mean, batch_mean), (var, batch_var))
    running_stats = (g.add(g.mul(old, momentum), g.mul(new, 1.0 - momentum)) for old, new in pairs)
    return [y, *(g.cast(value, work) for value in (*running_stats, batch_mean, batch_var))]


def _normalize_each_feature(x: Expr, scale: Expr, bias: Expr, mean: Expr, var: Expr, epsilon: float) -> Expr:
    """Normalize each element of (N, C, ...) with statistics of its own, as `spatial` = 0 demands."""
    sizes = (1, *g.shape(x)[1:])
    scale, bias, mean, var = (g.reshape(v, sizes) for v in (scale, bias, mean, var))
    return g.add(g.mul(g.div(g.sub(x, mean), g.sqrt(g.add(var, epsilon))), scale), bias)


def _layer_normalization(
    x: Expr,
    scale: Expr,
    bias: OptionalExpr = None,
    *,
    axis: Axis = -1,
    epsilon: float,
    stash_type: DType,
    node: OnnxNode,
) -> Converted:
    rank = g.rank(x)
    plain = axis == rank - 1 and g.rank(scale) == 1 and g.dtype(x) == stash_type and g.dims(scale) == g.dims(x)[-1:]
    if (
        plain
        and not node.needs_output(1)
        and not node.needs_output(2)
        and (bias is None or g.dims(bias) == g.dims(scale))
    ):
        beta = bias if bias is not None else g.full(0, g.shape(scale), g.dtype(x))
        y = g.call_op("nn.layer_norm", x, scale, beta, axis=-1, epsilon=epsilon, center=bias is not None)
        return [y, None, None]
    mean, centered, var = mean_centered_and_variance(g.cast(x, stash_type), range(axis, rank))
    inverse = g.div(1.0, g.sqrt(g.add(var, epsilon)))
    y = g.mul(g.cast(g.mul(centered, inverse), g.dtype(x)), scale)
    return [y if bias is None else g.add(y, bias), g.cast(mean, stash_type), g.cast(inverse, stash_type)]


def _group_normalization(
    x: Expr, scale: Expr, bias: Expr, *, num_groups: int, epsilon: float, stash_type: DType = _FLOAT32, node: OnnxNode
) -> Expr:
    """Convert GroupNormalization; scale and bias have one value per group up to version 18 and one
    per channel later.
    """
    shape = g.shape(x)
    fits = num_groups >= 1 and shape[1] % num_groups == 0
    require("onnx-norm", fits, f"{shape[1]} channels cannot be divided into {num_groups} groups")
    by_group = node.since < 21 and g.dim(scale, 0) == num_groups
    if not by_group and g.dtype(x) == stash_type:
        return g.call_op("nn.group_norm", x, scale, bias, num_groups=num_groups, axis=1, epsilon=epsilon)
    data = g.cast(g.reshape(x, (shape[0], num_groups, -1)), stash_type)
    y = g.cast(normalize_to_zero_mean_unit_variance(data, (2,), epsilon), g.dtype(x))
    if by_group:
        return g.reshape(scale_and_shift_channels(y, scale, bias), shape)
    return scale_and_shift_channels(g.reshape(y, shape), scale, bias)


def _rms_normalization(x: Expr, scale: Expr, *, axis: Axis = -1, epsilon: float, stash_type: DType) -> Expr:
    inner = g.rank(x) - axis
    if g.dtype(x) == stash_type and g.dims(scale) == g.dims(x)[axis:]:
        return rms_norm(x, scale, inner, epsilon)
    return g.mul(g.cast(rms_norm(g.cast(x, stash_type), None, inner, epsilon), g.dtype(x)), scale)


def _lp_normalization(x: Expr, *, axis: Axis = -1, p: int = 2) -> Expr:
    require("onnx-norm", p in (1, 2), f"LpNormalization with p = {p} is not supported")

    def divide_by_norm(y: Expr) -> Expr:
        size = p_norm(y, p, lambda powers: g.call_reduction("sum", powers, (axis,), True))
        # the norm of zeros is 0: avoid 0 / 0
        return g.where(g.equal(size, 0.0), g.constant(0.0, g.dtype(y)), g.div(y, size))

    return g.call_with_narrow_floats_in_float32(divide_by_norm, x)


def _mean_variance_normalization(x: Expr, *, axes: list[int] | None = None) -> Expr:
    _, centered, var = mean_centered_and_variance(x, [g.normalize_axis(a, g.rank(x)) for a in axes or (0, 2, 3)])
    return g.cast(g.div(centered, g.add(g.sqrt(var), 1e-9)), g.dtype(x))


# --- recurrent layers


#: Activation functions by lower-case name; parameter defaults are ONNX's default values of
#: activation_alpha and activation_beta.
_ACTIVATION_FUNCTIONS: Final[Mapping[str, Callable[..., Expr]]] = {
    "relu": lambda x: g.call_op("nn.relu", x),
    "tanh": g.tanh,
    "sigmoid": g.sigmoid,
    **{f.__name__.replace("_", ""): f for f in (elu, hard_sigmoid, leaky_relu, softplus, softsign)},
    "affine": lambda x, alpha=1.0, beta=0.0: g.add(g.mul(x, alpha), beta),
    "thresholdedrelu": lambda x, alpha=1.0: g.where(g.less(x, alpha), 0.0, x),
    "scaledtanh": lambda x, alpha=1.0, beta=1.0: g.mul(g.tanh(g.mul(x, beta)), alpha),
}


def _activations_per_direction(
    node: OnnxNode, defaults: Sequence[str], direction_count: int
) -> list[tuple[list[str], list[Activation]]]:
    """Return for each direction of a recurrent layer the lower-case names of its activations, and
    the functions that compute them.
    """
    step = len(defaults)
    names = list(node.attrs.get("activations") or [*defaults] * direction_count)
    # the default value that the schema of RNN states is for two directions
    if names == ["Tanh", "Tanh"] and step == 1:
        names = names[:direction_count]
    fits = len(names) == step * direction_count
    require("onnx-recurrent", fits, f"{len(names)} activations do not match {direction_count} directions")
    activations: list[Activation] = []
    for k, name in enumerate(names):
        require("onnx-recurrent", name.lower() in _ACTIVATION_FUNCTIONS, f"the activation {name!r} is not known")
        function = _ACTIVATION_FUNCTIONS[name.lower()]
        given = {p.name: node.attrs.get(f"activation_{p.name}", [])[k : k + 1] for p in converter_parameters(function)}
        activations.append(partial(function, **{number: values[0] for number, values in given.items() if values}))
    low = [name.lower() for name in names]
    return [(low[k : k + step], activations[k : k + step]) for k in range(0, len(activations), step)]


#: By operator, the permutation from ONNX's gate order to that of nn.rnn, nn.gru and nn.lstm, and
#: ONNX's default activations.
_GATE_ORDERS_AND_ACTIVATIONS: Final = {
    "RNN": ((0,), ("Tanh",)),
    "GRU": ((1, 0, 2), ("Sigmoid", "Tanh")),
    "LSTM": ((0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh")),
}


def _direction_weights(node: OnnxNode, gate_count: int, direction: int) -> RecurrentWeights:
    w, r = select_element(node[1], 0, direction), select_element(node[2], 0, direction)
    bias, rows = node.optional_input(3), gate_count * g.shape(r)[1]
    both = g.full(0, (2 * rows,), g.dtype(w)) if bias is None else select_element(bias, 0, direction)
    return RecurrentWeights(w, r, *g.split(both, [rows, rows], 0))


def _initial_state_or_zeros(
    states: OptionalExpr, direction: int, shape: tuple[int, int], batch_first: bool, dtype: str
) -> Expr:
    """Return the initial state of one direction: zero if the input is omitted."""
    if states is None:
        return g.full(0, shape, dtype)
    return select_element(g.transpose(states, (1, 0, 2)) if batch_first else states, 0, direction)


def _is_supported_by_recurrent_op(node: OnnxNode, activation_names: list[str], lengths: OptionalExpr) -> bool:
    """Return True if nn.lstm, nn.gru or nn.rnn can compute a direction of the layer: default
    activations, no clipping, no peepholes, no coupled gates, all sequences of full length.
    """
    usual = activation_names == [n.lower() for n in _GATE_ORDERS_AND_ACTIVATIONS[node.op_type][1]] or (
        node.op_type == "RNN" and activation_names == ["relu"]
    )
    reset = node.op_type != "GRU" or node.attrs.get("linear_before_reset")
    other = "clip" in node.attrs or node.attrs.get("input_forget") or node.optional_input(7) is not None
    return bool(usual and reset and not other and lengths is None)


def _make_unrolled_layer_of_direction(
    node: OnnxNode, direction: int, weights: RecurrentWeights, gate_activations: Sequence[Activation]
) -> UnrolledLayer:
    peephole = node.optional_input(7) if node.op_type == "LSTM" else None
    peepholes = (
        () if peephole is None else g.split(select_element(peephole, 0, direction), [g.shape(weights.r)[1]] * 3, 0)
    )
    coupled, reset_after = (bool(node.attrs.get(name)) for name in ("input_forget", "linear_before_reset"))
    order, clip = _GATE_ORDERS_AND_ACTIVATIONS[node.op_type][0], node.attrs.get("clip")
    return UnrolledLayer(node.op_type.lower(), weights, gate_activations, order, clip, peepholes, coupled, reset_after)


def _check_recurrent_weight_shapes(node: OnnxNode, gate_count: int, direction_count: int) -> None:
    """Raise AotcError (code "onnx-recurrent") if the weights or the bias of a recurrent layer
    contradict each other, the input or an attribute.
    """
    hidden, inputs = g.dim(node[2], 2, "the recurrent weights"), g.dim(node[0], 2)
    stated, way = node.attrs.get("hidden_size"), node.attrs.get("direction", "forward")
    text = f"hidden_size is {stated}, the recurrent weights have shape {g.dims(node[2])}, for a hidden size of {hidden}"
    require("onnx-recurrent", stated in (None, hidden), text)
    rows = gate_count * hidden
    expected: dict[int, tuple[str, tuple[int, ...]]] = {
        1: ("W", (direction_count, rows, inputs)),
        2: ("R", (direction_count, rows, hidden)),
        3: ("B", (direction_count, 2 * rows)),
    }
    for place, (name, shape) in expected.items():
        if (given := node.optional_input(place)) is not None:
            text = f"{name} of {node.op_type} has shape {g.dims(given)}; direction {way!r}, {inputs} inputs and a "
            text += f"hidden size of {hidden} need {shape}"
            require("onnx-recurrent", g.dims(given) == shape, text)


_REVERSED_BY_DIRECTION: Final = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _convert_recurrent(*, direction: str = "forward", layout: bool = False, node: OnnxNode) -> list[Expr]:
    return convert_recurrent(node, direction, layout)


def convert_recurrent(
    node: OnnxNode,
    direction: str,
    layout: bool = False,
    products: Callable[[int], tuple[Activation, Activation]] | None = None,
) -> list[Expr]:
    """Convert a recurrent layer (RNN, GRU or LSTM) in one or both directions; return the outputs Y,
    Y_h and, for LSTM, Y_c.

    products    for an LSTM, a function that returns for a direction the functions in place of the products with the
                weights of the inputs and of the state
    """
    (order, usual), x = _GATE_ORDERS_AND_ACTIVATIONS[node.op_type], node[0]
    states = 2 if node.op_type == "LSTM" else 1
    x = g.transpose(x, (1, 0, 2)) if layout else x
    length, batch, _ = g.shape(x)
    require("onnx-recurrent", length > 0, "a sequence of length 0 is not supported")
    directions = _REVERSED_BY_DIRECTION.get(direction.lower(), ())
    require("onnx-recurrent", bool(directions), f"direction {direction!r} is not known")
    _check_recurrent_weight_shapes(node, len(order), len(directions))
    lengths = _sequence_lengths_unless_all_full(node.optional_input(4), length, batch)
    acts = _activations_per_direction(node, usual, len(directions))
    outputs: list[Expr] = []
    finals: list[RecurrentState] = []
    for k, ((names, functions), backwards) in enumerate(zip(acts, directions, strict=True)):
        weights = _direction_weights(node, len(order), k)
        shape = batch, g.shape(weights.r)[1]
        state = [
            _initial_state_or_zeros(node.optional_input(5 + s), k, shape, layout, g.dtype(x)) for s in range(states)
        ]
        own = products(k) if products is not None else None
        if own is None and _is_supported_by_recurrent_op(node, names, lengths):
            activation = {"activation": names[0]} if node.op_type == "RNN" else {}
            ordered = weights.with_gate_order(order)
            y, last = call_recurrent_op(node.op_type.lower(), x, ordered, state, reverse=backwards, **activation)
        else:
            layer = replace(_make_unrolled_layer_of_direction(node, k, weights, functions), products=own)
            if own is not None and lengths is None and length > MAX_UNROLLED_ITERATIONS and node.has_loops:
                y, last = layer.loop_over_steps(x, state, node.functions, backwards)
            else:
                y, last = layer.unroll_over_steps(x, state, lengths, backwards)
        outputs.append(y)
        finals.append(last)
    # Y is (steps, directions, batch, hidden), the final states are (directions, batch, hidden)
    y, ends = g.stack(outputs, 1), [g.stack(states, 0) for states in zip(*finals, strict=True)]
    if layout:
        return [g.transpose(y, (2, 0, 1, 3)), *(g.transpose(s, (1, 0, 2)) for s in ends)]
    return [y, *ends]


def _sequence_lengths_unless_all_full(lengths: OptionalExpr, step_count: int, batch: int) -> OptionalExpr:
    """Return the sequence lengths as int32 of shape (batch, 1), or None if all sequences are known
    to have full length.
    """
    if lengths is None or (isinstance(lengths, Constant) and bool((lengths.data == step_count).all())):
        return None
    return g.reshape(g.cast(lengths, "int32"), (batch, 1))


OPS: Table = {
    **table_by_function_name(_batch_normalization, _gemm, _group_normalization, _layer_normalization),
    **table_by_function_name(_lp_normalization, _mean_variance_normalization),
    "Einsum": lambda *operands, equation: einsum(equation, operands),
    "InstanceNormalization": lambda *given, epsilon: g.call_op("nn.instance_norm", *given, axis=1, epsilon=epsilon),
    "LRN": lambda x, **attributes: g.call_op("nn.lrn", x, axis=1, **attributes),
    "MatMul": matmul,
    "RMSNormalization": _rms_normalization,
    **dict.fromkeys(_GATE_ORDERS_AND_ACTIVATIONS, _convert_recurrent),
}
