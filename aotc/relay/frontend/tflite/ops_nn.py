# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of layers: convolutions, fully connected layers, pooling, softmax.

Data remains in the layout NHWC. Integer sums of products are requantized with the arithmetic of the
interpreter that `rounding` names.

OPS["CONV_2D"](x, w, bias, padding=0, stride_h=1, stride_w=1, node=node)
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import Array, Dim, is_static, product_of_dims, require, require_static_shape, same_dim, sum_of_dims
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool, matmul_einsum
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.conv_pool import Window
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.size_conditions import require_at_least, require_equal_dims
from aotc.relay.frontend.tflite import int16x8, integer_activations_resize_matmul
from aotc.relay.frontend.tflite.dynamic_quantization import quantize_dynamically
from aotc.relay.frontend.tflite.integer_log_softmax import integer_log_softmax
from aotc.relay.frontend.tflite.node import KnownInts, SizeInput, Table, TfliteNode, check_quantization_support

#: Codes of the schema.
_SAME_PADDING_CODE: Final = 0
_VALID_PADDING_CODE: Final = 1
#: For each pair of types of data and probabilities, the number of fractional bits of the
#: probabilities and their zero point.
_SOFTMAX_OUTPUT_QUANTIZATION: Final = {
    ("int8", "int8"): (8, -128),
    ("uint8", "uint8"): (8, 0),
    ("int8", "int16"): (16, -(1 << 15)),
    ("int16", "int16"): (15, 0),
}
_PLAIN_WEIGHTS_CODE: Final = 0
_NHWC: Final = "NHWC"


def is_same_padding_code(padding: int) -> bool:
    """Return True for SAME and False for VALID padding. Raises AotcError (code "tflite-options") for
    other codes.
    """
    known = padding in (_SAME_PADDING_CODE, _VALID_PADDING_CODE)
    require("tflite-options", known, f"padding {padding} is not supported (0, SAME, and 1, VALID, are)")
    return padding == _SAME_PADDING_CODE


def checked_nhwc_window(
    x: Expr, kernel: Sequence[int], strides: Sequence[int], padding: int, dilations: Any = (1, 1)
) -> Window:
    """Return the window of a TFLite convolution or pool over height and width of `x` in NHWC.
    Raises AotcError if the rank is not 4, a number is not positive, or the window does not fit.
    """
    require("graph-rank", g.rank(x) == 4, f"data of rank {g.rank(x)} is not supported (4 is)")
    numbers = (*kernel, *strides, *dilations)
    require("tflite-options", min(numbers) > 0, f"extents, strides and dilations must be positive: {numbers}")
    window = Window(tuple(kernel), tuple(strides), tuple(dilations), (0, 0, 0, 0))
    spatial = g.dims(x)[1:3]
    if is_same_padding_code(padding):
        pads = conv_pool.same_padding_widths_of_dims(spatial, window)
        text = f"SAME padding depends on the extents {spatial}, which are known at run time only"
        hint = f"give ranges with steps that are multiples of the strides {tuple(strides)}, such as 64..640:32"
        require("graph-dynamic", is_static(pads), text, hint=hint)
        return window.with_pads(require_static_shape(pads))
    text = f"a window of {window.dilated_kernel_extents()} does not fit {spatial}"
    for n, span in zip(spatial, window.dilated_kernel_extents(), strict=True):
        require_at_least("graph-shape", n, span, text)
    return window


# --- convolutions


def _build_layer_convolution(node: TfliteNode, window: Window, groups: int, kernel_layout: str) -> Expr:
    """Build a TFLite convolution with its bias and fused activation, in real numbers or in
    integers.
    """
    place = kernel_layout.index("O")
    how: dict[str, Any] = {"data_layout": _NHWC, "kernel_layout": kernel_layout, "groups": groups}
    bias, last = node.optional_input(2), 3
    if node.needs_dynamic_quantization:
        return node.apply_fused_activation(_dynamic_range_convolution(node, window, how))
    if not node.has_quantized_output:
        y = conv_pool.build_convolution(node[0], node.dequantized_or_real_input(1), window, bias, **how)
        return node.apply_fused_activation(y)
    x, w = node.per_tensor_quantized_input(0), node.quantized_weights_input(1, place)
    onto, sums = node.output_quantization(), _checked_dtype_of_layer_sums(node, place)
    _require_weight_zero_point_zero(node)
    y = conv_pool.build_convolution(
        x.data, w.data, window, bias, zero_points_and_scales=q.qnn_zero_points_and_scales(x, w), out_dtype=sums, **how
    )
    ratio = node.rounding.scale_ratio(x.scale, w.scale, onto)
    return node.apply_fused_activation(_requantize_layer_sums(node, y, ratio, onto, last))


def _require_weight_zero_point_zero(node: TfliteNode) -> None:
    """Raise AotcError (code "tflite-quant") for int8 weights with a zero point other than 0, which
    TFLite Micro ignores and LiteRT refuses.
    """
    weights = node.input_declaration(1)
    fits = weights.dtype == "uint8" or not weights.zero.any()
    require("tflite-quant", fits, f"{node.op.name} has int8 weights with a zero point other than 0")


def _checked_dtype_of_layer_sums(node: TfliteNode, axis: int, bias_input_index: int = 2) -> str:
    """Return the data type of a layer's sums of products; `axis` is the axis of output channels of
    the weights, `bias_input_index` the index of the bias input. Raises AotcError (code "tflite-quant")
    for int16 layers that are not supported.
    """
    if not node.has_int16_output:
        return "int32"
    int16x8.check_int16_layer(node.op.name, node.input_declaration(1), axis, node.optional_input(bias_input_index))
    return int16x8.SUM_DTYPE


def _requantize_layer_sums(node: TfliteNode, sums: Expr, ratio: Array, output: q.OutputQuantization, axis: int) -> Expr:
    how = int16x8.requantize_to_int16 if node.has_int16_output else node.rounding.requantize_sums
    return how(sums, ratio, output, axis)


def _dynamic_range_convolution(node: TfliteNode, window: Window, attributes: Any) -> Expr:
    """Convolve floating-point data with int8 weights: the data is quantized at run time with one
    scale per image, or per pixel for 1 x 1 convolutions of stride 1.
    """
    is_pointwise = {*window.kernel, *window.strides} == {1}
    x, w = (
        quantize_dynamically(node[0], (3,) if is_pointwise else (1, 2, 3)),
        node.quantized_weights_input(1, attributes["kernel_layout"].index("O")),
    )
    x = x.with_zero_point_subtracted() if not is_pointwise and g.dims(node[0])[0] != 1 else x
    sums = conv_pool.build_convolution(
        x.data, w.data, window, zero_points_and_scales=x.qnn_zero_points_and_scales(w), out_dtype="int32", **attributes
    )
    return x.dequantize_sums(sums, w, node.optional_input(2), 3)


def _convert_conv_2d_node(
    x: Expr,
    w: Expr,
    bias: OptionalExpr = None,
    *,
    padding: int,
    stride_h: int,
    stride_w: int,
    dilation_h_factor: int = 1,
    dilation_w_factor: int = 1,
    node: TfliteNode,
) -> Expr:
    """Convert CONV_2D and DEPTHWISE_CONV_2D. The option DepthMultiplier repeats the quotient of output
    and input channels; 0 means that the file does not state it.
    """
    depthwise = node.op.name == "DEPTHWISE_CONV_2D"
    require("graph-rank", g.rank(w) == 4, f"weights of rank {g.rank(w)} are not supported (4 is)")
    fits = not depthwise or g.dim(w, 0) == 1
    text = f"weights of a depthwise convolution need the shape (1, height, width, channels), got {g.shape(w)}"
    require("graph-shape", fits, text)
    dilations = dilation_h_factor, dilation_w_factor
    window = checked_nhwc_window(x, g.shape(w)[1:3], (stride_h, stride_w), padding, dilations)
    inputs, each = g.dim(x, 3), g.dim(w, 3)
    if depthwise:
        multiplier = node.op.option_value("DepthMultiplier") or each // max(inputs, 1)
        text = (
            f"weights for {each} output channels do not fit {inputs} input channels with depth_multiplier {multiplier}"
        )
        require("graph-shape", inputs * multiplier == each, text)
        return _build_layer_convolution(node, window, inputs, "IHWO")
    whole = each > 0 and inputs % each == 0
    require("graph-shape", whole, f"weights for {each} channels do not fit {inputs}")
    return _build_layer_convolution(node, window, inputs // each, "OHWI")


def _convert_transpose_conv_node(
    shape: SizeInput,
    w: Expr,
    x: Expr,
    bias: OptionalExpr = None,
    *,
    padding: int,
    stride_h: int,
    stride_w: int,
    node: TfliteNode,
) -> Expr:
    """Convert TRANSPOSE_CONV; `shape` is the shape of the result, which a convolution with this
    padding and these strides would reduce to the shape of `x`.
    """
    require(
        "graph-rank",
        g.rank(w) == g.rank(x) == shape.count == 4,
        "TRANSPOSE_CONV needs data, weights and an output shape of rank 4",
    )
    batch, *target, channels = g.checked_dims(shape.within(0, None), g.dtype(x), "the result of TRANSPOSE_CONV")
    text = f"the output shape {(batch, *target, channels)} of TRANSPOSE_CONV does not fit data of shape {g.dims(x)}"
    text += f" and weights of shape {g.shape(w)}"
    require_equal_dims("graph-shape", batch, g.dims(x)[0], text)
    require_equal_dims("graph-shape", channels, g.dim(w, 0), text)
    strides = stride_h, stride_w
    require("tflite-options", min(strides) > 0, f"strides must be positive: {strides}")
    window = Window(g.shape(w)[1:3], strides, (1, 1), (0, 0, 0, 0))
    widths = conv_pool.same_padding_widths_of_dims(target, window) if is_same_padding_code(padding) else window.pads
    spans = [
        sum_of_dims((product_of_dims((n - 1, stride)), extent))
        for n, stride, extent in zip(g.dims(x)[1:3], strides, window.kernel, strict=True)
    ]
    pads = [sum_of_dims(pair) for pair in zip(widths[:2], widths[2:], strict=True)]
    extra = [sum_of_dims((t, p)) - s for t, s, p in zip(target, spans, pads, strict=True)]
    text = f"output extents {target} are not possible for an input of shape {g.dims(x)} with strides {strides}"
    require("graph-shape", is_static((*extra, *widths)), f"{text}: they are known at run time only")
    window, output_padding = window.with_pads(require_static_shape(widths)), require_static_shape(extra)
    require("graph-shape", all(0 <= m < s for m, s in zip(output_padding, strides, strict=True)), text)
    how: dict[str, Any] = {"data_layout": _NHWC, "kernel_layout": "OHWI"}
    if not node.has_quantized_output:
        return node.apply_fused_activation(
            conv_pool.build_transposed_convolution(x, w, window, bias, 1, output_padding, **how)
        )
    a, b, onto = node.per_tensor_quantized_input(2), node.quantized_weights_input(1, 0), node.output_quantization()
    _require_weight_zero_point_zero(node)
    how |= {
        "zero_points_and_scales": q.qnn_zero_points_and_scales(a, b),
        "out_dtype": _checked_dtype_of_layer_sums(node, 0, 3),
    }
    y = conv_pool.build_transposed_convolution(x, w, window, bias, 1, output_padding, **how)
    return node.apply_fused_activation(
        _requantize_layer_sums(node, y, node.rounding.scale_ratio(a.scale, b.scale, onto), onto, 3)
    )


def _convert_conv_3d_node(
    x: Expr,
    w: Expr,
    bias: OptionalExpr = None,
    *,
    padding: int,
    stride_d: int,
    stride_h: int,
    stride_w: int,
    dilation_d_factor: int = 1,
    dilation_h_factor: int = 1,
    dilation_w_factor: int = 1,
    node: TfliteNode,
) -> Expr:
    require("graph-rank", g.rank(x) == g.rank(w) == 5, "data and weights need rank 5")
    strides, dilations = (stride_d, stride_h, stride_w), (dilation_d_factor, dilation_h_factor, dilation_w_factor)
    text = f"strides and dilations must be positive: {strides} and {dilations}"
    require("tflite-options", min(*strides, *dilations) > 0, text)
    window = Window(g.shape(w)[:3], strides, dilations, (0,) * 6)
    spatial = g.shape(x)[1:4]
    window = (
        window.with_pads(conv_pool.same_padding_widths(spatial, window)) if is_same_padding_code(padding) else window
    )
    y = conv_pool.build_convolution(x, w, window, bias, data_layout="NDHWC", kernel_layout="DHWIO")
    return node.apply_fused_activation(y)


def _convert_conv_3d_transpose_node(
    shape: KnownInts,
    w: Expr,
    x: Expr,
    bias: OptionalExpr = None,
    *,
    padding: int,
    stride_d: int,
    stride_h: int,
    stride_w: int,
    dilation_d_factor: int = 1,
    dilation_h_factor: int = 1,
    dilation_w_factor: int = 1,
    node: TfliteNode,
) -> Expr:
    """Convert CONV_3D_TRANSPOSE; `shape` is that of the result, and the weights are (depth, height, width, outputs,
    inputs).
    """
    same_rank = g.rank(w) == g.rank(x) == len(shape) == 5
    require("graph-rank", same_rank, "CONV_3D_TRANSPOSE needs data, weights and an output shape of rank 5")
    strides, dilations = (stride_d, stride_h, stride_w), (dilation_d_factor, dilation_h_factor, dilation_w_factor)
    text = f"strides and dilations must be positive: {strides} and {dilations}"
    require("tflite-options", min(*strides, *dilations) > 0, text)
    batch, *target, channels = g.checked_shape(shape, g.dtype(x), "the result of CONV_3D_TRANSPOSE")
    text = f"the output shape {tuple(shape)} of CONV_3D_TRANSPOSE does not fit data of shape {g.shape(x)}"
    text += f" and weights of shape {g.shape(w)}"
    fits = (batch, channels, g.dim(w, 4)) == (g.dim(x, 0), g.dim(w, 3), g.dim(x, 4))
    require("graph-shape", fits, text)
    window = Window(g.shape(w)[:3], strides, dilations, (0,) * 6)
    if is_same_padding_code(padding):
        window = window.with_pads(conv_pool.same_padding_widths(target, window))
    spans = window.covered_input_extents(g.shape(x)[1:4])
    pads = [b + a for b, a in zip(window.pads[:3], window.pads[3:], strict=True)]
    output_padding = tuple(t - s + p for t, s, p in zip(target, spans, pads, strict=True))
    fits = all(0 <= m < s for m, s in zip(output_padding, strides, strict=True))
    require("graph-shape", fits, text)
    y = conv_pool.build_transposed_convolution(
        x, w, window, bias, 1, output_padding, data_layout="NDHWC", kernel_layout="DHWOI"
    )
    return node.apply_fused_activation(y)


# --- products


def _convert_batch_matmul_node(a: Expr, b: Expr, *, adj_x: bool = False, adj_y: bool = False, node: TfliteNode) -> Expr:
    def transpose_matrices(x: Expr) -> Expr:
        rank = g.rank(x)
        return g.transpose(x, (*range(rank - 2), rank - 1, rank - 2))

    least = min(g.rank(a), g.rank(b))
    require("graph-rank", least >= 2, f"matrices must have rank 2, found rank {least}")
    a, b = transpose_matrices(a) if adj_x else a, transpose_matrices(b) if adj_y else b
    return (
        integer_activations_resize_matmul.integer_batch_matmul(node, a, b)
        if node.has_quantized_output
        else matmul_einsum.matmul(a, b)
    )


def _check_dense_data_shape(shape: Sequence[Dim], input_count: int, keep_num_dims: bool) -> None:
    """Raise AotcError (code "graph-shape") unless data of a shape is made of rows of `input_count`
    elements; with `keep_num_dims` its last axis must be such a row.
    """
    text = f"data of shape {tuple(shape)} does not fit weights for {input_count} inputs"
    require("graph-shape", input_count > 0, text)
    require_equal_dims("graph-shape", product_of_dims(shape) % input_count, 0, text)
    last_axis_fits = not keep_num_dims or (bool(shape) and same_dim(shape[-1], input_count))
    require("graph-shape", last_axis_fits, f"{text}, because keep_num_dims is set")


def _convert_fully_connected_node(
    x: Expr,
    w: Expr,
    bias: OptionalExpr = None,
    *,
    weights_format: int = 0,
    keep_num_dims: bool = False,
    node: TfliteNode,
) -> Expr:
    plain = weights_format == _PLAIN_WEIGHTS_CODE
    require("tflite-options", plain, f"weights_format {weights_format} (shuffled weights) is not supported (0 is)")
    require("graph-rank", g.rank(w) == 2, f"weights of rank {g.rank(w)} are not supported (2 is)")
    units, inner = g.shape(w)
    _check_dense_data_shape(g.dims(x), inner, keep_num_dims)
    rows = (product_of_dims(g.dims(x)) // inner, inner)
    lead = g.dims(x)[:-1] if keep_num_dims else rows[:1]
    if node.needs_dynamic_quantization:
        d, v = quantize_dynamically(g.reshape(x, rows), (1,)), node.quantized_weights_input(1, 0)
        sums = g.call_op("qnn.dense", d.data, v.data, *d.qnn_zero_points_and_scales(v), units=units)
        y = d.dequantize_sums(sums, v, bias, 1)
        return g.reshape(node.apply_fused_activation(y), (*lead, units))
    if not node.has_quantized_output:
        y = g.call_op("nn.dense", g.reshape(x, rows), node.dequantized_or_real_input(1), units=units)
        return g.reshape(node.apply_fused_activation(conv_pool.add_optional_bias(y, bias, 1)), (*lead, units))
    a, b = node.per_tensor_quantized_input(0), node.quantized_weights_input(1, 0)
    onto, wide = node.output_quantization(), _checked_dtype_of_layer_sums(node, 0)
    sums = g.call_op(
        "qnn.dense", g.reshape(a.data, rows), b.data, *q.qnn_zero_points_and_scales(a, b), units=units, out_dtype=wide
    )
    sums = conv_pool.add_optional_bias(sums, bias, 1)
    if node.has_int16_output and node.rounding.name == "builtin":
        y = int16x8.requantize_litert_dense(sums, a, b, onto, bias is not None)
    else:
        y = _requantize_layer_sums(node, sums, node.rounding.dense_scale_ratio(a.scale, b.scale, onto), onto, 1)
    return g.reshape(node.apply_fused_activation(y), (*lead, units))


# --- pools


def _window_of_pool_options(x: Expr, node: TfliteNode) -> Window:
    options = ("FilterHeight", "FilterWidth", "StrideH", "StrideW", "Padding")
    fh, fw, sh, sw, padding = (node.op.option_value(name) for name in options)
    text = f"the file states no window, strides and padding for {node.op.name}"
    require("tflite-options", fh is not None, text)
    return checked_nhwc_window(x, (fh, fw), (sh, sw), padding)


def _convert_max_pool_2d_node(x: Expr, *, node: TfliteNode) -> Expr:
    y = conv_pool.build_pool("max", x, _window_of_pool_options(x, node), layout=_NHWC)
    return node.apply_fused_activation(y)


def _convert_average_pool_2d_node(x: Expr, *, node: TfliteNode) -> Expr:
    """Convert AVERAGE_POOL_2D; integer means are rounded half away from zero and include the zero
    point.
    """
    window = _window_of_pool_options(x, node)
    if not node.has_quantized_output:
        return node.apply_fused_activation(conv_pool.build_pool("avg", x, window, layout=_NHWC))
    check_quantization_support(node, True)
    count = math.prod(map(min, window.kernel, _static_spatial_extents(x)))
    few = count < 1 << (32 - g.dtype(x).bits)
    require("tflite-quant", few, f"AVERAGE_POOL_2D of {count} integers of {g.dtype(x)} is not supported")
    return node.apply_fused_activation(_integer_average_pool_half_away(x, window))


def _static_spatial_extents(x: Expr) -> tuple[int, int]:
    return g.dim(x, 1), g.dim(x, 2)


def _integer_average_pool_half_away(x: Expr, window: Window) -> Expr:
    ones = g.full(1, (g.dim(x, 3), *window.kernel, 1), "int8")
    how: dict[str, Any] = {"data_layout": _NHWC, "kernel_layout": "OHWI", "groups": g.dim(x, 3)}
    sums = conv_pool.build_convolution(x, ones, window, out_dtype="int32", **how)
    counts = _in_bounds_element_counts_of_windows(_static_spatial_extents(x), window, _static_spatial_extents(sums))
    half = g.call_op("floor_divide", counts, g.constant(2, "int32"))
    size = g.call_op("floor_divide", g.add(g.absolute(sums), half), counts)
    return g.cast(g.where(g.less(sums, 0), g.negative(size), size), g.dtype(x))


def _in_bounds_element_counts_of_windows(
    spatial_extents: Sequence[int], window: Window, window_counts: Sequence[int]
) -> Expr:
    """Return the number of elements inside the data of each window: one number if all are equal,
    otherwise (1, h, w, 1).
    """
    rows = []
    g.check_materialization_cost(tuple(window_counts), "int64", "the sizes of windows")
    for k, count in enumerate(window_counts):
        begin = np.arange(count) * window.strides[k] - window.pads[k]
        end = np.minimum(begin + window.kernel[k], spatial_extents[k])
        rows.append(end - np.maximum(begin, 0))
    both = np.outer(*rows).astype(np.int32)
    if both.size and (both == both.flat[0]).all():
        return g.constant(both.flat[0], "int32")
    return g.constant(both.reshape(1, *both.shape, 1))


def _convert_l2_pool_2d_node(x: Expr, *, node: TfliteNode) -> Expr:
    window = _window_of_pool_options(x, node)
    root = g.call_with_narrow_floats_in_float32(
        lambda y: g.sqrt(conv_pool.build_pool("avg", g.mul(y, y), window, layout=_NHWC)), x
    )
    return node.apply_fused_activation(root)


# --- activations along an axis


def _convert_softmax_node(x: Expr, *, beta: float, node: TfliteNode) -> Expr:
    require("tflite-options", math.isfinite(beta), f"SOFTMAX has the factor beta {beta}; it must be finite")
    if not node.has_quantized_output:
        return g.call_op("nn.softmax", g.multiply_by_number(x, beta), axis=-1)
    kinds, onto = (
        (str(node.input_declaration(0).dtype), str(node.first_output_declaration.dtype)),
        node.output_quantization(),
    )
    require(
        "tflite-quant",
        kinds in _SOFTMAX_OUTPUT_QUANTIZATION,
        f"SOFTMAX of {kinds[0]} cannot have an output of {kinds[1]}",
    )
    bits, zero = _SOFTMAX_OUTPUT_QUANTIZATION[kinds]
    fits = (
        np.isclose(node.first_output_declaration.scale[0], 2.0**-bits, 1e-3)
        and node.first_output_declaration.zero[0] == zero
    )
    text = f"SOFTMAX of {kinds[0]} gives {kinds[1]} of the scale 2^-{bits} and the zero point {zero}"
    require("tflite-quant", bool(fits), text)
    if kinds[0] != "int16":
        return node.rounding.softmax(node.per_tensor_quantized_input(0), onto, float(beta))
    work = np.float32 if node.rounding.name == "tflm" else np.float64
    return int16x8.int16_softmax(node.per_tensor_quantized_input(0), onto, float(beta), work)


def _convert_log_softmax_node(x: Expr, *, node: TfliteNode) -> Expr:
    if node.has_quantized_output:
        return integer_log_softmax(node)
    return g.call_op("nn.log_softmax", x, axis=-1)


def _convert_local_response_norm_node(x: Expr, *, radius: int, bias: float, alpha: float, beta: float) -> Expr:
    require("tflite-options", 0 <= radius < 1 << 20, f"radius {radius} is not supported")
    size = 2 * radius + 1
    return g.call_op("nn.lrn", x, size=size, axis=g.rank(x) - 1, bias=bias, alpha=alpha * size, beta=beta)


OPS: Table = {
    "AVERAGE_POOL_2D": _convert_average_pool_2d_node,
    "CONV_2D": _convert_conv_2d_node,
    "BATCH_MATMUL": _convert_batch_matmul_node,
    "CONV_3D": _convert_conv_3d_node,
    "CONV_3D_TRANSPOSE": _convert_conv_3d_transpose_node,
    "DEPTHWISE_CONV_2D": _convert_conv_2d_node,
    "FULLY_CONNECTED": _convert_fully_connected_node,
    "L2_POOL_2D": _convert_l2_pool_2d_node,
    "LOCAL_RESPONSE_NORMALIZATION": _convert_local_response_norm_node,
    "LOG_SOFTMAX": _convert_log_softmax_node,
    "MAX_POOL_2D": _convert_max_pool_2d_node,
    "SOFTMAX": _convert_softmax_node,
    "TRANSPOSE_CONV": _convert_transpose_conv_node,
}
#: Operators whose converters compute with quantized integers.
INTEGERS: Final = frozenset(OPS) - {
    "CONV_3D", "CONV_3D_TRANSPOSE", "L2_POOL_2D", "LOCAL_RESPONSE_NORMALIZATION", "MAX_POOL_2D",
}  # fmt: skip
#: Operators that move quantized integers unchanged.
MOVES: Final = frozenset({"MAX_POOL_2D"})
