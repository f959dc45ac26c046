# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of com.microsoft operators that compute in floating point with quantized weights:
packed low-bit weights, recurrent layers, attention.

OPS["MatMulNBits"](x, packed, scales, K=64, N=8, block_size=16, bits=4)     # nn.dense(x, (packed - 8) * scales)
"""

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, DType, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.onnx.node import Converted, OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.onnx.ops_matmul_norm_recurrent import convert_recurrent
from aotc.relay.frontend.onnx.ops_quant import quantized_matmul_as_float, quantized_tensor_of_scale_zero_inputs
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices, normalize_negative_indices, select_element
from aotc.relay.graph_api import Expr, compile_time_elements

_FLOAT: Final = DType("float32")
_UINT8: Final = DType("uint8")


# --- packed low-bit weights


def _unpack_constant_small_integers(packed: Expr, bits: int, count: int, rows: int = 0) -> Expr:
    """Unpack constant integers of 2, 4 or 8 bits from bytes, lowest bits first, along the last
    axis, and truncate that axis to `count` elements. If `rows` is not 0, the bytes are first
    reshaped to this number of rows.

    Raises AotcError (code "onnx-quant") for bytes that are not constant or too few.
    """
    text = f"integers of {bits} bits in bytes are not supported"
    require("onnx-quant", bits in (2, 4, 8), text)
    data = compile_time_elements(packed)
    if data is None:
        text = "packed integers must be known at compile time"
        raise AotcError("onnx-quant", text)
    data = data.reshape(rows, -1) if rows else data
    mask = np.uint8((1 << bits) - 1)
    parts = data[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)
    parts &= mask
    flat = parts.reshape(*data.shape[:-1], -1)
    text = f"{data.shape} bytes hold no {count} integers of {bits} bits in a row"
    require("onnx-quant", flat.shape[-1] >= count, text)
    return g.constant(flat[..., :count], "uint4" if bits == 4 else "uint8")


def _mat_mul_n_bits(
    x: Expr,
    packed: Expr,
    scales: Expr,
    zeros: OptionalExpr = None,
    g_idx: OptionalExpr = None,
    bias: OptionalExpr = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int,
    **_: Any,
) -> Expr:
    """Convert MatMulNBits: the product of the data with the dequantized matrix (N, K), whose packed
    integers have a scale and a zero point per block of `block_size` elements.
    """
    sizes = f"K = {K}, N = {N}, block_size = {block_size}, bits = {bits}"
    require("onnx-quant", min(K, N, block_size) > 0, f"MatMulNBits needs positive sizes, got {sizes}")
    blocks = -(-K // block_size)
    for label, actual_dims, count in (
        ("columns of the data", g.dims(x)[-1:], K),
        ("bytes of weights", g.shape(packed), N * blocks * -(-block_size * bits // 8)),
        ("scales", g.shape(scales), N * blocks),
    ):
        known = [d for d in actual_dims if isinstance(d, int)]
        text = f"MatMulNBits with {sizes} takes {count} {label}, got {math.prod(known)}"
        require("onnx-quant", len(known) < len(actual_dims) or math.prod(known) == count, text)
    scales = g.reshape(scales, (N, blocks))
    rows = _unpack_constant_small_integers(packed, bits, K, N)
    if zeros is None:
        zeros = g.full(1 << bits - 1, (N, blocks), "uint8")
    elif g.dtype(zeros) == _UINT8:
        zeros = _unpack_constant_small_integers(zeros, bits, blocks, N)
    zeros = g.cast(g.reshape(zeros, (N, blocks)), g.dtype(scales))
    if g_idx is not None:
        scales, zeros = (gather_slices(v, g_idx, 1) for v in (scales, zeros))
        block_size = 1
    weight = q.dequantize_in_blocks(rows, scales, zeros, 1, block_size)
    y = g.call_op("nn.dense", x, weight, units=N)
    return y if bias is None else g.call_op("nn.bias_add", y, bias, axis=-1)


def _gather_block_quantized(
    data: Expr,
    indices: Expr,
    scales: Expr,
    zeros: OptionalExpr = None,
    *,
    bits: int,
    block_size: int,
    gather_axis: int,
    quantize_axis: int,
) -> Expr:
    """Convert GatherBlockQuantized: gather slices of quantized data with their scales and zero
    points, and dequantize them.
    """
    rank = g.rank(data)
    place, along = g.normalize_axis(gather_axis, rank), g.normalize_axis(quantize_axis, rank)
    prefix = "GatherBlockQuantized has blocks along"
    text = f"{prefix} another axis than that of its indices"
    require("onnx-quant", place != along, text)
    middle = 0
    if g.dtype(data) == _UINT8:
        text = f"{prefix} the last axis where it has bytes"
        require("onnx-quant", along == rank - 1, text)
        middle = 1 << bits - 1
        zeros = None if zeros is None else _unpack_constant_small_integers(zeros, bits, g.dim(scales, along))
        data = _unpack_constant_small_integers(data, bits, g.dim(data, along) * (8 // bits))
    zeros = g.full(middle, g.shape(scales), "int32") if zeros is None else zeros
    q.require_finite_scales_if_constant(scales)
    work = g.dtype(scales)
    where = normalize_negative_indices(indices, g.dim(data, place))
    parts = (data, scales, g.cast(zeros, work))
    rows, scales, zeros = (gather_slices(v, where, place) for v in parts)
    along += 0 if along < place else g.rank(indices) - 1
    return q.dequantize_in_blocks(rows, scales, zeros, along, block_size)


# --- floating-point layers with quantized weights


def _dynamic_quantize_lstm(*, direction: str, node: OnnxNode) -> Converted:
    """Convert DynamicQuantizeLSTM as a floating-point LSTM whose weights are dequantized."""
    weights = (_dequantize_and_transpose_lstm_weights(node, k, s) for k, s in ((1, 8), (2, 10)))
    inputs = [node[0], *weights, *(node.optional_input(k) for k in range(3, 8))]
    plain = replace(node, op_type="LSTM", inputs=inputs)
    return convert_recurrent(direction=direction, node=plain)


def _dequantize_and_transpose_lstm_weights(node: OnnxNode, weight_input: int, scale_input: int) -> Expr:
    """Dequantize the weights (directions, inputs, gates) of input `weight_input` and transpose them
    to (directions, gates, inputs); there is one scale per direction, or one per direction and gate.
    Input `scale_input` is the scale, the next input the zero point.
    """
    scale, zero = (
        q.checked_scale_with_single_as_scalar(node[scale_input], "the scale of weights"),
        q.zero_point_as_int32(node[scale_input + 1]),
    )
    count = g.dim(node[weight_input], 0)
    scale, zero = (g.reshape(v, (count, 1, -1)) for v in (scale, zero))
    whole = g.sub(g.cast(node[weight_input], "int32"), zero)
    real = g.mul(g.cast(whole, _FLOAT), scale)
    return g.transpose(real, (0, 2, 1))


def _q_attention(
    *,
    num_heads: int,
    unidirectional: bool = False,
    scale: float = 0.0,
    mask_filter_value: float = -10000.0,
    do_rotary: bool = False,
    node: OnnxNode,
    **_rest: Any,
) -> list[Expr]:
    """Convert QAttention: multi-head attention whose first product (queries, keys and values) is an
    integer product; return the result and the concatenated keys and values.
    """
    text = "QAttention with rotary positions is not supported"
    require("onnx-op", not do_rotary, text)
    heads = _qkv_heads_from_quantized_projection(node, num_heads)
    query, key, value = (select_element(heads, 0, k) for k in range(3))
    past = node.optional_input(8)
    if past is not None:
        key = g.concat([select_element(past, 0, 0), key], 2)
        value = g.concat([select_element(past, 0, 1), value], 2)
    batch, _, steps, size = g.shape(query)
    scores = matmul(query, g.transpose(key, (0, 1, 3, 2)))
    scores = g.mul(scores, scale or 1 / math.sqrt(size))
    positions = g.dim(key, 2)
    hidden = _attention_ignore_mask(node, batch, positions)
    if hidden is not None:
        low = g.mul(g.cast(hidden, _FLOAT), mask_filter_value)
        scores = g.add(scores, low)
    if unidirectional:
        rows = np.arange(steps)[:, None] + positions - steps
        later = g.constant(np.arange(positions) > rows)
        scores = g.where(later, float(_FLOAT.min), scores)
    mixed = matmul(g.call_op("nn.softmax", scores, axis=-1), value)
    y = g.transpose(mixed, (0, 2, 1, 3))
    y = g.reshape(y, (batch, steps, num_heads * size))
    return [y, g.stack([key, value], 0)]


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


def _attention_ignore_mask(node: OnnxNode, batch: int, position_count: int) -> OptionalExpr:
    """Return the boolean mask of positions that attention must ignore, in a shape that broadcasts
    to (batch, heads, steps, positions); None if there is no mask.
    """
    mask = node.optional_input(5)
    if mask is None:
        return None
    if g.dims(mask) == (batch, position_count):
        hidden = g.equal(mask, 0)
    elif g.dims(mask) == (batch,):
        ends = g.reshape(mask, (batch, 1))
        hidden = g.call_op("greater_equal", g.iota(position_count, "int32"), ends)
    else:
        text = f"a mask of shape {g.dims(mask)} is not supported"
        raise AotcError("onnx-quant", text)
    return g.reshape(hidden, (batch, 1, 1, position_count))


OPS: Table = {
    **table_by_function_name(_gather_block_quantized, _mat_mul_n_bits, _q_attention),
    "DynamicQuantizeLSTM": _dynamic_quantize_lstm,
}
