# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of com.microsoft operators that compute in floating point with quantized weights:
packed low-bit weights and recurrent layers.

OPS["MatMulNBits"](x, packed, scales, K=64, N=8, block_size=16, bits=4)     # nn.dense(x, (packed - 8) * scales)
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, DType, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.onnx.node import Converted, OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.onnx.ops_matmul_norm_recurrent import convert_recurrent
from aotc.relay.frontend.onnx.ops_quant import dynamically_quantized_matmul
from aotc.relay.frontend.quantization import QuantizedTensor
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices, normalize_negative_indices, select_element
from aotc.relay.graph_api import Expr, compile_time_elements
from aotc.relay.op.packed_integer_dense import can_round_in_blocks_of

_FLOAT: Final = DType("float32")
_UINT8: Final = DType("uint8")
#: Value of `accuracy_level` that lets products round their data to int8.
_INT8_ACCURACY_LEVEL: Final = 4


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
    accuracy_level: int = 0,
    **_: Any,
) -> Expr:
    """Convert MatMulNBits: the product of the data with the dequantized matrix (N, K), whose packed
    integers have a scale and a zero point per block of `block_size` elements.

    With `accuracy_level` 4, which lets products round their data to int8, float32 data is rounded as ONNX Runtime
    rounds it: in blocks of this size, whose largest magnitude becomes 127.
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
    may_round = accuracy_level == _INT8_ACCURACY_LEVEL and g_idx is None and g.dtype(x) == _FLOAT
    if may_round and can_round_in_blocks_of(block_size) and isinstance(g.dims(x)[-1], int):
        x = g.call_op("nn.contrib_round_blocks", x, block_size=block_size)
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
    """Convert DynamicQuantizeLSTM: an LSTM whose data, as a whole, and whose state, in each step, are rounded to uint8,
    as ONNX Runtime's kernel does with one thread. Products are sums of integers.
    """
    weights = (_dequantize_and_transpose_lstm_weights(node, k, s) for k, s in ((1, 8), (2, 10)))
    inputs = [node[0], *weights, *(node.optional_input(k) for k in range(3, 8))]
    plain = replace(node, op_type="LSTM", inputs=inputs)

    def products(number: int) -> tuple[Callable[[Expr], Expr], Callable[[Expr], Expr]]:
        w, r = (_lstm_weights_of_direction(node, k, s, number) for k, s in ((1, 8), (2, 10)))
        return partial(dynamically_quantized_matmul, w=w), partial(dynamically_quantized_matmul, w=r)

    return convert_recurrent(plain, direction, products=products)


def _lstm_weights_of_direction(node: OnnxNode, weight_input: int, scale_input: int, number: int) -> QuantizedTensor:
    """Return the weights (inputs, gates) of one direction; they have one zero point, and one scale or one for each
    column.
    """
    scale = q.checked_scale_with_single_as_scalar(node[scale_input], "the scale of weights")
    count = g.dim(node[weight_input], 0)
    scale = select_element(g.reshape(scale, (count, -1)), 0, number)
    zero = select_element(g.reshape(node[scale_input + 1], (count, -1)), 0, number)
    zero = select_element(zero, 0, 0)
    scale = g.reshape(scale, ()) if g.dims(scale) == (1,) else scale
    return QuantizedTensor(select_element(node[weight_input], 0, number), scale, q.zero_point_as_int32(zero))


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


OPS: Table = {
    **table_by_function_name(_gather_block_quantized, _mat_mul_n_bits),
    "DynamicQuantizeLSTM": _dynamic_quantize_lstm,
}
