# SPDX-License-Identifier: Apache-2.0
"""Converters of normalisations, softmax, matrix products and attention.

OPS["linear"](x=a, weight=w, bias=b)    # nn.bias_add(nn.dense(a, w), b)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend.onnx.build import (
    add,
    cast,
    constant,
    dims_of,
    div,
    dtype_of,
    emit,
    field,
    filled,
    mul,
    rank_of,
    reduce,
    reshape,
    split,
    sub,
    unsqueeze,
)
from aotc.relay.frontend.onnx.einsum import einsum
from aotc.relay.frontend.onnx.ops_matmul import matmul
from aotc.relay.frontend.pytorch.ops_elementwise import gelu
from aotc.relay.frontend.pytorch.ops_shape import swap
from aotc.relay.frontend.pytorch.values import (
    Absent,
    Converter,
    Table,
    Value,
    axis_of,
    promoted,
    shape,
    size,
    target_shape,
)


def _affine(weight: Expr | None, bias: Expr | None, count: int, dtype: str) -> tuple[Expr, Expr]:
    """Scale and offset, ones and zeros where they are missing."""
    scale = weight if weight is not None else filled(1, (count,), dtype)
    return scale, bias if bias is not None else filled(0, (count,), dtype)


# --- normalisation


def _batch_norm(
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    running_mean: Expr | None,
    running_var: Expr | None,
    training: bool = False,
    eps: float = 1e-5,
) -> Expr:
    scale, offset = _affine(weight, bias, size(x, 1), str(dtype_of(x)))
    if running_mean is not None and running_var is not None:
        if training:
            raise _training("batch_norm")
        return field(emit("nn.batch_norm", x, scale, offset, running_mean, running_var, axis=1, epsilon=eps), 0)
    return _per_channel(_standardized(x, [0, *range(2, rank_of(x))], eps), scale, offset)


def _training(name: str) -> AotcError:
    hint = "call .eval() on the module before tracing or exporting it"
    return AotcError("torch-training", f"{name} is in training mode", hint=hint)


def _standardized(x: Expr, axes: Sequence[int], eps: float) -> Expr:
    """Mean 0 and variance 1 over some axes."""
    centred = sub(x, reduce("mean", x, axes, True))
    return div(centred, emit("sqrt", add(reduce("mean", mul(centred, centred), axes, True), eps)))


def _per_channel(x: Expr, scale: Expr, offset: Expr) -> Expr:
    full = (-1, *(1,) * (rank_of(x) - 2))
    return add(mul(x, reshape(scale, full)), reshape(offset, full))


def _batch_norm_inference(
    x: Expr, weight: Expr | None, bias: Expr | None, running_mean: Expr, running_var: Expr, eps: float
) -> list[Value]:
    y = _batch_norm(x, weight, bias, running_mean, running_var, False, eps)
    return [y, *[Absent("the statistics of batch_norm")] * 2]


def _batch_norm_of_batch(x: Expr, weight: Expr | None, bias: Expr | None, training: bool, eps: float) -> list[Value]:
    y = _batch_norm(x, weight, bias, None, None, training, eps)
    return [y, *[Absent("the statistics of batch_norm")] * 2]


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
    scale, offset = _affine(weight, bias, size(x, 1), str(dtype_of(x)))
    return emit("nn.instance_norm", x, scale, offset, axis=1, epsilon=eps)


def _group_norm(
    x: Expr, num_groups: int, weight: Expr | None = None, bias: Expr | None = None, eps: float = 1e-5
) -> Expr:
    scale, offset = _affine(weight, bias, size(x, 1), str(dtype_of(x)))
    return emit("nn.group_norm", x, scale, offset, num_groups=num_groups, axis=1, epsilon=eps)


def _native_group_norm(
    x: Expr, weight: Expr | None, bias: Expr | None, N: int, C: int, HxW: int, group: int, eps: float
) -> list[Value]:
    return [_group_norm(x, group, weight, bias, eps), *[Absent("the statistics of group_norm")] * 2]


def _layer_norm(
    x: Expr, normalized_shape: Value, weight: Expr | None = None, bias: Expr | None = None, eps: float = 1e-5
) -> Expr:
    kept = rank_of(x) - len(normalized_shape)
    inner = [size(x, k) for k in range(kept, rank_of(x))]
    count = math.prod(inner)
    scale, offset = (reshape(v, (-1,)) for v in _affine(weight, bias, count, str(dtype_of(x))))
    if len(inner) == 1:
        return emit("nn.layer_norm", x, scale, offset, axis=-1, epsilon=eps)
    flat = emit("nn.layer_norm", reshape(x, (*shape(x)[:kept], count)), scale, offset, axis=-1, epsilon=eps)
    return reshape(flat, shape(x))


def _native_layer_norm(
    x: Expr, normalized_shape: Value, weight: Expr | None, bias: Expr | None, eps: float
) -> list[Value]:
    y = _layer_norm(x, normalized_shape, weight, bias, eps)
    return [y, *[Absent("the statistics of layer_norm")] * 2]


def _rms_norm(x: Expr, normalized_shape: Value, weight: Expr | None = None, eps: float | None = None) -> Expr:
    axes = range(rank_of(x) - len(normalized_shape), rank_of(x))
    tiny = eps if eps is not None else float(np.finfo(dtype_of(x).numpy).eps)
    y = mul(x, emit("rsqrt", add(reduce("mean", mul(x, x), axes, True), tiny)))
    return y if weight is None else mul(y, weight)


def _softmax(name: str) -> Converter:
    def convert(x: Expr, dim: int, dtype: str | None = None) -> Expr:
        y = x if dtype is None else cast(x, dtype)
        if not rank_of(y):
            return reshape(emit(name, reshape(y, (1,)), axis=0), ())
        return emit(name, y, axis=axis_of(dim, rank_of(y)))

    return convert


# --- products


def _linear(x: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    if rank_of(weight) == 1:
        y = matmul(x, weight)
        return y if bias is None else add(y, bias)
    units, inner = shape(weight)
    flat = x if rank_of(x) == 2 else reshape(x, (-1, inner))
    y = emit("nn.dense", flat, weight, units=units)
    if bias is not None:
        y = emit("nn.bias_add", y, bias, axis=-1)
    if rank_of(x) == 2:
        return y
    return reshape(y, target_shape([*dims_of(x)[:-1], units]))


def _matmul(x: Expr, other: Expr) -> Expr:
    a, b = promoted(x, other)
    return matmul(a, b)


def _times(x: Expr, factor: Value) -> Expr:
    return x if factor == 1 else mul(x, float(factor) if dtype_of(x).is_float else int(factor))


def _addmm(x: Expr, mat1: Expr, mat2: Expr, beta: Value = 1, alpha: Value = 1) -> Expr:
    product = _times(matmul(mat1, mat2), alpha)
    return product if beta == 0 else add(product, _times(x, beta))


def _baddbmm(x: Expr, batch1: Expr, batch2: Expr, beta: Value = 1, alpha: Value = 1) -> Expr:
    return _addmm(x, batch1, batch2, beta, alpha)


def _addmv(x: Expr, mat: Expr, vec: Expr, beta: Value = 1, alpha: Value = 1) -> Expr:
    return _addmm(x, mat, vec, beta, alpha)


def _outer(x: Expr, vec2: Expr) -> Expr:
    a, b = promoted(x, vec2)
    return mul(unsqueeze(a, [1]), unsqueeze(b, [0]))


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
        key, value = (_repeated_heads(t, size(query, -3)) for t in (key, value))
    factor = scale if scale is not None else 1.0 / math.sqrt(size(query, -1))
    scores = mul(matmul(query, swap(key, -2, -1)), factor)
    if is_causal:
        rows, columns = size(query, -2), size(key, -2)
        scores = emit("where", constant(np.tri(rows, columns), "bool"), scores, _minus_infinity(scores))
    if attn_mask is not None and dtype_of(attn_mask).is_bool:
        scores = emit("where", attn_mask, scores, _minus_infinity(scores))
    elif attn_mask is not None:
        scores = add(scores, attn_mask)
    return matmul(emit("nn.softmax", scores, axis=-1), value)


def _minus_infinity(x: Expr) -> Expr:
    return constant(float("-inf"), str(dtype_of(x)))


def _repeated_heads(x: Expr, heads: int) -> Expr:
    count = heads // size(x, -3)
    return x if count == 1 else emit("repeat", x, repeats=count, axis=rank_of(x) - 3)


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
    """torch's fused attention layer on (batch, length, features); masks are True where attention is forbidden."""
    weights = split(qkv_weight, [embed_dim] * 3, 0)
    biases = split(qkv_bias, [embed_dim] * 3, 0)
    batch, length, _ = shape(query)
    width = embed_dim // num_head
    q, k, v = (
        swap(reshape(_linear(t, w, b), (batch, size(t, 1), num_head, width)), 1, 2)
        for t, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = mul(matmul(q, swap(k, -2, -1)), 1.0 / math.sqrt(width))
    if mask is not None:
        wide = reshape(mask, (batch, 1, 1, size(mask, 1))) if mask_type == 1 else mask
        scores = emit("where", wide, _minus_infinity(scores), scores)
    probabilities = emit("nn.softmax", scores, axis=-1)
    mixed = reshape(swap(matmul(probabilities, v), 1, 2), (batch, length, embed_dim))
    shown = reduce("mean", probabilities, (1,), False) if average_attn_weights else probabilities
    return [_linear(mixed, proj_weight, proj_bias), shown if need_weights else Absent("the weights of attention")]


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
    """torch's fused transformer layer: attention and two linear layers, each with a sum and a normalisation."""

    def attend(x: Expr) -> Expr:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        result: Expr = _multi_head(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]
        return result

    def feed(x: Expr) -> Expr:
        inner = _linear(x, ffn_weight_1, ffn_bias_1)
        return _linear(gelu(inner) if use_gelu else emit("nn.relu", inner), ffn_weight_2, ffn_bias_2)

    y = src
    for step, scale, offset in ((attend, norm_weight_1, norm_bias_1), (feed, norm_weight_2, norm_bias_2)):
        if norm_first:
            y = add(y, step(_layer_norm(y, [embed_dim], scale, offset, eps)))
        else:
            y = _layer_norm(add(y, step(y)), [embed_dim], scale, offset, eps)
    return y


OPS: Table = {
    "_log_softmax": _softmax("nn.log_softmax"),
    "_native_batch_norm_legit_no_training": _batch_norm_inference,
    "_native_batch_norm_legit.no_stats": _batch_norm_of_batch,
    "_native_multi_head_attention": _multi_head,
    "_softmax": _softmax("nn.softmax"),
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "addmm": _addmm,
    "addmv": _addmv,
    "baddbmm": _baddbmm,
    "batch_norm": _batch_norm,
    "bmm": lambda x, mat2: matmul(x, mat2),
    "dot": lambda x, tensor: matmul(x, tensor),
    "einsum": lambda equation, tensors: einsum(equation, promoted(*tensors)),
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "log_softmax": _softmax("nn.log_softmax"),
    "matmul": _matmul,
    "mm": lambda x, mat2: matmul(x, mat2),
    "mv": lambda x, vec: matmul(x, vec),
    "native_group_norm": _native_group_norm,
    "native_layer_norm": _native_layer_norm,
    "outer": _outer,
    "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention,
    "softmax": _softmax("nn.softmax"),
}
