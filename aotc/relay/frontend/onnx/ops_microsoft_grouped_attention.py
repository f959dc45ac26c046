# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of com.microsoft's layers of decoders: GroupQueryAttention and RotaryEmbedding.

Heads of queries come in groups, which share a head of keys and values. A sequence of a batch has a length of
its own, `seqlens_k + 1`, new tokens included: its new keys and values lie behind its earlier ones, and what
lies behind its length in the cache is ignored.

OPS["GroupQueryAttention"](...)     # [result, present keys, present values]

A cache whose length is not that of the result, such as one whose length is known at run time only, is
concatenated with the new elements, so that it can be state that grows (`aotc.relay.transform.append_to_state`).
A cache that has the length of the result is a buffer, whose elements are replaced. Caches of integers are
`aotc.relay.frontend.onnx.quantized_caches`.
"""

from __future__ import annotations

import math
from typing import Final

from aotc.ir import Dim, frozen, interval_of_dim, largest_size, require, sum_of_dims
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.normalization import rms_norm
from aotc.relay.frontend.onnx.node import OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.onnx.quantized_caches import cache_of_integers
from aotc.relay.frontend.size_conditions import require_at_least, require_equal_dims
from aotc.relay.frontend.size_operands import OperandBounds, operand_bounds, without_size_operands
from aotc.relay.frontend.size_values import size_values

_CODE: Final = "onnx-attention"
#: Inputs of GroupQueryAttention: the first of the weights of norms, and the numbers of tokens of padded sequences.
_FIRST_NORM, _QUERY_LENGTHS = 14, 16
#: Value of the attribute `qk_output`: the results of the softmax are an output.
_SOFTMAX_IS_OUTPUT: Final = 2


@frozen
class _Lengths:
    """Lengths of the sequences of a batch.

    steps      number of new tokens
    present    length of the present keys and values
    earlier    number of earlier tokens of each sequence, int32 (batch, 1, 1, 1) or (1, 1, 1, 1); None if all
               sequences have as many as the cache
    is_grown   True if the new elements are concatenated with the cache; False if they replace elements
    """

    steps: Dim
    present: Dim
    earlier: OptionalExpr
    is_grown: bool


def _group_query_attention(
    query: Expr,
    key: OptionalExpr = None,
    value: OptionalExpr = None,
    past_key: OptionalExpr = None,
    past_value: OptionalExpr = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    softcap: float = 0.0,
    local_window_size: int = -1,
    do_rotary: bool = False,
    causal: bool = True,
    qk_output: int = 0,
    node: OnnxNode,
) -> list[Expr | None]:
    """Convert GroupQueryAttention; return the result, the present keys and values, and the results of the softmax."""
    _require_supported(node)
    require(_CODE, causal or local_window_size <= 0, "local_window_size needs causal 1")
    require_pair(node, "past_key", past_key, "past_value", past_value)
    q, k, v = _heads_of_groups(node, query, key, value, num_heads, kv_num_heads)
    q, k = _normalized_heads(node, q, k)
    caches = ("k_quant_type", 12, past_key), ("v_quant_type", 13, past_value)
    formats = [cache_of_integers(node, *cache, kv_num_heads, g.dim(q, 3)) for cache in caches]
    if past_key is not None and g.dims(past_key)[2] == 0:
        past_key = past_value = None
    lengths = _lengths(node, q, past_key)
    if do_rotary:
        positions = _positions_of_tokens(node, lengths, past_key)
        is_interleaved = bool(node.attrs.get("rotary_interleaved", 0))
        q, k = (_rotate(x, node[7], node[8], positions, is_interleaved) for x in (q, k))
    new = [x if cache is None else cache.quantize(x) for x, cache in zip((k, v), formats, strict=True)]
    keys, values = (_present(x, past, lengths) for x, past in zip(new, (past_key, past_value), strict=True))
    read = [
        x if cache is None else cache.dequantize(x, str(g.dtype(q)))
        for x, cache in zip((keys, values), formats, strict=True)
    ]
    shared = num_heads // kv_num_heads
    repeated = [x if shared == 1 else g.call_op("repeat", x, repeats=shared, axis=1) for x in read]
    scores = matmul(q, g.transpose(repeated[0], (0, 1, 3, 2)))
    scores = g.mul(scores, scale or 1 / math.sqrt(g.dim(q, 3)))
    if softcap:
        scores = g.mul(g.call_op("tanh", g.div(scores, softcap)), softcap)
    if (bias := node.optional_input(10)) is not None:
        scores = g.add(scores, _bias_of_present(bias, lengths.present))
    hidden = (
        _hidden_positions(lengths, past_key, local_window_size)
        if causal
        else _positions_behind_sequences(node, lengths, past_key)
    )
    if hidden is not None:
        scores = g.where(hidden, float(g.dtype(q).min), scores)
    weights = _softmax_with_sink(node, scores)
    shown = _of_total_positions(node, weights) if qk_output == _SOFTMAX_IS_OUTPUT else None
    return [join_heads(matmul(weights, repeated[1])), keys, values, shown]


def require_pair(node: OnnxNode, name: str, x: OptionalExpr, other: str, y: OptionalExpr) -> None:
    """Raise AotcError unless both of two optional inputs are given, or none of them."""
    given, missing = (name, other) if y is None else (other, name)
    require(_CODE, (x is None) == (y is None), f"{node.op_type} has {given}, but no {missing}")


def _require_supported(node: OnnxNode) -> None:
    for name, supported in (("sliding_window_cache", (0,)), ("qk_output", (0, _SOFTMAX_IS_OUTPUT))):
        given = node.attrs.get(name, 0)
        require("onnx-op", given in supported, f"{name} {given!r} of {node.op_type} is not supported")
    for k in range(_QUERY_LENGTHS, len(node.inputs)):
        text = f"input {k} of {node.op_type} (padding of steps) is not supported"
        require("onnx-op", node.optional_input(k) is None, text)


def _normalized_heads(node: OnnxNode, q: Expr, k: Expr) -> tuple[Expr, Expr]:
    """Return queries and keys (batch, heads, steps, size), each divided by its root mean square if there are weights
    for that.
    """
    q_weight, k_weight = (node.optional_input(_FIRST_NORM + side) for side in (0, 1))
    require_pair(node, "q_norm_weight", q_weight, "k_norm_weight", k_weight)
    if q_weight is None or k_weight is None:
        return q, k
    common = node.attrs.get("qk_norm_epsilon", 1e-6)
    epsilons = [node.attrs.get(f"{side}_norm_epsilon", common) for side in "qk"]
    for weight in (q_weight, k_weight):
        text = f"weights of shape {g.dims(weight)} of {node.op_type} do not fit heads of {g.dim(q, 3)} elements"
        require(_CODE, g.dims(weight) == (g.dim(q, 3),), text)
    return rms_norm(q, q_weight, 1, epsilons[0]), rms_norm(k, k_weight, 1, epsilons[1])


def _heads_of_groups(
    node: OnnxNode, query: Expr, key: OptionalExpr, value: OptionalExpr, count: int, key_count: int
) -> tuple[Expr, Expr, Expr]:
    """Return queries, keys and values as (batch, heads, steps, size)."""
    is_grouped = key_count > 0 and count > 0 and count % key_count == 0
    text = f"{count} heads of queries cannot be divided evenly among {key_count} heads of keys and values"
    require(_CODE, is_grouped, text)
    require_pair(node, "key", key, "value", value)
    if key is None or value is None:
        width, heads = g.dim(query, 2), count + 2 * key_count
        require(_CODE, width % heads == 0, f"width {width} of {node.op_type} cannot be divided into {heads} heads")
        size = width // heads
        query, key, value = g.split(query, [count * size, key_count * size, key_count * size], 2)
    size = g.dim(query, 2) // count
    widths = [g.dim(x, 2) for x in (query, key, value)]
    text = f"widths {widths} of {node.op_type} cannot be divided into {count} and {key_count} heads of one size"
    require(_CODE, size > 0 and widths == [count * size, *[key_count * size] * 2], text)
    q, k, v = (split_heads(x, n) for x, n in ((query, count), (key, key_count), (value, key_count)))
    return q, k, v


def split_heads(x: Expr, count: int) -> Expr:
    """Reshape (batch, steps, heads * size) to (batch, heads, steps, size)."""
    batch, steps = g.dims(x)[:2]
    return g.transpose(g.reshape(x, (batch, steps, count, g.dim(x, 2) // count)), (0, 2, 1, 3))


def join_heads(x: Expr) -> Expr:
    """Reshape (batch, heads, steps, size) to (batch, steps, heads * size)."""
    batch, _, steps, _ = g.dims(x)
    return g.reshape(g.transpose(x, (0, 2, 1, 3)), (batch, steps, g.dim(x, 1) * g.dim(x, 3)))


# --- lengths


def _lengths(node: OnnxNode, query: Expr, past: OptionalExpr) -> _Lengths:
    """Return the lengths of the sequences, and state what must hold of `seqlens_k` and `total_sequence_length`."""
    steps = g.dims(query)[2]
    for x in (query, past):
        if x is not None and not math.isfinite(interval_of_dim(g.dims(x)[2])[1]):
            g.dim(x, 2)
    if past is None:
        for total in known_sizes(node, 6, steps) or ():
            text = f"total_sequence_length of {node.op_type} without past is {total}, and there are {steps} tokens"
            require_equal_dims(_CODE, total, steps, text)
        return _Lengths(steps, steps, None, True)
    batch, length = g.dim(past, 0), g.dims(past)[2]
    grown = sum_of_dims((length, steps))
    known = known_sizes(node, 6, grown)
    text = f"total_sequence_length of {node.op_type} is not known when the model is compiled"
    hint = "let it be an input of the model, or compute it from shapes"
    require(_CODE, known is not None and len(known) == 1, text, hint=hint)
    assert known is not None
    total = known[0]
    if isinstance(length, int) and interval_of_dim(total)[0] <= length:
        return _lengths_in_buffer(node, query, length, total)
    text = f"total_sequence_length of {node.op_type} is {total}, and its cache and new tokens have {grown} positions"
    require_equal_dims(_CODE, total, grown, text)
    last = known_sizes(node, 5, grown) if batch == 1 else None
    if last is None:
        return _Lengths(steps, grown, _earlier_tokens(node, query, batch), True)
    text = f"seqlens_k of {node.op_type} is {last[0]}, and its cache and new tokens have {grown} positions"
    require_equal_dims(_CODE, sum_of_dims((last[0], 1)), grown, text)
    return _Lengths(steps, grown, None, True)


def _lengths_in_buffer(node: OnnxNode, query: Expr, length: Dim, total: Dim) -> _Lengths:
    """Return the lengths of sequences whose caches have room for the new elements."""
    text = f"total_sequence_length {total} of {node.op_type} exceeds the {length} positions of its cache"
    require_at_least(_CODE, length, total, text)
    for last in known_sizes(node, 5, length) or ():
        text = f"seqlens_k {last} of {node.op_type} does not fit total_sequence_length {total}"
        require_at_least(_CODE, total, sum_of_dims((last, 1)), text)
    batch, _, steps, _ = g.dims(query)
    return _Lengths(steps, length, _earlier_tokens(node, query, batch), False)


def known_sizes(node: OnnxNode, index: int, most: Dim) -> list[Dim] | None:
    """Return the values of an input that are known, or are sizes that are read before a run; else None."""
    with operand_bounds(OperandBounds(0, largest_size(most))):
        values = size_values(node[index])
    return None if values is None else list(values.reshape(-1))


def _earlier_tokens(node: OnnxNode, query: Expr, batch: Dim) -> Expr:
    """Return the number of earlier tokens of each sequence, as (batch, 1, 1, 1)."""
    text = f"{node.op_type} with several new tokens and a cache is supported for one sequence, not for {batch}"
    require(_CODE, batch == 1 or g.dims(query)[2] == 1, text)
    end = g.add(g.reshape(g.cast(node[5], "int32"), (batch, 1, 1, 1)), 1)
    return g.maximum(g.sub(end, g.cast(g.extent(query, 2), "int32")), 0)


def _first_rows(lengths: _Lengths, past: OptionalExpr) -> Expr:
    """Return the position of the first new token of each sequence, which broadcasts to (batch, 1, 1, 1)."""
    if lengths.earlier is not None:
        return lengths.earlier
    length = g.constant(0, "int32") if past is None else g.cast(g.extent(past, 2), "int32")
    return g.reshape(length, (1, 1, 1, 1))


def _present(new: Expr, past: OptionalExpr, lengths: _Lengths) -> Expr:
    """Return the present keys or values: those of the cache, with the new ones in their places."""
    if past is None:
        return new
    text = f"a cache of shape {g.dims(past)} does not fit new keys or values of shape {g.dims(new)}"
    fits = g.rank(past) == 4 and all(g.dims(past)[k] == g.dims(new)[k] for k in (0, 1, 3))
    require(_CODE, fits, text)
    base = g.concat([past, new], 2) if lengths.is_grown else past
    if lengths.earlier is None:
        return base
    places = g.reshape(g.positions_up_to(lengths.present, "int32"), (1, 1, lengths.present, 1))
    source = g.sub(places, lengths.earlier)
    is_new = g.greater(source, -1)
    if lengths.steps == 1:
        return g.where(g.logical_and(is_new, g.less(source, 1)), new, base)
    count = g.cast(g.extent(new, 2), "int32")
    at = g.reshape(source, (lengths.present,))
    moved = g.call_op("take", new, at, axis=2, mode="clip")
    return g.where(g.logical_and(is_new, g.less(source, count)), moved, base)


def _bias_of_present(bias: Expr, present: Dim) -> Expr:
    """Return the bias of the present positions: its last axis may be longer than these, or end with the longest
    sequence, behind which all positions of a buffer are ignored.
    """
    columns = g.dims(bias)[3]
    if isinstance(columns, int) and isinstance(present, int) and columns < present:
        return g.pad(bias, [(0, 0), (0, 0), (0, 0), (0, present - columns)])
    return bias if columns == present else g.strided_slice(bias, [0], [present], [3])


def _hidden_positions(lengths: _Lengths, past: OptionalExpr, window: int) -> OptionalExpr:
    """Return the boolean mask of what a token ignores: later positions, and those before its window of `window`
    positions; None if there is neither. It broadcasts to (batch, heads, steps, present).
    """
    if lengths.earlier is None and lengths.steps == 1 and window <= 0:
        return None
    columns = _columns(lengths)
    rows = g.add(_first_rows(lengths, past), g.reshape(g.positions_up_to(lengths.steps, "int32"), (1, 1, -1, 1)))
    later = g.greater(columns, rows)
    if window <= 0:
        return later
    return g.logical_or(later, g.less_equal(columns, g.sub(rows, window)))


def _positions_behind_sequences(node: OnnxNode, lengths: _Lengths, past: OptionalExpr) -> OptionalExpr:
    """Return the boolean mask (batch, 1, 1, present) of the positions that no token of a sequence attends to, not even
    without a causal mask; None if all sequences have as many tokens as there are positions.
    """
    if past is not None and lengths.earlier is None:
        return None
    with without_size_operands():  # numbers that decide about a mask only need no range
        last = size_values(node[5])
    if last is not None and all(sum_of_dims((k, 1)) == lengths.present for k in last.reshape(-1)):
        return None
    return g.greater(_columns(lengths), g.reshape(g.cast(node[5], "int32"), (-1, 1, 1, 1)))


def _columns(lengths: _Lengths) -> Expr:
    return g.reshape(g.positions_up_to(lengths.present, "int32"), (1, 1, 1, lengths.present))


def _of_total_positions(node: OnnxNode, weights: Expr) -> Expr:
    """Return the weights of the positions of the longest sequence, without those behind it in a buffer."""
    present = g.dims(weights)[3]
    total = known_sizes(node, 6, present)
    return weights if total is None or total == [present] else g.strided_slice(weights, [0], [total[0]], [3])


def _softmax_with_sink(node: OnnxNode, scores: Expr) -> Expr:
    """Return the softmax of scores, with another score for each head that takes a share of the weights: those of
    `head_sink`, or 0 with `smooth_softmax`.
    """
    sink = node.optional_input(11)
    if sink is None and not node.attrs.get("smooth_softmax", 0) > 0:
        return g.call_op("nn.softmax", scores, axis=-1)
    other = g.constant(0, g.dtype(scores)) if sink is None else g.reshape(sink, (1, -1, 1, 1))
    most = g.maximum(g.call_reduction("max", scores, [3], True), other)
    weights = g.call_op("exp", g.sub(scores, most))
    total = g.add(g.call_reduction("sum", weights, [3], True), g.call_op("exp", g.sub(other, most)))
    return g.div(weights, total)


# --- rotary positions


def _positions_of_tokens(node: OnnxNode, lengths: _Lengths, past: OptionalExpr) -> Expr:
    """Return the positions of the new tokens, as (batch, steps) or (1, steps).

    Those of a first prompt, of `total_sequence_length` tokens, follow the first one of `position_ids`; those of
    other tokens are given.
    """
    steps, given = lengths.steps, node.optional_input(9)
    row = g.reshape(g.positions_up_to(steps, "int32"), (1, steps))
    if given is None:
        return g.add(g.reshape(_first_rows(lengths, past), (-1, 1)), row)
    given = g.cast(given, "int32")
    first = g.strided_slice(given, [0, 0], [1, 1], [0, 1])
    if past is None:
        return g.add(first, row)
    new_tokens = g.cast(g.extent(row, 1), "int32")
    is_prompt = g.equal(g.reshape(g.cast(node[6], "int32"), (1, 1)), new_tokens)
    return g.where(is_prompt, g.add(first, row), given)


def _rotate(x: Expr, cosines: Expr, sines: Expr, positions: Expr, interleaved: bool) -> Expr:
    """Return x (batch, heads, steps, size) with pairs of elements rotated by the angle of their position.

    cosines, sines    (positions, half of the elements that are rotated)
    positions         (batch, steps) or (1, steps)
    interleaved       True if neighbors are pairs; False if an element and the one half the elements behind it are
    """
    half, size = g.dim(cosines, 1), g.dim(x, 3)
    text = f"caches of rotary positions with {half} columns do not fit heads of {size} elements"
    require(_CODE, 0 < 2 * half <= size and g.dims(sines) == g.dims(cosines), text)
    c, s = (g.unsqueeze(g.call_op("take", t, positions, axis=0, mode="clip"), [1]) for t in (cosines, sines))
    rotated, *rest = g.split(x, [2 * half, size - 2 * half], 3) if 2 * half < size else [x]
    dims = g.dims(rotated)[:3]
    if interleaved:
        pairs = g.reshape(rotated, (*dims, half, 2))
        a, b = (g.reshape(p, (*dims, half)) for p in g.split(pairs, [1, 1], 4))
    else:
        a, b = g.split(rotated, [half, half], 3)
    first, second = g.sub(g.mul(a, c), g.mul(b, s)), g.add(g.mul(b, c), g.mul(a, s))
    joined = g.stack([first, second], 4) if interleaved else g.concat([first, second], 3)
    return g.concat([g.reshape(joined, (*dims, 2 * half)), *rest], 3)


def _rotary_embedding(
    x: Expr,
    position_ids: Expr,
    cos_cache: Expr,
    sin_cache: Expr,
    *,
    num_heads: int = 0,
    interleaved: bool = False,
    is_packed_batching: bool = False,
    scale: float = 1.0,
    node: OnnxNode,
) -> Expr:
    """Convert RotaryEmbedding of com.microsoft: x is (batch, steps, heads * size) or (batch, heads, steps, size)."""
    require(
        "onnx-op",
        not is_packed_batching and scale == 1.0,
        f"{node.op_type} of packed or scaled tensors is not supported",
    )
    rank, half = g.rank(x), g.dim(cos_cache, 1)
    if rank == 4:
        heads = x
    else:
        width, stated = g.dim(x, 2), node.attrs.get("rotary_embedding_dim", 0)
        require(_CODE, num_heads > 0 or not stated, f"{node.op_type} of a part of the elements needs num_heads")
        count = num_heads or width // max(2 * half, 1)
        require(_CODE, count > 0 and width % count == 0, f"width {width} of {node.op_type} does not fit {count} heads")
        heads = split_heads(x, count)
    steps = g.dims(heads)[2]
    if g.dims(position_ids) == (1,):
        first = g.cast(g.reshape(position_ids, (1, 1)), "int32")
        position_ids = g.add(first, g.reshape(g.positions_up_to(steps, "int32"), (1, steps)))
    rotated = _rotate(heads, cos_cache, sin_cache, position_ids, interleaved)
    return rotated if rank == 4 else join_heads(rotated)


OPS: Table = table_by_function_name(_group_query_attention, _rotary_embedding)
