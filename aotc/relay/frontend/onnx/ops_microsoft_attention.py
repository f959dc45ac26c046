# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of com.microsoft's attention layers: Attention, MultiHeadAttention and QAttention.

Queries, keys and values are (batch, heads, steps, size) inside. Masks follow ONNX Runtime: what is masked gets
`mask_filter_value` added to its score, what comes later in an autoregressive layer gets the least number.

OPS["Attention"](num_heads=4, node=node)        # [result, the concatenated keys and values]
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, Dim, is_static, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.onnx.node import OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.onnx.ops_microsoft_grouped_attention import join_heads, require_pair, split_heads
from aotc.relay.frontend.onnx.ops_quant import quantized_matmul_as_float, quantized_tensor_of_scale_zero_inputs
from aotc.relay.frontend.size_conditions import require_equal_dims
from aotc.relay.frontend.slice_pad_depth_to_space import select_element

_DEFAULT_MASK_FILTER_VALUE: Final = -10000.0


def _require_no_rotation(node: OnnxNode, do_rotary: bool) -> None:
    require("onnx-op", not do_rotary, f"{node.op_type} with rotary positions is not supported")


def _attend(
    node: OnnxNode,
    heads: tuple[Expr, Expr, Expr],
    hidden: OptionalExpr,
    attention_bias: OptionalExpr,
    unidirectional: bool,
    has_past: bool,
) -> Expr:
    """Return softmax(query key^T * scale + masks) value as (batch, steps, heads * size).

    hidden      the boolean mask of what is ignored, which broadcasts to (batch, heads, steps, positions), or None
    has_past    True if the steps are the last positions, False if they are the first ones
    """
    query, key, value = heads
    scores = attention_scores(node, query, key, hidden, attention_bias)
    if unidirectional:
        later = _later_positions(g.dims(query)[2], g.dims(key)[2], has_past)
        scores = g.where(later, float(g.dtype(query).min), scores)
    return mix_values(scores, value)


def attention_scores(
    node: OnnxNode, query: Expr, key: Expr, hidden: OptionalExpr, attention_bias: OptionalExpr
) -> Expr:
    """Return query key^T * scale + masks; `hidden` is the boolean mask of what gets `mask_filter_value`."""
    dtype = g.dtype(query)
    scores = matmul(query, g.transpose(key, (0, 1, 3, 2)))
    scores = g.mul(scores, node.attrs.get("scale", 0.0) or 1 / math.sqrt(g.dim(query, 3)))
    if hidden is not None:
        filtered = node.attrs.get("mask_filter_value", _DEFAULT_MASK_FILTER_VALUE)
        scores = g.add(scores, g.mul(g.cast(hidden, dtype), max(filtered, float(dtype.min))))
    return scores if attention_bias is None else g.add(scores, attention_bias)


def mix_values(scores: Expr, value: Expr) -> Expr:
    """Return softmax(scores) value as (batch, steps, heads * size)."""
    return join_heads(matmul(g.call_op("nn.softmax", scores, axis=-1), value))


def _later_positions(steps: Dim, positions: Dim, has_past: bool) -> Expr:
    """Return the boolean mask (steps, positions) of positions behind each of the last `steps` ones or, without a past,
    behind each of the first `steps` ones. As in ONNX Runtime, the last step attends to all positions.
    """
    if isinstance(steps, int) and isinstance(positions, int):
        last = np.arange(steps)[:, None] + (positions - steps if has_past else 0)
        last[-1:] = positions
        return g.constant(np.arange(positions) > last)
    columns, rows = g.positions_up_to(positions, "int32"), g.positions_up_to(steps, "int32")
    more = g.cast(g.sub(g.extent(columns, 0), g.extent(rows, 0)), "int32")
    if not has_past and steps != positions:
        is_last = g.equal(rows, g.cast(g.sub(g.extent(rows, 0), 1), "int32"))
        more = g.where(is_last, more, g.constant(0, "int32"))
    return g.greater(g.reshape(columns, (1, positions)), g.reshape(g.add(rows, more), (steps, 1)))


def ignored_positions(node: OnnxNode, mask: OptionalExpr, batch: Dim, steps: Dim, position_count: Dim) -> OptionalExpr:
    """Return the boolean mask of positions that attention must ignore, in a shape that broadcasts
    to (batch, heads, steps, positions); None if there is no mask.

    A mask is (batch,): the number of positions of each sequence; (batch, positions) or (batch, steps, positions):
    0 for what is ignored; or (2 * batch,): the end and then the start of the positions of each sequence.
    """
    if mask is None:
        return None
    dims, positions = g.dims(mask), g.positions_up_to(position_count, "int32")
    if len(dims) in (2, 3) and not is_static((dims[-1], position_count)):
        text = f"a mask of {dims[-1]} positions does not fit the {position_count} positions of {node.op_type}"
        require_equal_dims("onnx-attention", dims[-1], position_count, text)
        dims = (*dims[:-1], position_count)
    if dims == (batch, position_count):
        return g.reshape(g.equal(mask, 0), (batch, 1, 1, position_count))
    if dims == (batch, steps, position_count):
        return g.reshape(g.equal(mask, 0), (batch, 1, steps, position_count))
    if dims == (batch,):
        hidden = g.greater_equal(positions, g.reshape(mask, (batch, 1)))
        return g.reshape(hidden, (batch, 1, 1, position_count))
    if isinstance(batch, int) and dims == (2 * batch,) and node.op_type == "Attention":
        ends, starts = (g.reshape(part, (batch, 1)) for part in g.split(mask, [batch, batch], 0))
        outside = g.greater_equal(positions, ends), g.less(positions, starts)
        return g.reshape(g.logical_or(*outside), (batch, 1, 1, position_count))
    raise AotcError("onnx-quant" if node.op_type == "QAttention" else "onnx-attention",
                    f"a mask of shape {dims} of {node.op_type} is not supported")  # fmt: skip


def require_heads(node: OnnxNode, count: int, widths: Sequence[int]) -> None:
    fits = count > 0 and all(width > 0 and width % count == 0 for width in widths)
    require("onnx-attention", fits, f"widths {list(widths)} of {node.op_type} cannot be divided into {count} heads")


def _require_rank_3(node: OnnxNode, name: str, x: Expr) -> None:
    text = f"{name} of {node.op_type} has shape {g.dims(x)}; rank 3 is supported"
    require("onnx-attention", g.rank(x) == 3, text)


# --- Attention and QAttention


def _attention(
    x: Expr,
    weights: Expr,
    bias: OptionalExpr = None,
    mask: OptionalExpr = None,
    past: OptionalExpr = None,
    attention_bias: OptionalExpr = None,
    *,
    num_heads: int,
    unidirectional: bool = False,
    qkv_hidden_sizes: Any = (),
    do_rotary: bool = False,
    node: OnnxNode,
) -> list[Expr]:
    """Convert Attention: queries, keys and values are one product; return the result and the concatenated keys and
    values (2, batch, heads, positions, size).
    """
    _require_no_rotation(node, do_rotary)
    _require_rank_3(node, "input", x)
    columns = g.dim(weights, 1)
    widths = list(qkv_hidden_sizes) or [columns // 3] * 3
    fits = len(widths) == 3 and sum(widths) == columns
    require("onnx-attention", fits, f"widths {widths} of Attention do not add up to {columns} columns of weights")
    require_heads(node, num_heads, widths)
    joined = matmul(x, weights)
    joined = joined if bias is None else g.add(joined, bias)
    query, key, value = (split_heads(part, num_heads) for part in g.split(joined, widths, 2))
    return _attend_with_past(node, (query, key, value), mask, past, attention_bias, unidirectional)


def _q_attention(
    *, num_heads: int, unidirectional: bool = False, do_rotary: bool = False, node: OnnxNode, **_rest: Any
) -> list[Expr]:
    """Convert QAttention: as Attention, with an integer product of queries, keys and values."""
    _require_no_rotation(node, do_rotary)
    heads = _qkv_heads_from_quantized_projection(node, num_heads)
    query, key, value = (select_element(heads, 0, k) for k in range(3))
    masks = node.optional_input(5), node.optional_input(8)
    return _attend_with_past(node, (query, key, value), *masks, None, unidirectional)


def _attend_with_past(
    node: OnnxNode,
    heads: tuple[Expr, Expr, Expr],
    mask: OptionalExpr,
    past: OptionalExpr,
    attention_bias: OptionalExpr,
    unidirectional: bool,
) -> list[Expr]:
    """Return the result of attention with the keys and values of the past before the given ones, and all of them."""
    query, key, value = heads
    batch, _, steps, _ = g.dims(query)
    present: OptionalExpr = None
    if past is not None and not is_static(g.dims(past)):
        present = g.concat([past, g.stack([key, value], 0)], 3)
        key, value = (select_element(present, 0, k) for k in range(2))
    elif past is not None:
        key = g.concat([select_element(past, 0, 0), key], 2)
        value = g.concat([select_element(past, 0, 1), value], 2)
    hidden = ignored_positions(node, mask, batch, steps, g.dims(key)[2])
    y = _attend(node, (query, key, value), hidden, attention_bias, unidirectional, past is not None)
    if present is None and node.needs_output(1):
        present = g.stack([key, value], 0)
    return [y] if present is None else [y, present]


def _qkv_heads_from_quantized_projection(node: OnnxNode, head_count: int) -> Expr:
    """Return queries, keys and values as one tensor (3, batch, heads, steps, size)."""
    x, w = (
        quantized_tensor_of_scale_zero_inputs(node, node[0], 3, 6),
        quantized_tensor_of_scale_zero_inputs(node, node[1], 4, 7),
    )
    batch, steps, _ = g.shape(x.data)
    columns = g.dim(w.data, 1)
    fits = head_count > 0 and columns > 0 and columns % (3 * head_count) == 0
    text = f"weights of {columns} columns do not fit {head_count} heads"
    require("onnx-quant", fits, text)
    joined = quantized_matmul_as_float(x, w, node[2])
    heads = g.reshape(joined, (batch, steps, 3, head_count, -1))
    return g.transpose(heads, (2, 0, 3, 1, 4))


# --- MultiHeadAttention


def _multi_head_attention(
    query: Expr,
    key: OptionalExpr = None,
    value: OptionalExpr = None,
    bias: OptionalExpr = None,
    key_padding_mask: OptionalExpr = None,
    attention_bias: OptionalExpr = None,
    past_key: OptionalExpr = None,
    past_value: OptionalExpr = None,
    *,
    num_heads: int,
    unidirectional: bool = False,
    node: OnnxNode,
) -> list[Expr | None]:
    """Convert MultiHeadAttention: queries, keys and values are given; return the result, and all keys and values
    with those of the past.
    """
    text = "MultiHeadAttention whose buffers of keys and values are larger than the past is not supported"
    require("onnx-op", node.optional_input(8) is None and node.optional_input(9) is None, text)
    require_pair(node, "past_key", past_key, "past_value", past_value)
    q, k, v = _separate_heads(node, query, key, value, bias, num_heads)
    if past_key is not None and past_value is not None:
        k, v = g.concat([past_key, k], 2), g.concat([past_value, v], 2)
    batch, _, steps, _ = g.dims(q)
    hidden = ignored_positions(node, key_padding_mask, batch, steps, g.dims(k)[2])
    y = _attend(node, (q, k, v), hidden, attention_bias, unidirectional, past_key is not None)
    return [y, k, v, None]


def _separate_heads(
    node: OnnxNode, query: Expr, key: OptionalExpr, value: OptionalExpr, bias: OptionalExpr, count: int
) -> tuple[Expr, Expr, Expr]:
    """Return queries, keys and values as (batch, heads, steps, size), with their biases added."""
    if g.rank(query) == 5:  # (batch, steps, heads, 3, size)
        packed = g.transpose(query, (3, 0, 1, 2, 4))
        _, batch, steps, heads, size = g.shape(packed)
        query, key, value = (g.reshape(select_element(packed, 0, n), (batch, steps, heads * size)) for n in range(3))
    elif key is not None and value is None and g.rank(key) == 5:  # (batch, positions, heads, 2, size)
        packed = g.transpose(key, (3, 0, 1, 2, 4))
        _, batch, steps, heads, size = g.shape(packed)
        key, value = (g.reshape(select_element(packed, 0, n), (batch, steps, heads * size)) for n in range(2))
    if key is None or value is None:
        raise AotcError("onnx-attention", f"keys and values of {node.op_type} are missing")
    _require_rank_3(node, "query", query)
    parts: list[Expr] = [query, key, value]
    if bias is not None:
        widths = [g.dim(p, 2) if g.rank(p) == 3 else g.dim(p, 1) * g.dim(p, 3) for p in parts]
        text = f"a bias of shape {g.dims(bias)} does not fit the widths {widths} of {node.op_type}"
        require("onnx-attention", g.dims(bias) == (sum(widths),), text)
        biases = g.split(bias, widths, 0)
        # keys and values that are divided into heads already have their biases
        parts = [g.add(p, b) if g.rank(p) == 3 else p for p, b in zip(parts, biases, strict=True)]
    widths = [g.dim(p, 2) for p in parts if g.rank(p) == 3]
    require_heads(node, count, widths)
    q, k, v = (split_heads(p, count) if g.rank(p) == 3 else p for p in parts)
    return q, k, v


OPS: Table = table_by_function_name(_attention, _multi_head_attention, _q_attention)
