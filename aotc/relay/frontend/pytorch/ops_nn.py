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

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import activations
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Maybe
from aotc.relay.frontend.matmul_einsum import einsum, matmul
from aotc.relay.frontend.normalization import batch_norm, per_channel, rms_norm, standardized
from aotc.relay.frontend.pytorch import converter_values as tv
from aotc.relay.frontend.pytorch.converter_values import Table, Value
from aotc.relay.frontend.pytorch.ops_shape import swap
from aotc.relay.frontend.recurrent import Activation, State, Unrolled, Weights, linear, whole_layer


def _affine(x: Expr, weight: Maybe, bias: Maybe, count: int | None = None) -> tuple[Expr, Expr]:
    """Return scale and offset of a normalization; a missing one is replaced by ones or zeros,
    `count` of them or, if that is None, one per channel of `x`.
    """
    sizes = (tv.size(x, 1) if count is None else count,)
    scale = weight if weight is not None else g.filled(1, sizes, g.dtype(x))
    return scale, bias if bias is not None else g.filled(0, sizes, g.dtype(x))


# --- normalization


def _batch_norm(
    x: Expr, weight: Maybe, bias: Maybe, training: bool = False, eps: float = 1e-5, **statistics: Any
) -> Expr:
    scale, offset = _affine(x, weight, bias)
    mean, variance = statistics.get("running_mean"), statistics.get("running_var")
    if mean is None or variance is None:
        return per_channel(standardized(x, [0, *range(2, g.rank(x))], eps), scale, offset)
    if training:
        raise tv.training("batch_norm")
    return batch_norm(x, scale, offset, mean, variance, eps)


def _instance_norm(x: Expr, weight: Maybe, bias: Maybe, use_input_stats: bool, eps: float, **statistics: Any) -> Expr:
    if not use_input_stats:
        return _batch_norm(x, weight, bias, eps=eps, **statistics)
    scale, offset = _affine(x, weight, bias)
    return g.op("nn.instance_norm", x, scale, offset, axis=1, epsilon=eps)


def _group_norm(x: Expr, weight: Maybe = None, bias: Maybe = None, eps: float = 1e-5, **groups: int) -> Expr:
    """Convert group_norm; the remaining keyword argument is the number of groups, whose name
    depends on the overload.
    """
    scale, offset = _affine(x, weight, bias)
    (count,) = groups.values()
    return g.op("nn.group_norm", x, scale, offset, num_groups=count, axis=1, epsilon=eps)


def _layer_norm(x: Expr, normalized_shape: Value, weight: Maybe = None, bias: Maybe = None, eps: float = 1e-5) -> Expr:
    kept = g.rank(x) - len(normalized_shape)
    inner = [tv.size(x, k) for k in range(kept, g.rank(x))]
    count = math.prod(inner)
    scale, offset = (g.flat(v) for v in _affine(x, weight, bias, count))
    data = x if len(inner) == 1 else g.reshape(x, (*tv.shape(x)[:kept], count))
    y = g.op("nn.layer_norm", data, scale, offset, axis=-1, epsilon=eps)
    return y if len(inner) == 1 else g.reshape(y, tv.shape(x))


def _rms_norm(x: Expr, normalized_shape: Value, weight: Maybe = None, eps: float | None = None) -> Expr:
    tiny = eps if eps is not None else float(np.finfo(g.dtype(x).numpy).eps)
    return rms_norm(x, weight, len(normalized_shape), tiny)


def _softmax(name: str, x: Expr, dim: int, dtype: str | None = None) -> Expr:
    y = x if dtype is None else g.cast(x, dtype)
    if not g.rank(y):
        return g.reshape(g.op(name, g.reshape(y, (1,)), axis=0), ())
    return g.op(name, y, axis=tv.axis(dim, y))


# --- products


def _linear(x: Expr, weight: Expr, bias: Maybe = None) -> Expr:
    if g.rank(weight) == 1:
        y = matmul(x, weight)
        return y if bias is None else g.add(y, bias)
    y = linear(x if g.rank(x) == 2 else g.reshape(x, (-1, tv.size(weight, 1))), weight, bias)
    return y if g.rank(x) == 2 else g.reshape(y, tv.target_shape([*g.dims(x)[:-1], tv.size(weight, 0)]))


def _matmul(x: Expr, other: Expr, /) -> Expr:
    a, b = tv.promoted(x, other)
    return matmul(a, b)


def _addmm(x: Expr, mat1: Expr, mat2: Expr, /, beta: Value = 1, alpha: Value = 1) -> Expr:
    product = g.scaled(matmul(mat1, mat2), alpha)
    return product if beta == 0 else g.add(product, g.scaled(x, beta))


def _outer(x: Expr, vec2: Expr) -> Expr:
    a, b = tv.promoted(x, vec2)
    return g.mul(g.unsqueeze(a, [1]), g.unsqueeze(b, [0]))


# --- attention


def _attention(
    query: Expr,
    key: Expr,
    value: Expr,
    attn_mask: Maybe = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Expr:
    """Build scaled dot-product attention, softmax(query key^T * scale + mask) value; a bool mask is
    True where attention is allowed, any other mask is added.
    """
    if dropout_p:
        raise tv.training("scaled_dot_product_attention with dropout")
    if enable_gqa:
        key, value = (_repeated_heads(t, tv.size(query, -3)) for t in (key, value))
    factor = scale if scale is not None else 1.0 / math.sqrt(tv.size(query, -1))
    scores = g.mul(matmul(query, swap(key, -2, -1)), factor)
    masks = [g.constant(np.tri(tv.size(query, -2), tv.size(key, -2)), "bool")] if is_causal else []
    for mask in masks if attn_mask is None else [*masks, attn_mask]:
        scores = g.where(mask, scores, -math.inf) if g.dtype(mask).is_bool else g.add(scores, mask)
    return matmul(g.op("nn.softmax", scores, axis=-1), value)


def _repeated_heads(x: Expr, heads: int) -> Expr:
    count = heads // tv.size(x, -3)
    return x if count == 1 else g.op("repeat", x, repeats=count, axis=g.rank(x) - 3)


def _multi_head(
    query: Expr, key: Expr, value: Expr, num_head: int, mask: Maybe = None, mask_type: int | None = None, **layer: Any
) -> list[Value]:
    """Convert torch's fused multi-head attention on (batch, length, features); a mask is True where
    attention is not allowed.

    layer   `embed_dim`, weights and biases by torch's names, and the flags for the attention
            weights to return
    """
    features = layer["embed_dim"]
    weights, biases = (g.split(layer[name], [features] * 3, 0) for name in ("qkv_weight", "qkv_bias"))
    batch, length, _ = tv.shape(query)
    width = features // num_head
    q, k, v = (
        swap(g.reshape(_linear(t, w, b), (batch, tv.size(t, 1), num_head, width)), 1, 2)
        for t, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = g.mul(matmul(q, swap(k, -2, -1)), 1.0 / math.sqrt(width))
    if mask is not None:
        wide = g.reshape(mask, (batch, 1, 1, tv.size(mask, 1))) if mask_type == 1 else mask
        scores = g.where(wide, -math.inf, scores)
    probabilities = g.op("nn.softmax", scores, axis=-1)
    mixed = g.reshape(swap(matmul(probabilities, v), 1, 2), (batch, length, features))
    result = _linear(mixed, layer["proj_weight"], layer["proj_bias"])
    if not layer.get("need_weights", True):
        return [result, tv.Absent("the weights of attention")]
    average = layer.get("average_attn_weights", True)
    return [result, g.reduce("mean", probabilities, (1,), False) if average else probabilities]


def _encoder_layer(
    src: Expr, num_heads: int, use_gelu: bool, norm_first: bool, eps: float, mask: Maybe = None, **layer: Any
) -> Expr:
    """Convert torch's fused transformer encoder layer: attention and a feed-forward block of two
    linear layers, each with a residual sum and a normalization.

    layer   arguments of `_multi_head`, and the weights of the linear layers (`ffn_...`) and
            normalizations (`norm_...`)
    """

    def attend(x: Expr) -> Expr:
        result: Expr = _multi_head(x, x, x, num_heads, mask, need_weights=False, **layer)[0]
        return result

    def feed(x: Expr) -> Expr:
        inner = _linear(x, layer["ffn_weight_1"], layer["ffn_bias_1"])
        inner = activations.gelu(inner) if use_gelu else g.op("nn.relu", inner)
        return _linear(inner, layer["ffn_weight_2"], layer["ffn_bias_2"])

    y = src
    for k, step in ((1, attend), (2, feed)):
        scale, offset = layer[f"norm_weight_{k}"], layer[f"norm_bias_{k}"]
        norm = partial(_layer_norm, normalized_shape=[layer["embed_dim"]], weight=scale, bias=offset, eps=eps)
        y = g.add(y, step(norm(y))) if norm_first else norm(g.add(y, step(y)))
    return y


# --- recurrent layers


def _cell(kind: str, act: Sequence[Activation], x: Expr, hx: Value, w_ih: Expr, w_hh: Expr, **biases: Maybe) -> Value:
    """Convert one step of a recurrent layer; `hx` is the previous state, or both states of an LSTM."""
    state = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    order = range(tv.size(w_hh, 0) // tv.size(w_hh, 1))
    weights = Weights(w_ih, w_hh, biases.get("b_ih"), biases.get("b_hh"))
    new = Unrolled(kind, weights, act, order, reset_after=True).step(linear(x, w_ih, weights.wb), state)
    return new if len(new) > 1 else new[0]


def _recurrent(
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
    fits = len(params) == per * num_layers * directions
    require("torch-op", fits, "recurrent layers with projections are not supported")
    if train and dropout:
        raise tv.training("a recurrent layer")
    y = swap(x, 0, 1) if batch_first else x
    require("torch-op", tv.shape(y)[0] > 0, "a sequence of length 0 is not supported")
    weights = [Weights(*params[k : k + per], *biases) for k in range(0, len(params), per)]
    states = list(hx) if kind == "lstm" else [hx]
    first = [[g.squeeze(s, [0]) for s in g.split(state, [1] * len(weights), 0)] for state in states]
    finals: list[State] = []
    for layer in range(0, len(weights), directions):
        columns = []
        for k in range(layer, layer + directions):
            start = [state[k] for state in first]
            column, final = whole_layer(kind, y, weights[k], start, reverse=k > layer, **attributes)
            columns.append(column)
            finals.append(final)
        y = g.concat(columns, 2)
    last = [g.stack(ends, 0) for ends in zip(*finals, strict=True)]
    return [swap(y, 0, 1) if batch_first else y, *last]


OPS: Table = {
    **tv.named(_batch_norm, _group_norm, _instance_norm, _layer_norm, _linear, _outer, _rms_norm),
    "_native_batch_norm_legit_no_training": tv.with_absent(_batch_norm, "the statistics of batch_norm", 2),
    "_native_batch_norm_legit.no_stats": tv.with_absent(_batch_norm, "the statistics of batch_norm", 2),
    "_native_multi_head_attention": _multi_head,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    **{name: partial(_softmax, f"nn.{name}") for name in ("log_softmax", "softmax")},
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _addmm),
    **dict.fromkeys(("bmm", "dot", "matmul", "mm", "mv"), _matmul),
    "einsum": lambda equation, tensors: einsum(equation, tv.promoted(*tensors)),
    **{f"{kind}.input": partial(_recurrent, kind, {}) for kind in ("gru", "lstm")},
    **{f"rnn_{name}.input": partial(_recurrent, "rnn", {"activation": name}) for name in ("relu", "tanh")},
    "gru_cell": partial(_cell, "gru", (g.sigmoid, g.tanh)),
    "lstm_cell": partial(_cell, "lstm", (g.sigmoid, g.tanh, g.tanh)),
    "native_group_norm": tv.with_absent(_group_norm, "the statistics of group_norm", 2),
    "native_layer_norm": tv.with_absent(_layer_norm, "the statistics of layer_norm", 2),
    "rnn_relu_cell": partial(_cell, "rnn", (partial(g.op, "nn.relu"),)),
    "rnn_tanh_cell": partial(_cell, "rnn", (g.tanh,)),
    "scaled_dot_product_attention": _attention,
}
