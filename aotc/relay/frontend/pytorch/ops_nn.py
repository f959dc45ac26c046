# SPDX-License-Identifier: Apache-2.0
"""Converters of normalisations, softmax, matrix products and attention.

OPS["linear"](x=a, weight=w, bias=b)    # nn.bias_add(nn.dense(a, w), b)
"""

from __future__ import annotations

import math

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import activations
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.normalisation import batch_norm, per_channel, standardized
from aotc.relay.frontend.products import einsum, matmul
from aotc.relay.frontend.pytorch import values as tv
from aotc.relay.frontend.pytorch.ops_shape import swap
from aotc.relay.frontend.pytorch.values import Converter, Table, Value


def _affine(weight: Expr | None, bias: Expr | None, count: int, dtype: str) -> tuple[Expr, Expr]:
    """Scale and offset, ones and zeros where they are missing."""
    scale = weight if weight is not None else g.filled(1, (count,), dtype)
    return scale, bias if bias is not None else g.filled(0, (count,), dtype)


# --- normalisation


def _batch_norm(
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    running_mean: Expr | None = None,
    running_var: Expr | None = None,
    training: bool = False,
    eps: float = 1e-5,
) -> Expr:
    scale, offset = _affine(weight, bias, tv.size(x, 1), g.dtype(x))
    if running_mean is None or running_var is None:
        return per_channel(standardized(x, [0, *range(2, g.rank(x))], eps), scale, offset)
    if training:
        raise _training("batch_norm")
    return batch_norm(x, scale, offset, running_mean, running_var, eps)


def _training(name: str) -> AotcError:
    hint = "call .eval() on the module before tracing or exporting it"
    return AotcError("torch-training", f"{name} is in training mode", hint=hint)


def _instance_norm(
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    running_mean: Expr | None,
    running_var: Expr | None,
    use_input_stats: bool,
    eps: float,
) -> Expr:
    if not use_input_stats:
        return _batch_norm(x, weight, bias, running_mean, running_var, False, eps)
    scale, offset = _affine(weight, bias, tv.size(x, 1), g.dtype(x))
    return g.op("nn.instance_norm", x, scale, offset, axis=1, epsilon=eps)


def _group_norm(
    x: Expr, num_groups: int, weight: Expr | None = None, bias: Expr | None = None, eps: float = 1e-5
) -> Expr:
    scale, offset = _affine(weight, bias, tv.size(x, 1), g.dtype(x))
    return g.op("nn.group_norm", x, scale, offset, num_groups=num_groups, axis=1, epsilon=eps)


def _layer_norm(
    x: Expr, normalized_shape: Value, weight: Expr | None = None, bias: Expr | None = None, eps: float = 1e-5
) -> Expr:
    kept = g.rank(x) - len(normalized_shape)
    inner = [tv.size(x, k) for k in range(kept, g.rank(x))]
    count = math.prod(inner)
    scale, offset = (g.reshape(v, (-1,)) for v in _affine(weight, bias, count, g.dtype(x)))
    if len(inner) == 1:
        return g.op("nn.layer_norm", x, scale, offset, axis=-1, epsilon=eps)
    flat = g.op("nn.layer_norm", g.reshape(x, (*tv.shape(x)[:kept], count)), scale, offset, axis=-1, epsilon=eps)
    return g.reshape(flat, tv.shape(x))


def _rms_norm(x: Expr, normalized_shape: Value, weight: Expr | None = None, eps: float | None = None) -> Expr:
    axes = range(g.rank(x) - len(normalized_shape), g.rank(x))
    tiny = eps if eps is not None else float(np.finfo(g.dtype(x).numpy).eps)
    y = g.mul(x, g.op("rsqrt", g.add(g.reduce("mean", g.mul(x, x), axes, True), tiny)))
    return y if weight is None else g.mul(y, weight)


def _softmax(name: str) -> Converter:
    def convert(x: Expr, dim: int, dtype: str | None = None) -> Expr:
        y = x if dtype is None else g.cast(x, dtype)
        if not g.rank(y):
            return g.reshape(g.op(name, g.reshape(y, (1,)), axis=0), ())
        return g.op(name, y, axis=tv.axis(dim, y))

    return convert


# --- products


def _linear(x: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    if g.rank(weight) == 1:
        y = matmul(x, weight)
        return y if bias is None else g.add(y, bias)
    units, inner = tv.shape(weight)
    flat = x if g.rank(x) == 2 else g.reshape(x, (-1, inner))
    y = g.op("nn.dense", flat, weight, units=units)
    if bias is not None:
        y = g.op("nn.bias_add", y, bias, axis=-1)
    if g.rank(x) == 2:
        return y
    return g.reshape(y, tv.target_shape([*g.dims(x)[:-1], units]))


def _matmul(x: Expr, other: Expr) -> Expr:
    a, b = tv.promoted(x, other)
    return matmul(a, b)


def _addmm(x: Expr, mat1: Expr, mat2: Expr, beta: Value = 1, alpha: Value = 1) -> Expr:
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
    attn_mask: Expr | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Expr:
    """softmax(query key^T * scale + mask) value; masks are True where attention is allowed, or are added."""
    if dropout_p:
        raise _training("scaled_dot_product_attention with dropout")
    if enable_gqa:
        key, value = (_repeated_heads(t, tv.size(query, -3)) for t in (key, value))
    factor = scale if scale is not None else 1.0 / math.sqrt(tv.size(query, -1))
    scores = g.mul(matmul(query, swap(key, -2, -1)), factor)
    if is_causal:
        rows, columns = tv.size(query, -2), tv.size(key, -2)
        scores = g.op("where", g.constant(np.tri(rows, columns), "bool"), scores, _minus_infinity(scores))
    if attn_mask is not None and g.dtype(attn_mask).is_bool:
        scores = g.op("where", attn_mask, scores, _minus_infinity(scores))
    elif attn_mask is not None:
        scores = g.add(scores, attn_mask)
    return matmul(g.op("nn.softmax", scores, axis=-1), value)


def _minus_infinity(x: Expr) -> Expr:
    return g.constant(float("-inf"), g.dtype(x))


def _repeated_heads(x: Expr, heads: int) -> Expr:
    count = heads // tv.size(x, -3)
    return x if count == 1 else g.op("repeat", x, repeats=count, axis=g.rank(x) - 3)


def _multi_head(
    query: Expr,
    key: Expr,
    value: Expr,
    embed_dim: int,
    num_head: int,
    qkv_weight: Expr,
    qkv_bias: Expr,
    proj_weight: Expr,
    proj_bias: Expr,
    mask: Expr | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> list[Value]:
    """torch's fused attention layer on (batch, length, features); masks are True where
    attention is forbidden.
    """
    weights = g.split(qkv_weight, [embed_dim] * 3, 0)
    biases = g.split(qkv_bias, [embed_dim] * 3, 0)
    batch, length, _ = tv.shape(query)
    width = embed_dim // num_head
    q, k, v = (
        swap(g.reshape(_linear(t, w, b), (batch, tv.size(t, 1), num_head, width)), 1, 2)
        for t, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = g.mul(matmul(q, swap(k, -2, -1)), 1.0 / math.sqrt(width))
    if mask is not None:
        wide = g.reshape(mask, (batch, 1, 1, tv.size(mask, 1))) if mask_type == 1 else mask
        scores = g.op("where", wide, _minus_infinity(scores), scores)
    probabilities = g.op("nn.softmax", scores, axis=-1)
    mixed = g.reshape(swap(matmul(probabilities, v), 1, 2), (batch, length, embed_dim))
    shown = g.reduce("mean", probabilities, (1,), False) if average_attn_weights else probabilities
    return [_linear(mixed, proj_weight, proj_bias), shown if need_weights else tv.Absent("the weights of attention")]


def _encoder_layer(
    src: Expr,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Expr,
    qkv_bias: Expr,
    proj_weight: Expr,
    proj_bias: Expr,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Expr,
    norm_bias_1: Expr,
    norm_weight_2: Expr,
    norm_bias_2: Expr,
    ffn_weight_1: Expr,
    ffn_bias_1: Expr,
    ffn_weight_2: Expr,
    ffn_bias_2: Expr,
    mask: Expr | None = None,
    mask_type: int | None = None,
) -> Expr:
    """torch's fused transformer layer: attention and two linear layers, each with a sum and a
    normalisation.
    """

    def attend(x: Expr) -> Expr:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        result: Expr = _multi_head(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]
        return result

    def feed(x: Expr) -> Expr:
        inner = _linear(x, ffn_weight_1, ffn_bias_1)
        return _linear(activations.gelu(inner) if use_gelu else g.op("nn.relu", inner), ffn_weight_2, ffn_bias_2)

    y = src
    for step, scale, offset in ((attend, norm_weight_1, norm_bias_1), (feed, norm_weight_2, norm_bias_2)):
        if norm_first:
            y = g.add(y, step(_layer_norm(y, [embed_dim], scale, offset, eps)))
        else:
            y = _layer_norm(g.add(y, step(y)), [embed_dim], scale, offset, eps)
    return y


OPS: Table = {
    **tv.named(_addmm, _batch_norm, _group_norm, _instance_norm, _layer_norm, _linear, _matmul),
    **tv.named(_outer, _rms_norm),
    "_native_batch_norm_legit_no_training": tv.with_absent(_batch_norm, "the statistics of batch_norm", 2),
    "_native_batch_norm_legit.no_stats": tv.with_absent(_batch_norm, "the statistics of batch_norm", 2),
    "_native_multi_head_attention": _multi_head,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    **dict.fromkeys(("log_softmax", "_log_softmax"), _softmax("nn.log_softmax")),
    **dict.fromkeys(("softmax", "_softmax"), _softmax("nn.softmax")),
    **dict.fromkeys(("bmm", "mm"), lambda x, mat2: matmul(x, mat2)),
    "addmv": lambda x, mat, vec, beta=1, alpha=1: _addmm(x, mat, vec, beta, alpha),
    "baddbmm": lambda x, batch1, batch2, beta=1, alpha=1: _addmm(x, batch1, batch2, beta, alpha),
    "dot": lambda x, tensor: matmul(x, tensor),
    "einsum": lambda equation, tensors: einsum(equation, tv.promoted(*tensors)),
    "mv": lambda x, vec: matmul(x, vec),
    "native_group_norm": tv.with_absent(
        lambda x, weight, bias, group, eps: _group_norm(x, group, weight, bias, eps), "the statistics of group_norm", 2
    ),
    "native_layer_norm": tv.with_absent(_layer_norm, "the statistics of layer_norm", 2),
    "scaled_dot_product_attention": _attention,
}
