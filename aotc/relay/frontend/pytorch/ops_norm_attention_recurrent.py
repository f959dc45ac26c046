# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of normalization, softmax, matrix products, attention and recurrent layers.

OPS["linear"](x=a, weight=w, bias=b)    # nn.bias_add(nn.dense(a, w), b)
OPS["lstm.input"](x=a, hx=[h, c], params=[...], ...)    # outputs, last h, last c
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from aotc.ir import is_static, require
from aotc.ir.dimension_conditions import may_be_equal_dims
from aotc.relay.expr import Expr
from aotc.relay.frontend import activations
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.matmul_einsum import einsum, matmul
from aotc.relay.frontend.normalization import (
    batch_norm,
    normalize_to_zero_mean_unit_variance,
    rms_norm,
    scale_and_shift_channels,
)
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.ops_shape import swap_axes
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Table, TorchValue
from aotc.relay.frontend.recurrent import (
    MAX_UNROLLED_STEPS,
    Activation,
    RecurrentState,
    RecurrentWeights,
    UnrolledLayer,
    call_recurrent_op,
    dense_with_bias,
)


def _normalization_scale_and_offset(
    x: Expr, weight: OptionalExpr, bias: OptionalExpr, element_count: int | None = None
) -> tuple[Expr, Expr]:
    """Return scale and offset of a normalization; a missing one is replaced by ones or zeros,
    `element_count` of them or, if that is None, one per channel of `x`.
    """
    sizes = (tv.static_dim(x, 1) if element_count is None else element_count,)
    scale = weight if weight is not None else g.full(1, sizes, g.dtype(x))
    return scale, bias if bias is not None else g.full(0, sizes, g.dtype(x))


# --- normalization


def _batch_norm(
    x: Expr, weight: OptionalExpr, bias: OptionalExpr, training: bool = False, eps: float = 1e-5, **statistics: Any
) -> Expr:
    scale, offset = _normalization_scale_and_offset(x, weight, bias)
    mean, variance = statistics.get("running_mean"), statistics.get("running_var")
    if mean is None or variance is None:
        return scale_and_shift_channels(
            normalize_to_zero_mean_unit_variance(x, [0, *range(2, g.rank(x))], eps), scale, offset
        )
    if training:
        raise tv.training_mode_error("batch_norm")
    return batch_norm(x, scale, offset, mean, variance, eps)


def _instance_norm(
    x: Expr, weight: OptionalExpr, bias: OptionalExpr, use_input_stats: bool, eps: float, **statistics: Any
) -> Expr:
    if not use_input_stats:
        return _batch_norm(x, weight, bias, eps=eps, **statistics)
    scale, offset = _normalization_scale_and_offset(x, weight, bias)
    return g.call_op("nn.instance_norm", x, scale, offset, axis=1, epsilon=eps)


def _group_norm(
    x: Expr, weight: OptionalExpr = None, bias: OptionalExpr = None, eps: float = 1e-5, **groups: int
) -> Expr:
    """Convert group_norm; the remaining keyword argument is the number of groups, whose name
    depends on the overload.
    """
    scale, offset = _normalization_scale_and_offset(x, weight, bias)
    (count,) = groups.values()
    return g.call_op("nn.group_norm", x, scale, offset, num_groups=count, axis=1, epsilon=eps)


def _native_group_norm(
    x: Expr,
    weight: OptionalExpr = None,
    bias: OptionalExpr = None,
    /,
    N: TorchValue = None,
    C: TorchValue = None,
    HxW: TorchValue = None,
    group: int = 1,
    eps: float = 1e-5,
) -> Expr:
    """Convert native_group_norm, whose arguments repeat the extents of its input. Raises AotcError
    (code "torch-shape") if they contradict it.
    """
    n, c, *rest = g.dims(x)
    actual = n, c, math.prod(rest) if is_static(rest) else None
    stated = N, C, HxW
    pairs = zip(stated, actual, strict=True)
    fits = all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
    require("torch-shape", fits, f"N, C and HxW are {stated}, but the input has the shape {g.dims(x)}")
    return _group_norm(x, weight, bias, eps, group=group)


def _check_normalized_shape(x: Expr, normalized_shape: TorchValue, weights: Sequence[OptionalExpr]) -> None:
    """Raise AotcError (code "torch-shape") unless the last axes of `x`, and the weights, have the
    shape `normalized_shape`.
    """
    shape = tuple(tv.to_int_list(normalized_shape))
    fits = bool(shape) and g.dims(x)[-len(shape) :] == shape
    require("torch-shape", fits, f"normalized_shape {shape} does not fit an input of shape {g.dims(x)}")
    for weight in weights:
        found = shape if weight is None else g.dims(weight)
        require("torch-shape", found == shape, f"weights of shape {found} do not fit normalized_shape {shape}")


def _layer_norm(
    x: Expr, normalized_shape: TorchValue, weight: OptionalExpr = None, bias: OptionalExpr = None, eps: float = 1e-5
) -> Expr:
    _check_normalized_shape(x, normalized_shape, (weight, bias))
    outer_rank = g.rank(x) - len(normalized_shape)
    inner = [tv.static_dim(x, k) for k in range(outer_rank, g.rank(x))]
    count = math.prod(inner)
    scale, offset = (g.flatten(v) for v in _normalization_scale_and_offset(x, weight, bias, count))
    data = x if len(inner) == 1 else g.reshape(x, (*tv.static_dims(x)[:outer_rank], count))
    y = g.call_op("nn.layer_norm", data, scale, offset, axis=-1, epsilon=eps)
    return y if len(inner) == 1 else g.reshape(y, tv.static_dims(x))


def _rms_norm(x: Expr, normalized_shape: TorchValue, weight: OptionalExpr = None, eps: float | None = None) -> Expr:
    _check_normalized_shape(x, normalized_shape, (weight,))
    tiny = eps if eps is not None else float(np.finfo(g.dtype(x).numpy).eps)
    return rms_norm(x, weight, len(normalized_shape), tiny)


def _softmax(name: str, x: Expr, dim: int, dtype: str | None = None) -> Expr:
    y = x if dtype is None else g.cast(x, dtype)
    if not g.rank(y):
        return g.reshape(g.call_op(name, g.reshape(y, (1,)), axis=0), ())
    return g.call_op(name, y, axis=tv.normalize_axis(dim, y))


# --- products


def _linear(x: Expr, weight: Expr, bias: OptionalExpr = None) -> Expr:
    if g.rank(weight) == 1:
        y = matmul(x, weight)
        return y if bias is None else g.add(y, bias)
    y = dense_with_bias(x if g.rank(x) == 2 else g.reshape(x, (-1, tv.static_dim(weight, 1))), weight, bias)
    return (
        y
        if g.rank(x) == 2
        else g.reshape(y, tv.reshape_target_with_dynamic_as_minus_one([*g.dims(x)[:-1], tv.static_dim(weight, 0)]))
    )


def _matmul(x: Expr, other: Expr, /) -> Expr:
    a, b = tv.cast_operands_to_promoted_dtype(x, other)
    return matmul(a, b)


def _matmul_of_required_ranks(ranks: tuple[int, int], x: Expr, other: Expr, /) -> Expr:
    """Convert a product of tensors of fixed ranks. Raises AotcError (code "torch-shape") for other
    ranks, and for different static numbers of matrices.
    """
    lhs, rhs = g.dims(x), g.dims(other)
    text = f"shapes {lhs} and {rhs} are not compatible; ranks {ranks[0]} and {ranks[1]} are expected"
    require("torch-shape", (len(lhs), len(rhs)) == ranks, text)
    fits = ranks != (3, 3) or may_be_equal_dims(lhs[0], rhs[0])
    require("torch-shape", fits, f"shapes {lhs} and {rhs} have different numbers of matrices, {lhs[0]} and {rhs[0]}")
    return _matmul(x, other)


def _addmm(x: Expr, mat1: Expr, mat2: Expr, /, beta: TorchValue = 1, alpha: TorchValue = 1) -> Expr:
    product = g.multiply_by_number(matmul(mat1, mat2), alpha)
    return product if beta == 0 else g.add(product, g.multiply_by_number(x, beta))


def _outer(x: Expr, vec2: Expr) -> Expr:
    a, b = tv.cast_operands_to_promoted_dtype(x, vec2)
    return g.mul(g.unsqueeze(a, [1]), g.unsqueeze(b, [0]))


# --- attention


def _scaled_dot_product_attention(
    query: Expr,
    key: Expr,
    value: Expr,
    attn_mask: OptionalExpr = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Expr:
    """Build scaled dot-product attention, softmax(query key^T * scale + mask) value; a bool mask is
    True where attention is allowed, any other mask is added.
    """
    if dropout_p:
        raise tv.training_mode_error("scaled_dot_product_attention with dropout")
    if enable_gqa:
        key, value = (_repeat_heads(t, tv.static_dim(query, -3)) for t in (key, value))
    factor = scale if scale is not None else 1.0 / math.sqrt(tv.static_dim(query, -1))
    scores = g.mul(matmul(query, swap_axes(key, -2, -1)), factor)
    masks = [g.constant(np.tri(tv.static_dim(query, -2), tv.static_dim(key, -2)), "bool")] if is_causal else []
    for mask in masks if attn_mask is None else [*masks, attn_mask]:
        scores = g.where(mask, scores, -math.inf) if g.dtype(mask).is_bool else g.add(scores, mask)
    return matmul(g.call_op("nn.softmax", scores, axis=-1), value)


def _repeat_heads(x: Expr, target_head_count: int) -> Expr:
    count = target_head_count // tv.static_dim(x, -3)
    return x if count == 1 else g.call_op("repeat", x, repeats=count, axis=g.rank(x) - 3)


def _multi_head_attention(
    query: Expr,
    key: Expr,
    value: Expr,
    num_head: int,
    mask: OptionalExpr = None,
    mask_type: int | None = None,
    **layer: Any,
) -> list[TorchValue]:
    """Convert torch's fused multi-head attention on (batch, length, features); a mask is True where
    attention is not allowed.

    layer   `embed_dim`, weights and biases by torch's names, and the flags for the attention
            weights to return
    """
    features = layer["embed_dim"]
    weights, biases = (g.split(layer[name], [features] * 3, 0) for name in ("qkv_weight", "qkv_bias"))
    batch, length, _ = tv.static_dims(query)
    width = features // num_head
    q, k, v = (
        swap_axes(g.reshape(_linear(t, w, b), (batch, tv.static_dim(t, 1), num_head, width)), 1, 2)
        for t, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = g.mul(matmul(q, swap_axes(k, -2, -1)), 1.0 / math.sqrt(width))
    if mask is not None:
        wide = g.reshape(mask, (batch, 1, 1, tv.static_dim(mask, 1))) if mask_type == 1 else mask
        scores = g.where(wide, -math.inf, scores)
    probabilities = g.call_op("nn.softmax", scores, axis=-1)
    mixed = g.reshape(swap_axes(matmul(probabilities, v), 1, 2), (batch, length, features))
    result = _linear(mixed, layer["proj_weight"], layer["proj_bias"])
    if not layer.get("need_weights", True):
        return [result, tv.UncomputedValue("the weights of attention")]
    average = layer.get("average_attn_weights", True)
    return [result, g.call_reduction("mean", probabilities, (1,), False) if average else probabilities]


def _transformer_encoder_layer(
    src: Expr, num_heads: int, use_gelu: bool, norm_first: bool, eps: float, mask: OptionalExpr = None, **layer: Any
) -> Expr:
    """Convert torch's fused transformer encoder layer: attention and a feed-forward block of two
    linear layers, each with a residual sum and a normalization.

    layer   arguments of `_multi_head_attention`, and the weights of the linear layers (`ffn_...`) and
            normalizations (`norm_...`)
    """

    def apply_self_attention(x: Expr) -> Expr:
        result: Expr = _multi_head_attention(x, x, x, num_heads, mask, need_weights=False, **layer)[0]
        return result

    def apply_feed_forward(x: Expr) -> Expr:
        inner = _linear(x, layer["ffn_weight_1"], layer["ffn_bias_1"])
        inner = activations.gelu(inner) if use_gelu else g.call_op("nn.relu", inner)
        return _linear(inner, layer["ffn_weight_2"], layer["ffn_bias_2"])

    y = src
    for k, step in ((1, apply_self_attention), (2, apply_feed_forward)):
        scale, offset = layer[f"norm_weight_{k}"], layer[f"norm_bias_{k}"]
        norm = partial(_layer_norm, normalized_shape=[layer["embed_dim"]], weight=scale, bias=offset, eps=eps)
        y = g.add(y, step(norm(y))) if norm_first else norm(g.add(y, step(y)))
    return y


# --- recurrent layers


def _recurrent_cell(
    kind: str,
    gate_activations: Sequence[Activation],
    x: Expr,
    hx: TorchValue,
    w_ih: Expr,
    w_hh: Expr,
    **biases: OptionalExpr,
) -> TorchValue:
    """Convert one step of a recurrent layer; `hx` is the previous state, or both states of an LSTM."""
    state = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    order = range(tv.static_dim(w_hh, 0) // tv.static_dim(w_hh, 1))
    weights = RecurrentWeights(w_ih, w_hh, biases.get("b_ih"), biases.get("b_hh"))
    new = UnrolledLayer(kind, weights, gate_activations, order, reset_after=True).unrolled_step(
        dense_with_bias(x, w_ih, weights.wb), state
    )
    return new if len(new) > 1 else new[0]


def _lstm_with_projection(
    x: Expr, weights: RecurrentWeights, projection: Expr, state: RecurrentState, *, reverse: bool
) -> tuple[Expr, RecurrentState]:
    """Build one direction of an LSTM whose output is multiplied by a matrix (features, hidden) before
    it is the next step's input, unrolled; x is (steps, batch, inputs). Return the outputs and the
    final states.
    """
    steps, batch, inputs = tv.static_dims(x)
    text = f"an LSTM with projections over a sequence of {steps} steps is not supported (1 to {MAX_UNROLLED_STEPS} are)"
    require("torch-op", steps <= MAX_UNROLLED_STEPS, text)
    products = dense_with_bias(g.reshape(x, (steps * batch, inputs)), weights.w, weights.wb)
    parts = g.split(products, [batch] * steps, 0)
    hidden = tv.static_dim(projection, 1)
    h, c = state
    outputs = []
    for part in reversed(parts) if reverse else parts:
        sums = g.add(part, dense_with_bias(h, weights.r, weights.rb))
        i, f, new, o = g.split(sums, [hidden] * 4, 1)
        c = g.add(g.mul(g.sigmoid(f), c), g.mul(g.sigmoid(i), g.tanh(new)))
        h = dense_with_bias(g.mul(g.sigmoid(o), g.tanh(c)), projection, None)
        outputs.append(g.unsqueeze(h, [0]))
    return g.concat(outputs[::-1] if reverse else outputs, 0), [h, c]


def _recurrent_layers(
    kind: str,
    attributes: dict[str, str],
    x: Expr,
    hx: Any,
    params: Sequence[Expr],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Expr]:
    """Convert a stack of recurrent layers; states are (layers * directions, batch, features)."""
    directions = 2 if bidirectional else 1
    per, biases = (4, ()) if has_biases else (2, (None, None))
    has_projection = kind == "lstm" and len(params) == (per + 1) * num_layers * directions
    expected = (per + has_projection) * num_layers * directions
    text = (
        f"{num_layers} layers in {directions} directions {'with' if has_biases else 'without'} biases have {expected} "
        f"parameters, here they have {len(params)}"
    )
    require("torch-op", len(params) == expected > 0, text)
    projections = params[per :: per + 1] if has_projection else ()
    if has_projection:
        params = [p for k, p in enumerate(params) if k % (per + 1) != per]
    if train and dropout:
        raise tv.training_mode_error("a recurrent layer")
    y = swap_axes(x, 0, 1) if batch_first else x
    require("torch-op", tv.static_dims(y)[0] > 0, "a sequence of length 0 is not supported")
    weights = [RecurrentWeights(*params[k : k + per], *biases) for k in range(0, len(params), per)]
    states = list(hx) if kind == "lstm" else [hx]
    first = [[g.squeeze(s, [0]) for s in g.split(state, [1] * len(weights), 0)] for state in states]
    finals: list[RecurrentState] = []
    for layer in range(0, len(weights), directions):
        columns = []
        for k in range(layer, layer + directions):
            start = [state[k] for state in first]
            if has_projection:
                column, final = _lstm_with_projection(y, weights[k], projections[k], start, reverse=k > layer)
            else:
                column, final = call_recurrent_op(kind, y, weights[k], start, reverse=k > layer, **attributes)
            columns.append(column)
            finals.append(final)
        y = g.concat(columns, 2)
    last = [g.stack(ends, 0) for ends in zip(*finals, strict=True)]
    return [swap_axes(y, 0, 1) if batch_first else y, *last]


OPS: Table = {
    **tv.converter_table_by_function_name(
        _batch_norm, _group_norm, _instance_norm, _layer_norm, _linear, _outer, _rms_norm
    ),
    "_native_batch_norm_legit_no_training": tv.append_uncomputed_results(
        _batch_norm, "the statistics of batch_norm", 2
    ),
    "_native_batch_norm_legit.no_stats": tv.append_uncomputed_results(_batch_norm, "the statistics of batch_norm", 2),
    "_native_multi_head_attention": _multi_head_attention,
    "_transformer_encoder_layer_fwd": _transformer_encoder_layer,
    **{name: partial(_softmax, f"nn.{name}") for name in ("log_softmax", "softmax")},
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _addmm),
    "bmm": partial(_matmul_of_required_ranks, (3, 3)),
    "dot": partial(_matmul_of_required_ranks, (1, 1)),
    "matmul": _matmul,
    "mm": partial(_matmul_of_required_ranks, (2, 2)),
    "mv": partial(_matmul_of_required_ranks, (2, 1)),
    "einsum": lambda equation, tensors: einsum(equation, tv.cast_operands_to_promoted_dtype(*tensors)),
    **{f"{kind}.input": partial(_recurrent_layers, kind, {}) for kind in ("gru", "lstm")},
    **{f"rnn_{name}.input": partial(_recurrent_layers, "rnn", {"activation": name}) for name in ("relu", "tanh")},
    "gru_cell": partial(_recurrent_cell, "gru", (g.sigmoid, g.tanh)),
    "lstm_cell": partial(_recurrent_cell, "lstm", (g.sigmoid, g.tanh, g.tanh)),
    "native_group_norm": tv.append_uncomputed_results(_native_group_norm, "the statistics of group_norm", 2),
    "native_layer_norm": tv.append_uncomputed_results(_layer_norm, "the statistics of layer_norm", 2),
    "rnn_relu_cell": partial(_recurrent_cell, "rnn", (partial(g.call_op, "nn.relu"),)),
    "rnn_tanh_cell": partial(_recurrent_cell, "rnn", (g.tanh,)),
    "scaled_dot_product_attention": _scaled_dot_product_attention,
}
