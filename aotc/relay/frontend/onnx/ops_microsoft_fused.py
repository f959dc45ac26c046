# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of operators into which ONNX Runtime's optimizer fuses several others: products and convolutions
with an activation, additions with a normalization, embeddings.

OPS["FusedConv"](x, w, b, node=node)            # an activation of nn.conv2d(x, w) + b
OPS["SkipLayerNormalization"](node=node)        # [nn.layer_norm(input + skip), None, None, input + skip]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce as fold
from typing import Any, Final

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.activations import elu, gelu, hard_sigmoid, leaky_relu, softplus, softsign, swish
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.normalization import mean_centered_and_variance, rms_norm
from aotc.relay.frontend.onnx.node import (
    Converted,
    Converter,
    OnnxNode,
    Strings,
    Table,
    call_converter,
    table_by_function_name,
)
from aotc.relay.frontend.onnx.ops_conv import OPS as CONV_OPS
from aotc.relay.frontend.onnx.ops_legacy import parametric_softplus, scaled_tanh, thresholded_relu
from aotc.relay.frontend.onnx.ops_math import OPS as MATH_OPS
from aotc.relay.frontend.onnx.ops_matmul_norm_recurrent import OPS as MATMUL_OPS
from aotc.relay.frontend.onnx.ops_resize_grids import OPS as RESIZE_OPS
from aotc.relay.frontend.onnx.ops_shape import OPS as SHAPE_OPS
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices, normalize_negative_indices

# --- activations


#: Activation functions of fused operators; their parameters are those that a node lists, in this order.
_ACTIVATIONS: Final[Mapping[str, Callable[..., Expr]]] = {
    "clip": lambda x, low, high: g.clip(x, low, high),
    "elu": lambda x, alpha=1.0: elu(x, alpha=alpha),
    "hardsigmoid": lambda x, alpha=0.2, beta=0.5: hard_sigmoid(x, alpha=alpha, beta=beta),
    "leakyrelu": lambda x, alpha=0.01: leaky_relu(x, alpha=alpha),
    "parametricsoftplus": lambda x, alpha, beta: parametric_softplus(x, alpha=alpha, beta=beta),
    "relu": lambda x: g.call_op("nn.relu", x),
    "scaledtanh": lambda x, alpha, beta: scaled_tanh(x, alpha=alpha, beta=beta),
    "sigmoid": g.sigmoid,
    "softplus": softplus,
    "softsign": softsign,
    "tanh": g.tanh,
    "thresholdedrelu": lambda x, alpha=1.0: thresholded_relu(x, alpha=alpha),
}


def _activate(x: Expr, node: OnnxNode, name: str, numbers: list[float]) -> Expr:
    """Apply the activation function that a fused node names, none if the name is empty."""
    if not name:
        return x
    text = f"activation {name!r} of {node.op_type} is not supported; known: {', '.join(sorted(_ACTIVATIONS))}"
    require("onnx-attribute", name.lower() in _ACTIVATIONS, text)
    function = _ACTIVATIONS[name.lower()]
    try:
        return function(x, *numbers)
    except TypeError:
        text = f"activation {name} of {node.op_type} does not take {len(numbers)} parameters"
        require("onnx-attribute", False, text)
        raise


# --- products and convolutions


def _fused_conv(
    x: Expr, w: Expr, bias: OptionalExpr = None, addend: OptionalExpr = None, *, activation: str = "",
    activation_params: Any = (), group: int = 1, node: OnnxNode,
) -> Expr:  # fmt: skip
    y: Any = CONV_OPS["Conv"](x, w, bias, group=group, node=node)
    y = y if addend is None else g.add(y, addend)
    return _activate(y, node, activation, list(activation_params))


def _fused_gemm(
    a: Expr, b: Expr, c: OptionalExpr = None, *, transA: int, transB: int, alpha: float, beta: float,
    activation: str = "", node: OnnxNode,
) -> Expr:  # fmt: skip
    y: Any = MATMUL_OPS["Gemm"](a, b, c, transA=transA, transB=transB, alpha=alpha, beta=beta)
    names = (f"activation_{name}" for name in ("alpha", "beta", "gamma"))
    return _activate(y, node, activation, [node.attrs[name] for name in names if name in node.attrs])


def _fused_mat_mul(
    a: Expr, b: Expr, *, alpha: float, transA: int, transB: int, transBatchA: int = 0, transBatchB: int = 0
) -> Expr:
    a, b = _transposed_operand(a, transA, transBatchA), _transposed_operand(b, transB, transBatchB)
    return g.multiply_by_number(matmul(a, b), alpha)


def _transposed_operand(x: Expr, swaps_rows: int, has_rows_first: int) -> Expr:
    """Transpose an operand of FusedMatMul: move axis 0 before the last one, then swap the last two."""
    rank = g.rank(x)
    if has_rows_first and rank > 2:
        x = g.transpose(x, (*range(1, rank - 1), 0, rank - 1))
    if swaps_rows and rank > 1:
        x = g.transpose(x, (*range(rank - 2), rank - 1, rank - 2))
    return x


# --- activations with a bias


def _bias_add(x: Expr, bias: Expr, skip: Expr) -> Expr:
    return g.add(g.add(x, bias), skip)


def _bias_dropout(
    x: Expr, bias: Expr, residual: OptionalExpr = None, ratio: OptionalExpr = None,
    training_mode: OptionalExpr = None, *, seed: int = 0, node: OnnxNode,
) -> Converted:  # fmt: skip
    outputs: Any = MATH_OPS["Dropout"](g.add(x, bias), ratio, training_mode, seed=seed, node=node)
    y, mask = outputs
    return [y if residual is None else g.add(y, residual), mask]


def _bias_gelu(x: Expr, bias: Expr) -> Expr:
    return gelu(g.add(x, bias))


def _fast_gelu(x: Expr, bias: OptionalExpr = None) -> Expr:
    return gelu(x if bias is None else g.add(x, bias), approximate="tanh")


def _quick_gelu(x: Expr, *, alpha: float) -> Expr:
    return swish(x, alpha=alpha)


def _bias_softmax(x: Expr, bias: Expr, *, axis: int) -> Expr:
    """Convert BiasSoftmax: softmax over all axes from `axis` on."""
    shape, place = g.shape(x), g.normalize_axis(axis, g.rank(x))
    flat = g.reshape(g.add(x, bias), (*shape[:place], -1))
    return g.reshape(g.call_op("nn.softmax", flat, axis=place), shape)


# --- normalization


def _normalize_last_axis(x: Expr, gamma: Expr, beta: OptionalExpr, epsilon: float) -> Expr:
    shift = g.full(0, g.shape(gamma), g.dtype(gamma)) if beta is None else beta
    return g.call_op("nn.layer_norm", x, gamma, shift, axis=-1, epsilon=epsilon, center=beta is not None)


def _skip_layer_normalization(
    x: Expr, skip: Expr, gamma: Expr, beta: OptionalExpr = None, bias: OptionalExpr = None, *, epsilon: float,
    node: OnnxNode,
) -> Converted:  # fmt: skip
    total = fold(g.add, [part for part in (x, skip, bias) if part is not None])
    y = _normalize_last_axis(total, gamma, beta, epsilon)
    if not node.needs_output(1) and not node.needs_output(2):
        return [y, None, None, total]
    mean, _, variance = mean_centered_and_variance(total, [g.rank(x) - 1])
    return [y, mean, g.div(1.0, g.sqrt(g.add(variance, epsilon))), total]


def _skip_simplified_layer_normalization(
    x: Expr, skip: Expr, gamma: Expr, bias: OptionalExpr = None, *, epsilon: float
) -> Converted:
    total = fold(g.add, [part for part in (x, skip, bias) if part is not None])
    return [rms_norm(total, gamma, 1, epsilon), None, None, total]


def _embed_layer_normalization(*, epsilon: float, node: OnnxNode) -> Converted:
    """Convert EmbedLayerNormalization: the normalized sum of the embeddings of words, positions and segments, the
    number of ones in each row of the mask (0 without a mask), and the sum.
    """
    input_ids, segment_ids, mask, position_ids = node[0], *map(node.optional_input, (1, 7, 8))
    word_embedding, position_embedding, segment_embedding = node[2], node[3], node.optional_input(4)
    gamma, beta = node[5], node[6]
    require(
        "onnx-rank", g.rank(input_ids) == 2, f"input_ids of {node.op_type} must have rank 2, got {g.dims(input_ids)}"
    )
    batch, steps = g.shape(input_ids)
    parts = [_embedding(word_embedding, input_ids)]
    if position_ids is None:
        count = g.dim(position_embedding, 0)
        require("onnx-input", steps <= count, f"{count} positions have an embedding, but there are {steps} steps")
        parts.append(g.strided_slice(position_embedding, [0], [steps], [0]))
    else:
        parts.append(_embedding(position_embedding, position_ids))
    if segment_ids is not None and segment_embedding is not None:
        parts.append(_embedding(segment_embedding, segment_ids))
    total = fold(g.add, parts)
    lengths: Expr = g.full(0, (batch,), "int32")
    if mask is not None:
        lengths = g.count_of_flags(g.equal(mask, 1))
    return [_normalize_last_axis(total, gamma, beta, epsilon), lengths, total]


def _embedding(table: Expr, ids: Expr) -> Expr:
    return gather_slices(table, normalize_negative_indices(ids, g.dim(table, 0)), 0)


# --- operators whose data has the channels last


def _with_channels_last(convert: Converter) -> Converter:
    """Return a converter of an operator whose first input, and its result, have the channels as the last axis."""

    def convert_channels_last(*, node: OnnxNode) -> Converted:
        rank = g.rank(node[0])
        first = g.transpose(node[0], (0, rank - 1, *range(1, rank - 1)))
        result = call_converter(convert, replace(node, inputs=[first, *node.inputs[1:]]))
        values = list(result) if isinstance(result, Sequence) else [result]
        return [
            v if v is None or isinstance(v, Strings) else g.transpose(v, (0, *range(2, g.rank(v)), 1)) for v in values
        ]

    return convert_channels_last


OPS: Table = {
    **table_by_function_name(_bias_add, _bias_dropout, _bias_gelu, _bias_softmax, _embed_layer_normalization),
    **table_by_function_name(_fast_gelu, _fused_conv, _fused_gemm, _fused_mat_mul, _quick_gelu),
    **table_by_function_name(_skip_layer_normalization, _skip_simplified_layer_normalization),
    "Gelu": lambda x: gelu(x),
    "TransposeMatMul": _fused_mat_mul,
}

_CHANNELS_LAST_NAMES: Final = (
    *("AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "LRN", "MaxPool"),
    *("BatchNormalization", "DepthToSpace", "GridSample", "InstanceNormalization", "SpaceToDepth"),
)
_STANDARD_OPS: Final = {**CONV_OPS, **MATMUL_OPS, **RESIZE_OPS, **SHAPE_OPS}
#: Converters of the domain com.ms.internal.nhwc: operators of the standard whose data has the channels last.
CHANNELS_LAST_OPS: Table = {name: _with_channels_last(_STANDARD_OPS[name]) for name in _CHANNELS_LAST_NAMES}
