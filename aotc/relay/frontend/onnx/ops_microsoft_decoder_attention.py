# SPDX-License-Identifier: Apache-2.0
"""ONNX converter of com.microsoft's DecoderMaskedMultiHeadAttention: attention of one new token.

With keys and values of earlier tokens in buffers (`past_present_share_buffer`), the new ones replace the row
`past_sequence_length` of the buffers, and the token attends to this row and those before it:

OPS["DecoderMaskedMultiHeadAttention"](query, key, value, past_key=keys, ...)     # [result, keys, values, None]

Buffers have the layout of ONNX Runtime's kernel for processors, (batch, heads, positions, size); that for GPUs
has the keys in another order.
"""

from __future__ import annotations

from typing import Final

from aotc.ir import Dim, require, sum_of_dims
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.found_sizes import with_required_range
from aotc.relay.frontend.onnx.node import OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.onnx.ops_microsoft_attention import (
    attention_scores,
    ignored_positions,
    mix_values,
    require_heads,
)
from aotc.relay.frontend.onnx.ops_microsoft_grouped_attention import known_sizes, require_pair, split_heads
from aotc.relay.frontend.size_conditions import require_at_least, require_equal_dims

_CODE: Final = "onnx-attention"


def _decoder_masked_multi_head_attention(
    query: Expr,
    key: OptionalExpr = None,
    value: OptionalExpr = None,
    mask_index: OptionalExpr = None,
    attention_bias: OptionalExpr = None,
    past_key: OptionalExpr = None,
    past_value: OptionalExpr = None,
    *,
    num_heads: int,
    past_present_share_buffer: bool = False,
    output_qk: bool = False,
    node: OnnxNode,
) -> list[Expr | None]:
    """Convert DecoderMaskedMultiHeadAttention; return the result, the present keys and values, and the scores
    before the softmax.
    """
    _require_supported(node, query)
    require_pair(node, "past_key", past_key, "past_value", past_value)
    q, k, v = _heads(node, query, key, value, num_heads)
    present: tuple[OptionalExpr, OptionalExpr] = None, None
    hidden: OptionalExpr = None
    if past_key is not None and past_value is not None:
        if past_present_share_buffer:
            present, (k, v), hidden = _updated_buffers(node, (past_key, past_value), (k, v))
        else:
            k, v = g.concat([past_key, k], 2), g.concat([past_value, v], 2)
            present = k, v
    batch, positions = g.dims(q)[0], g.dims(k)[2]
    masked = ignored_positions(node, mask_index, batch, 1, positions)
    scores = attention_scores(node, q, k, masked, attention_bias)
    shown = scores if output_qk and hidden is None else None
    require("onnx-op", shown is not None or not output_qk, f"output_qk of {node.op_type} needs a known length")
    if hidden is not None:
        scores = g.where(hidden, float(g.dtype(q).min), scores)
    return [mix_values(scores, v), *present, shown]


def _require_supported(node: OnnxNode, query: Expr) -> None:
    steps = g.dims(query)[1]
    require(_CODE, steps == 1, f"{node.op_type} takes one new token, not {steps}")
    width = node.optional_input(8)
    beams = None if width is None else known_sizes(node, 8, 1 << 20)
    is_one = node.optional_input(9) is None and (width is None or beams == [1])
    require("onnx-op", is_one, f"{node.op_type} with the beams of a beam search is not supported")


def _heads(node: OnnxNode, query: Expr, key: OptionalExpr, value: OptionalExpr, count: int) -> tuple[Expr, Expr, Expr]:
    """Return queries, keys and values as (batch, heads, positions, size), with their biases added; keys and values
    that are divided into heads already, those of another sequence, have none.
    """
    require_pair(node, "key", key, "value", value)
    if key is None or value is None:
        columns = g.dim(query, 2)
        text = f"width {columns} of {node.op_type} is not a multiple of 3, for queries, keys and values"
        require(_CODE, columns % 3 == 0, text)
        query, key, value = g.split(query, [columns // 3] * 3, 2)
    parts, bias = [query, key, value], node.optional_input(10)
    widths = [g.dim(p, 2) if g.rank(p) == 3 else g.dim(p, 1) * g.dim(p, 3) for p in parts]
    require_heads(node, count, widths)
    if bias is not None:
        text = f"a bias of shape {g.dims(bias)} does not fit the widths {widths} of {node.op_type}"
        require(_CODE, g.dims(bias) == (sum(widths),), text)
        biases = g.split(bias, widths, 0)
        parts = [g.add(p, b) if g.rank(p) == 3 else p for p, b in zip(parts, biases, strict=True)]
    q, k, v = (split_heads(p, count) if g.rank(p) == 3 else p for p in parts)
    return q, k, v


def _updated_buffers(
    node: OnnxNode, buffers: tuple[Expr, Expr], new: tuple[Expr, Expr]
) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr], OptionalExpr]:
    """Return the buffers with a new row, the rows that the new token attends to, and which of them it ignores:
    None if the number of earlier tokens is a size, since the token then attends to the rows up to its own.
    """
    length = g.dims(buffers[0])[2]
    at = node.optional_input(7)
    text = f"{node.op_type} with past_present_share_buffer needs past_sequence_length, one number"
    require(_CODE, at is not None and g.dims(at) in ((), (1,)), text)
    assert at is not None
    row = g.reshape(g.cast(at, "int64"), (1, 1, 1, 1))
    known = known_sizes(node, 7, length)
    if known is None:
        is_inside = g.logical_and(g.greater_equal(row, 0), g.less(row, g.size_as_tensor(length)))
        text = f"past_sequence_length of {node.op_type} is the number of a row of the buffers"
        row = with_required_range(row, is_inside, 1, 1, text)
    present = tuple(_with_row(node, b, row, n) for b, n in zip(buffers, new, strict=True))
    if known is None:
        columns = g.reshape(g.positions_up_to(length), (1, 1, 1, length))
        return (present[0], present[1]), (present[0], present[1]), g.greater(columns, row)
    total = sum_of_dims((known[0], 1))
    text = f"past_sequence_length {known[0]} of {node.op_type} leaves no room in {length} positions"
    require_at_least(_CODE, length, total, text)
    live = tuple(_first_rows(x, total) for x in present)
    for name, index in (("mask_index", 3), ("attention_bias", 4)):
        if (x := node.optional_input(index)) is not None:
            text = f"{name} of {node.op_type} has {g.dims(x)[-1]} positions for {total} tokens"
            require_equal_dims(_CODE, g.dims(x)[-1], total, text)
    return (present[0], present[1]), (live[0], live[1]), None


def _with_row(node: OnnxNode, buffer: Expr, row: Expr, new: Expr) -> Expr:
    """Return a buffer of keys or values in which those of the new token replace a row."""
    text = f"a buffer of shape {g.dims(buffer)} of {node.op_type} does not fit new elements of shape {g.dims(new)}"
    fits = g.rank(buffer) == 4 and all(g.dims(buffer)[k] == g.dims(new)[k] for k in (0, 1, 3))
    require(_CODE, fits, text)
    index = g.broadcast_to(row, g.dims(new))
    return g.call_op("scatter_elements", buffer, index, new, axis=2, reduction="update")


def _first_rows(x: Expr, count: Dim) -> Expr:
    return x if g.dims(x)[2] == count else g.strided_slice(x, [0], [count], [2])


OPS: Table = table_by_function_name(_decoder_masked_multi_head_attention)
