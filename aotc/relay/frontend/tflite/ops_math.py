# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of elementwise arithmetic and of reductions.

OPS["ADD"](a, b, node=node)             # with the activation that is fused into it
OPS["MEAN"](x, [1, 2], node=node, keep_dims=True)
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from typing import Any, Final

import numpy as np

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import activations, reductions
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.tflite import int16x8, integer_activations_resize_matmul, integer_elementwise_functions
from aotc.relay.frontend.tflite.interpreter_integer_arithmetic import (
    ACTIVATION_BOUNDS,
    constant_value,
    rescale_rounding_twice,
)
from aotc.relay.frontend.tflite.node import (
    KnownInts,
    Table,
    TfliteNode,
    check_quantization_support,
    has_equal_quantization,
)

Unary = Callable[[Expr], Expr]


# --- unary operators


def _apply_unary(function: Unary, x: Expr) -> Expr:
    return function(x)


def _apply_real_or_integer_function(
    function: Unary, integer_form: Callable[[TfliteNode], Expr], x: Expr, *, node: TfliteNode
) -> Expr:
    """Apply a function of real numbers, or its integer form if the output is quantized."""
    return integer_form(node) if node.has_quantized_output else function(x)


def _unary_operator_builder(name: str) -> Callable[[Expr], Expr]:
    return lambda x: g.call_op(name, x)


def _convert_hard_swish_node(x: Expr, *, node: TfliteNode) -> Expr:
    if node.has_quantized_output:
        return integer_activations_resize_matmul.integer_hard_swish(node)
    return g.div(g.mul(x, activations.relu6(g.add(x, 3.0))), 6.0)


def _convert_gelu_node(x: Expr, *, approximate: bool = False, node: TfliteNode) -> Expr:
    if node.has_quantized_output:
        return integer_elementwise_functions.apply_real_function_by_table(
            "GELU_BY_TANH" if approximate else "GELU", node
        )
    return activations.gelu(x, approximate="tanh" if approximate else "none")


def _convert_leaky_relu_node(x: Expr, *, alpha: float = 0.0, node: TfliteNode) -> Expr:
    if node.has_quantized_output:
        return integer_activations_resize_matmul.integer_leaky_relu(node, alpha)
    return activations.leaky_relu(x, alpha=alpha)


def _convert_prelu_node(x: Expr, slope: Expr, *, node: TfliteNode) -> Expr:
    return (
        integer_activations_resize_matmul.integer_prelu(node)
        if node.has_quantized_output
        else activations.prelu(x, slope)
    )


def _convert_cast_node(x: Expr, *, node: TfliteNode) -> Expr:
    """Convert CAST: quantized integers are cast unchanged, since both interpreters ignore their
    scales.
    """
    return g.cast(x, node.first_output_declaration.dtype)


def _convert_clipping_activation_node(name: str, x: Expr, *, node: TfliteNode) -> Expr:
    """Convert RELU and its relatives; quantized integers are first requantized to the scale of the
    output.
    """
    if not node.has_quantized_output:
        return node.clip_to_activation_bounds(x, name)
    if has_equal_quantization(node.input_declaration(0), node.first_output_declaration):
        return node.clip_to_activation_bounds(x, name)
    if name == "RELU6" and node.rounding.name == "tflm":
        check_quantization_support(node, True)
    return node.clip_to_activation_bounds(
        rescale_rounding_twice(node.per_tensor_quantized_input(0), node.output_quantization()), name
    )


def _convert_logistic_or_tanh_node(name: str, x: Expr, *, node: TfliteNode) -> Expr:
    """Convert LOGISTIC and TANH; for 8-bit quantized integers as a table."""
    if not node.has_quantized_output:
        return g.call_op({"LOGISTIC": "sigmoid", "TANH": "tanh"}[name], x)
    whole, onto = node.per_tensor_quantized_input(0), node.output_quantization()
    if node.has_int16_output:
        return int16x8.int16_logistic_or_tanh(name, whole, onto, node.rounding.name != "tflm")
    return node.rounding.curve(name, whole, onto)


def _convert_quantize_node(x: Expr, *, node: TfliteNode) -> Expr:
    if node.input_declaration(0).is_quantized:
        return node.rounding.rescaled(node.per_tensor_quantized_input(0), node.output_quantization())
    _require_supported_dtype(node, g.dtype(x).is_float)
    return node.rounding.quantize(x, node.output_quantization())


def _require_supported_dtype(node: TfliteNode, is_supported: bool) -> None:
    """Raise AotcError (code "tflite-quant") unless `is_supported`: 32-bit integers, whose scales
    are not read, are not supported.
    """
    require("tflite-quant", is_supported, f"{node.op.name} of {node.input_declaration(0).dtype} is not supported")


def _convert_dequantize_node(x: Expr, *, node: TfliteNode) -> Expr:
    _require_supported_dtype(node, node.input_declaration(0).is_quantized or g.dtype(x).is_float)
    result = node.first_output_declaration.dtype
    require("tflite-output", result.is_float, f"the output of DEQUANTIZE is {result}; it must have a float type")
    return (
        node.dequantized_or_real_input(0)
        if node.input_declaration(0).is_quantized
        else g.cast(x, node.first_output_declaration.dtype)
    )


# --- binary operators


def _require_xnnpack_scale_ratio_limit(node: TfliteNode, scale_ratio: float) -> None:
    """Raise AotcError (code "tflite-quant") if the quotient of scales is 2^8 or more and XNNPACK's
    results, which are not known there, are wanted.
    """
    fits = scale_ratio < 2.0**8 or node.rounding.name != "litert"
    require("tflite-quant", fits, f"the scales of {node.op.name} differ too much for LiteRT's fixed-point arithmetic")


def _convert_add_or_subtract_node(sign: int, a: Expr, b: Expr, *, node: TfliteNode) -> Expr:
    if not node.has_quantized_output:
        return node.apply_fused_activation(g.add(a, b) if sign > 0 else g.sub(a, b))
    x, y, onto = node.per_tensor_quantized_input(0), node.per_tensor_quantized_input(1), node.output_quantization()
    ratios = [float(constant_value(v.scale) / constant_value(onto.scale)) for v in (x, y)]
    _require_xnnpack_scale_ratio_limit(node, max(ratios))
    node = replace(node, rounding=node.rounding.litert_builtin_unless_supported(min(ratios) >= 2.0**-10))
    return node.apply_fused_activation(node.rounding.add(x, y, onto, sign))


def _convert_mul_node(a: Expr, b: Expr, *, node: TfliteNode) -> Expr:
    if not node.has_quantized_output:
        return node.apply_fused_activation(g.mul(a, b))
    x, y, onto = node.per_tensor_quantized_input(0), node.per_tensor_quantized_input(1), node.output_quantization()
    ratio = float(constant_value(x.scale) * constant_value(y.scale) / constant_value(onto.scale))
    _require_xnnpack_scale_ratio_limit(node, ratio)
    node = replace(node, rounding=node.rounding.litert_builtin_unless_supported(ratio >= 2.0**-16))
    return node.apply_fused_activation(node.rounding.multiply_quantized(x, y, onto))


def _convert_div_node(a: Expr, b: Expr, *, node: TfliteNode) -> Expr:
    if node.has_quantized_output:
        return integer_elementwise_functions.quantized_division(node)
    return node.apply_fused_activation(g.div(a, b))


def _convert_binary_node(name: str, a: Expr, b: Expr) -> Expr:
    return g.call_op(name, a, b)


def _convert_floor_div_or_mod_node(name: str, a: Expr, b: Expr, *, node: TfliteNode) -> Expr:
    if node.has_quantized_output:
        return integer_elementwise_functions.quantized_floor_div_or_mod(name, node)
    return g.call_op(name, a, b)


def _convert_comparison_node(name: str, a: Expr, b: Expr, *, node: TfliteNode) -> Expr:
    quantized = node.input_declaration(0).is_quantized or node.input_declaration(1).is_quantized
    return integer_elementwise_functions.compare_quantized(name, node) if quantized else g.call_op(name, a, b)


def _convert_squared_difference_node(a: Expr, b: Expr, *, node: TfliteNode) -> Expr:
    if node.has_quantized_output:
        return integer_activations_resize_matmul.integer_squared_difference(node)
    d = g.sub(a, b)
    return g.mul(d, d)


def _convert_add_n_node(*parts: Expr) -> Expr:
    return reduce(g.add, parts)


def _convert_select_node(condition: Expr, a: Expr, b: Expr) -> Expr:
    """Convert SELECT: a condition that is a vector selects along the first axis."""
    rank = g.rank(a)
    if g.rank(condition) == 1 and rank > 1:
        condition = g.reshape_along_axis(condition, 0, rank)
    return g.where(condition, a, b)


# --- reductions


def _sorted_nonnegative_unique_axes(x: Expr, axes: list[int]) -> list[int]:
    return sorted({g.normalize_axis(a, g.rank(x)) for a in axes})


def _convert_reduction_node(name: str, x: Expr, axes: KnownInts, *, keep_dims: bool = False) -> Expr:
    return reductions.apply_reduction(
        reductions.reduction_by_name(name), x, _sorted_nonnegative_unique_axes(x, axes), bool(keep_dims)
    )


def _convert_reduce_prod_node(x: Expr, axes: KnownInts, *, keep_dims: bool = False, node: TfliteNode) -> Expr:
    if not node.has_quantized_output:
        return _convert_reduction_node("prod", x, axes, keep_dims=keep_dims)
    whole = _sorted_nonnegative_unique_axes(x, axes)
    return integer_elementwise_functions.quantized_product_over_axes(node, whole, bool(keep_dims))


def _convert_reduce_sum_node(x: Expr, axes: KnownInts, *, keep_dims: bool = False, node: TfliteNode) -> Expr:
    if not node.has_quantized_output:
        return _convert_reduction_node("sum", x, axes, keep_dims=keep_dims)
    return integer_elementwise_functions.quantized_sum_over_axes(
        node, _sorted_nonnegative_unique_axes(x, axes), bool(keep_dims)
    )


def _convert_reduce_mean_node(x: Expr, axes: KnownInts, *, keep_dims: bool = False, node: TfliteNode) -> Expr:
    if not node.has_quantized_output:
        return _convert_reduction_node("mean", x, axes, keep_dims=keep_dims)
    whole, places = node.per_tensor_quantized_input(0), _sorted_nonnegative_unique_axes(x, axes)
    count = math.prod(g.dim(x, k) for k in places)
    require("tflite-quant", count > 0, "MEAN over an empty set of integers is not supported")
    few = count < 1 << (16 if node.has_int16_output else 23)
    require("tflite-quant", few, f"MEAN of {count} integers of {node.first_output_declaration.dtype} is not supported")
    sums = g.call_reduction("sum", q.subtract_zero_point(whole.data, whole.zero, -1), places, bool(keep_dims))
    return node.rounding.requantized_mean(sums, whole, count, node.output_quantization())


def _convert_arg_reduction_node(name: str, x: Expr, axis: KnownInts, *, node: TfliteNode) -> Expr:
    require("tflite-input", len(axis) == 1, f"{node.op.name} needs one axis")
    indices = g.call_op(name, x, axis=(g.normalize_axis(axis[0], g.rank(x)),), keepdims=False)
    return g.cast(indices, node.first_output_declaration.dtype)


def _convert_cumsum_node(x: Expr, axis: KnownInts, *, exclusive: bool = False, reverse: bool = False) -> Expr:
    require("tflite-input", len(axis) == 1, "CUMSUM needs one axis")
    place = g.normalize_axis(axis[0], g.rank(x))
    x = g.call_op("reverse", x, axis=place) if reverse else x
    y = g.call_op("cumsum", x, axis=place, dtype=str(g.dtype(x)), exclusive=bool(exclusive))
    return g.call_op("reverse", y, axis=place) if reverse else y


def _convert_l2_normalization_node(x: Expr, *, node: TfliteNode) -> Expr:
    if node.has_quantized_output:
        return node.apply_fused_activation(integer_elementwise_functions.quantized_l2_normalization(node))

    def divide_by_l2_norm_of_last_axis(y: Expr) -> Expr:
        total = g.call_reduction("sum", g.mul(y, y), [g.rank(y) - 1], True)
        return g.div(y, g.maximum(g.sqrt(total), 1e-6))

    return node.apply_fused_activation(g.call_with_narrow_floats_in_float32(divide_by_l2_norm_of_last_axis, x))


_UNARY: Final[dict[str, Unary]] = {
    "CEIL": _unary_operator_builder("ceil"),
    "COS": _unary_operator_builder("cos"),
    "FLOOR": _unary_operator_builder("floor"),
    "LOGICAL_NOT": _unary_operator_builder("logical_not"),
    "ROUND": _unary_operator_builder("round"),
    "SIGN": _unary_operator_builder("sign"),
    "SIN": _unary_operator_builder("sin"),
    "SQUARE": lambda x: g.mul(x, x),
    "ZEROS_LIKE": _unary_operator_builder("zeros_like"),
}
#: Functions of real numbers, and their integer forms.
_FUNCTIONS: Final[dict[str, tuple[Unary, Callable[[TfliteNode], Expr]]]] = {
    "ABS": (g.absolute, integer_elementwise_functions.quantized_abs),
    "ELU": (activations.elu, partial(integer_elementwise_functions.apply_real_function_by_table, "ELU")),
    "EXP": (g.exp, partial(integer_elementwise_functions.apply_real_function_by_table, "EXP")),
    "LOG": (g.log, partial(integer_elementwise_functions.apply_real_function_by_table, "LOG")),
    "NEG": (g.negative, integer_elementwise_functions.quantized_negate),
    "RSQRT": (_unary_operator_builder("rsqrt"), integer_elementwise_functions.quantized_rsqrt),
    "SQRT": (g.sqrt, integer_elementwise_functions.quantized_sqrt),
}
_COMPARISONS: Final = {
    "EQUAL": "equal",
    "GREATER": "greater",
    "GREATER_EQUAL": "greater_equal",
    "LESS": "less",
    "LESS_EQUAL": "less_equal",
    "NOT_EQUAL": "not_equal",
}
_BINARY: Final = {
    "ATAN2": "atan2",
    "BITWISE_XOR": "bitwise_xor",
    "LOGICAL_AND": "logical_and",
    "LOGICAL_OR": "logical_or",
    "MAXIMUM": "maximum",
    "MINIMUM": "minimum",
    "POW": "power",
    "RIGHT_SHIFT": "right_shift",
}
_FLOOR_DIVISIONS: Final = {"FLOOR_DIV": "floor_divide", "FLOOR_MOD": "floor_mod"}
_REDUCTIONS: Final = {"REDUCE_ALL": "all", "REDUCE_ANY": "any", "REDUCE_MAX": "max", "REDUCE_MIN": "min"}


def _convert_bucketize_node(x: Expr, *, boundaries: Any = None) -> Expr:
    """Convert BUCKETIZE: the number of boundaries, float32 in ascending order, that an element is not below. Integers
    are compared as float32, and for NaN all boundaries count.
    """
    limits = np.asarray(boundaries or (), np.float32)
    text = "the boundaries of BUCKETIZE must be numbers in ascending order"
    require("tflite-options", bool(np.all(limits[1:] >= limits[:-1])) and not np.isnan(limits).any(), text)
    exact = "float64" if g.dtype(x) == "float64" else "float32"
    if not limits.size:
        return g.full(0, g.shape(x), "int32")
    table = g.constant(limits.astype(exact))
    return g.call_op("searchsorted", table, g.cast(x, exact), right=True, dtype="int32")


OPS: Table = {
    **{name: partial(_apply_unary, f) for name, f in _UNARY.items()},
    **{name: partial(_apply_real_or_integer_function, *both) for name, both in _FUNCTIONS.items()},
    **{name: partial(_convert_binary_node, f) for name, f in _BINARY.items()},
    **{name: partial(_convert_comparison_node, f) for name, f in _COMPARISONS.items()},
    **{name: partial(_convert_floor_div_or_mod_node, f) for name, f in _FLOOR_DIVISIONS.items()},
    **{name: partial(_convert_reduction_node, f) for name, f in _REDUCTIONS.items()},
    **{name: partial(_convert_clipping_activation_node, name) for name in ACTIVATION_BOUNDS},
    "ADD": partial(_convert_add_or_subtract_node, 1),
    "ADD_N": _convert_add_n_node,
    "ARG_MAX": partial(_convert_arg_reduction_node, "argmax"),
    "ARG_MIN": partial(_convert_arg_reduction_node, "argmin"),
    "BUCKETIZE": _convert_bucketize_node,
    "CAST": _convert_cast_node,
    "CUMSUM": _convert_cumsum_node,
    "DEQUANTIZE": _convert_dequantize_node,
    "DIV": _convert_div_node,
    "GELU": _convert_gelu_node,
    "HARD_SWISH": _convert_hard_swish_node,
    "L2_NORMALIZATION": _convert_l2_normalization_node,
    "LEAKY_RELU": _convert_leaky_relu_node,
    "LOGISTIC": partial(_convert_logistic_or_tanh_node, "LOGISTIC"),
    "MEAN": _convert_reduce_mean_node,
    "MUL": _convert_mul_node,
    "PRELU": _convert_prelu_node,
    "QUANTIZE": _convert_quantize_node,
    "REDUCE_PROD": _convert_reduce_prod_node,
    "SELECT": _convert_select_node,
    "SELECT_V2": g.where,
    "SQUARED_DIFFERENCE": _convert_squared_difference_node,
    "SUB": partial(_convert_add_or_subtract_node, -1),
    "SUM": _convert_reduce_sum_node,
    "TANH": partial(_convert_logistic_or_tanh_node, "TANH"),
}
#: Operators whose converters compute with quantized integers.
INTEGERS: Final = (
    ACTIVATION_BOUNDS.keys()
    | _FUNCTIONS.keys()
    | _COMPARISONS.keys()
    | _FLOOR_DIVISIONS.keys()
    | {
        "ADD",
        "ARG_MAX",
        "ARG_MIN",
        "CAST",
        "DEQUANTIZE",
        "DIV",
        "GELU",
        "HARD_SWISH",
        "L2_NORMALIZATION",
        "LEAKY_RELU",
        "LOGISTIC",
        "MEAN",
        "MUL",
        "PRELU",
        "QUANTIZE",
        "REDUCE_PROD",
        "SQUARED_DIFFERENCE",
        "SUB",
        "SUM",
        "TANH",
    }
)
#: Operators that select quantized integers unchanged, which requires inputs and outputs of one
#: scale.
MOVES: Final = frozenset({"MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN", "SELECT", "SELECT_V2"})
