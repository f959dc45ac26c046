# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of elementwise operators, activation functions, reductions and cumulative
operators.

Operators whose data types or corner cases differ from the graph's operators, such as Mod, Pow and
Cast, have a function each; most others are rows of a table.

    OPS["Add"](a, b)                        # add(a, b)
    OPS["HardSigmoid"](x)                   # clip(x * 0.2 + 0.5, 0, 1)
    OPS["ReduceL2"](x, [1], keepdims=0)     # sqrt(sum(x * x, 1))
"""

import math
from collections.abc import Callable
from functools import partial
from functools import reduce as fold

import numpy as np

from aotc.ir import DType, SymDim, is_static, require, require_static_shape
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import activations, reductions
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.activations import elu, gelu, hard_sigmoid, leaky_relu, mish, softplus, softsign, swish
from aotc.relay.frontend.converter_signatures import Axis, OptionalExpr
from aotc.relay.frontend.onnx.node import Converted, Converter, OnnxNode, SizeInput, Table, table_by_function_name
from aotc.relay.frontend.onnx.run_time_axes import reduce_axes_known_at_run_time
from aotc.relay.frontend.quantization import cast_with_float8_saturation
from aotc.relay.frontend.reductions import Axes, Reduction, reduction_by_name
from aotc.relay.frontend.run_time_slices import largest_of_dims
from aotc.relay.frontend.size_conditions import require_at_least
from aotc.relay.frontend.slice_pad_depth_to_space import normalize_negative_indices
from aotc.relay.graph_api import compile_time_elements

_UNARY = {
    "BitwiseNot": "bitwise_not", "Neg": "negative", "Not": "logical_not", "Relu": "nn.relu",
    **{name: name.lower() for name in (
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor"),
        *("IsNaN", "Log", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"),
    )},
}  # fmt: skip
_BINARY = {
    "Add": "add", "And": "logical_and", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "Div": "divide", "Equal": "equal", "Greater": "greater",
    "GreaterOrEqual": "greater_equal", "Less": "less", "LessOrEqual": "less_equal", "Mul": "multiply",
    "Or": "logical_or", "Sub": "subtract", "Xor": "logical_xor",
}  # fmt: skip
_VARIADIC = {"Max": "maximum", "Min": "minimum"}


def _reshape_rhs_for_legacy_broadcast(a: Expr, b: Expr, axis: int | None, broadcast: int) -> Expr:
    """Reshape the second operand of a binary operator for the attributes `axis` and `broadcast` of
    operator sets 1 to 6: its axes are aligned with those of `a` from `axis` on.
    """
    if axis is None or not broadcast:
        return b
    rank = g.rank(a)
    return g.reshape(b, (*g.shape(b), *(1,) * (rank - axis % rank - g.rank(b))))


def _convert_legacy_broadcast_binary_op(
    name: str, a: Expr, b: Expr, *, axis: int | None = None, broadcast: int = 0
) -> Expr:
    return g.call_op(name, a, _reshape_rhs_for_legacy_broadcast(a, b, axis, broadcast))


def _chain_binary_op_over_inputs(name: str, *parts: Expr) -> Expr:
    return fold(partial(g.call_op, name), parts)


def _sum(*parts: Expr) -> Expr:
    return (
        g.call_with_narrow_floats_in_float32(partial(_chain_binary_op_over_inputs, "add"), *parts)
        if len(parts) > 2
        else _chain_binary_op_over_inputs("add", *parts)
    )


def _mean(*parts: Expr) -> Expr:
    return g.call_with_narrow_floats_in_float32(
        lambda *wide: g.div(_chain_binary_op_over_inputs("add", *wide), float(len(parts))), *parts
    )


def _is_inf(x: Expr, *, detect_negative: int = 1, detect_positive: int = 1) -> Expr:
    result = g.call_op("isinf", x)
    for flag, comparison in ((detect_negative, g.greater), (detect_positive, g.less)):
        if not flag:
            result = g.logical_and(result, comparison(x, 0.0))
    return result


def _pow(base: Expr, exponent: Expr, *, axis: int | None = None, broadcast: int = 0) -> Expr:
    """Convert Pow: the result has the data type of the base; an integer base with a floating-point
    exponent is computed in floating point.
    """
    exponent = _reshape_rhs_for_legacy_broadcast(base, exponent, axis, broadcast)
    if isinstance(exponent, Constant) and exponent.data.size == 1 and g.rank(exponent) <= g.rank(base):
        value = exponent.data.reshape(-1)[0]
        if value == 2:
            return g.mul(base, base)
        if value == 1:
            return base
    dtype, other = g.dtype(base), g.dtype(exponent)
    if dtype == other:
        return g.call_op("power", base, exponent)
    if dtype.is_float or other.is_integer:
        return g.call_op("power", base, g.cast(exponent, dtype))
    work = "float64" if dtype.bits > 16 else "float32"
    return g.cast(g.call_op("power", g.cast(base, work), g.cast(exponent, work)), dtype)


def _bit_shift(x: Expr, amount: Expr, *, direction: str) -> Expr:
    return g.call_op("left_shift" if direction == "LEFT" else "right_shift", x, amount)


def _cast(x: Expr, *, to: DType, saturate: bool = True, round_mode: str = "up") -> Expr:
    return cast_with_float8_saturation(x, to, saturate, round_mode)


def _bit_cast(x: Expr, *, to: DType) -> Expr:
    """Convert BitCast: the bits of the elements as another type of the same width; bool is a byte of 0 or 1."""
    given, wanted = (DType("uint8") if dtype.is_bool else dtype for dtype in (g.dtype(x), to))
    y = g.cast(x, given)
    if given.is_integer and wanted.is_integer and given.bits == wanted.bits:
        return g.cast(g.cast(y, wanted), to)  # conversions of integers keep the bits
    return g.cast(g.call_op("reinterpret", y, dtype=str(wanted)), to)


def _clip(
    x: Expr, low: OptionalExpr = None, high: OptionalExpr = None, *, min: float | None = None, max: float | None = None
) -> Expr:
    """Convert Clip: the bounds are attributes up to version 6 and inputs later; each may be omitted
    or depend on run-time values.
    """
    dtype = g.dtype(x)
    low = low if min is None else g.constant(min, dtype)
    high = high if max is None else g.constant(max, dtype)
    if isinstance(low, Constant) and isinstance(high, Constant) and dtype.is_float:
        least = float(g.require_single_element(low.data, "the least value of Clip"))
        greatest = float(g.require_single_element(high.data, "the greatest value of Clip"))
        if least <= greatest:
            return g.clip(x, least, greatest)
    if low is not None:
        x = g.maximum(x, g.reshape(low, ()))
    return x if high is None else g.minimum(x, g.reshape(high, ()))


def _dropout(
    x: Expr, ratio: OptionalExpr = None, training_mode: OptionalExpr = None, *, seed: int = 0, node: OnnxNode
) -> Converted:
    """Convert Dropout: the data itself and, if wanted, a mask of all true; in training mode elements are dropped.

    Which elements are dropped is decided when compiling, as by numpy's `RandomState(seed)`: element k remains if
    uniform number k is at least the ratio. A node without a seed has seed 0.
    """
    is_wanted, mask_dtype = node.needs_output(1), "bool" if node.since >= 10 else g.dtype(x)
    if training_mode is None or _is_constant_false(training_mode):
        return [x, g.full(True, g.shape(x), mask_dtype) if is_wanted else None]
    g.check_materialization_cost(g.shape(x), "float64", "the random numbers of Dropout")
    uniform = g.constant(np.random.RandomState(seed % 2**32).random_sample(g.shape(x)))
    share = g.constant(0.5, "float64") if ratio is None else g.cast(g.reshape(ratio, ()), "float64")
    kept = g.greater_equal(uniform, share)
    scale = g.cast(g.div(1.0, g.sub(1.0, share)), g.dtype(x))
    training = g.reshape(training_mode, ())
    dropped = g.where(kept, g.mul(x, scale), 0.0)
    mask = g.logical_or(kept, g.logical_not(training))
    return [g.where(training, dropped, x), g.cast(mask, mask_dtype) if is_wanted else None]


def _is_constant_false(flag: Expr) -> bool:
    """Return True if a flag is known at compile time and false. Raises AotcError if it has several values."""
    elements = compile_time_elements(flag)
    return elements is not None and not g.require_single_element(elements, "training_mode")


# --- activation functions


def _celu(x: Expr, *, alpha: float) -> Expr:
    return g.add(g.maximum(x, 0.0), g.minimum(activations.scaled_expm1(g.div(x, alpha), alpha), 0.0))


def _prelu(x: Expr, slope: Expr, *, node: OnnxNode) -> Expr:
    if node.since < 7 and g.rank(slope) == 1 and g.dim(slope, 0) != 1:
        slope = g.reshape_along_axis(slope, 1, g.rank(x))
    return activations.prelu(x, slope)


def _selu(x: Expr, *, alpha: float, gamma: float) -> Expr:
    return g.mul(g.where(g.greater(x, 0.0), x, activations.scaled_expm1(x, alpha)), gamma)


def _apply_along_axis_or_flattened_rest(
    function: Callable[[Expr, int], Expr], x: Expr, *, axis: Axis, node: OnnxNode
) -> Expr:
    """Apply a function along `axis`, as Softmax does; up to version 12 all axes from `axis` on are
    flattened to one.
    """
    if node.since >= 13 or axis == g.rank(x) - 1:
        return function(x, axis)
    shape = g.shape(x)
    flat = g.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))
    return g.reshape(function(flat, 1), shape)


def _hardmax(x: Expr, axis: int) -> Expr:
    best = g.cast(g.call_op("argmax", x, axis=(axis,), keepdims=True), "int64")
    return g.cast(g.equal(g.reshape_along_axis(g.iota(g.dim(x, axis)), axis, g.rank(x)), best), g.dtype(x))


# --- reductions


def _identity(x: Expr) -> Expr:
    return x


def _square(x: Expr) -> Expr:
    return g.mul(x, x)


def _reduction_converter(reduction: Reduction, elementwise_part: Callable[[Expr], Expr] = _identity) -> Converter:
    """Return a converter for a reduction. If `axes` is empty and `noop_with_empty_axes` is set, it
    applies only `elementwise_part`, the elementwise part of the reduction.
    """

    def convert_reduction(
        x: Expr, axes: SizeInput | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Expr:
        values = [] if axes is None else axes.within(-g.rank(x), g.rank(x) - 1)
        if not values and noop_with_empty_axes:
            return elementwise_part(x)
        if not is_static(values):
            return reduce_axes_known_at_run_time(reduction, x, values, keepdims == 1)
        places = [g.normalize_axis(a, g.rank(x)) for a in require_static_shape(values) or range(g.rank(x))]
        return reductions.apply_reduction(reduction, x, places, keepdims == 1)

    return convert_reduction


def _reduce_integers_in_float64(reduction: Reduction) -> Reduction:
    """Return a reduction that casts integer data to float64, applies `reduction`, and casts the
    result back.
    """

    def reduce_in_float64(x: Expr, axes: Axes, keepdims: bool) -> Expr:
        dtype = g.dtype(x)
        return g.cast(reduction(x if dtype.is_float else g.cast(x, "float64"), axes, keepdims), dtype)

    return reduce_in_float64


def _reduction_of_mapped_sum(
    map_before: Callable[[Expr], Expr], map_after: Callable[[Expr], Expr] = _identity
) -> Reduction:
    """Return a reduction that computes `map_after(sum(map_before(x)))` with elementwise functions
    `map_before` and `map_after`, in float32 for narrow floats.
    """
    return reductions.reduction_with_narrow_floats_in_float32(
        lambda x, axes, keepdims: map_after(g.call_reduction("sum", map_before(x), axes, keepdims))
    )


def _arg_reduction(name: str, x: Expr, *, axis: Axis = 0, keepdims: int = 1, select_last_index: bool = False) -> Expr:
    last = {"select_last_index": select_last_index}
    return g.cast(g.call_op(name, x, axis=(axis,), keepdims=keepdims == 1, **last), "int64")


def _cumulative_operator(name: str, x: Expr, axis: Expr, *, reverse: int = 0, exclusive: bool = False) -> Expr:
    """Convert CumSum and CumProd along an axis that may be a run-time value; `reverse` starts from
    the end, `exclusive` excludes the element itself.
    """

    def cumulate_along(axis_index: int) -> Expr:
        y = g.call_op("reverse", x, axis=axis_index) if reverse else x
        y = g.call_op(name, y, axis=axis_index, dtype=str(g.dtype(x)), exclusive=exclusive)
        return g.call_op("reverse", y, axis=axis_index) if reverse else y

    rank = g.rank(x)
    if isinstance(axis, Constant):
        return cumulate_along(g.normalize_axis(int(g.require_single_element(axis.data, "the axis")), rank))
    chosen = normalize_negative_indices(g.reshape(axis, ()), rank)
    result = cumulate_along(0)  # the axis is a run-time value: compute along every axis and select
    for k in range(1, rank):
        result = g.where(g.equal(chosen, k), cumulate_along(k), result)
    return result


def _top_k(x: Expr, k: SizeInput, *, axis: Axis = -1, largest: int = 1) -> list[Expr]:
    sizes = k.within(0, largest_of_dims((g.dims(x)[axis],)))
    require("onnx-topk", len(sizes) == 1, f"`k` of TopK must be one number, got {sizes}")
    if isinstance(sizes[0], SymDim):
        # all elements in order, of which the first ones are taken
        extent = g.dims(x)[axis]
        require_at_least("onnx-topk", extent, sizes[0], f"k is {sizes[0]}, but the axis has only {extent} elements")
        everything = reductions.sorted_elements(x, axis, ascending=not largest)
        return [g.strided_slice(part, [0], sizes, [axis]) for part in everything]
    return reductions.top_k(x, sizes[0], axis, ascending=not largest)


OPS: Table = {
    **table_by_function_name(_bit_cast, _bit_shift, _cast, _celu, _clip, _dropout, _is_inf, _pow, _selu, _top_k),
    **table_by_function_name(elu, gelu, hard_sigmoid, leaky_relu, mish, softplus, softsign, swish),
    **{name: partial(g.call_op, op) for name, op in _UNARY.items()},
    **{name: partial(_convert_legacy_broadcast_binary_op, op) for name, op in _BINARY.items()},
    **{name: partial(_chain_binary_op_over_inputs, op) for name, op in _VARIADIC.items()},
    "Det": lambda x: g.call_op("matrix_determinant", x),
    "Hardmax": partial(_apply_along_axis_or_flattened_rest, _hardmax),
    "Identity": lambda x: x,
    "LogSoftmax": partial(
        _apply_along_axis_or_flattened_rest, lambda x, axis: g.call_op("nn.log_softmax", x, axis=axis)
    ),
    "Mean": _mean,
    "Mod": lambda a, b, *, fmod=0: g.call_op("trunc_mod" if fmod else "floor_mod", a, b),
    "PRelu": _prelu,
    "Reciprocal": lambda x: g.div(1.0, x),
    "Softmax": partial(_apply_along_axis_or_flattened_rest, lambda x, axis: g.call_op("nn.softmax", x, axis=axis)),
    "Sum": _sum,
    "Where": g.where,
    **{f"Arg{name}": partial(_arg_reduction, f"arg{name.lower()}") for name in ("Max", "Min")},
    **{f"Cum{name}": partial(_cumulative_operator, f"cum{name.lower()}") for name in ("Prod", "Sum")},
    **{
        f"Reduce{name}": _reduction_converter(reduction_by_name(name.lower()))
        for name in ("Max", "Mean", "Min", "Prod", "Sum")
    },
    "ReduceL1": _reduction_converter(_reduction_of_mapped_sum(g.absolute), g.absolute),
    "ReduceL2": _reduction_converter(
        _reduce_integers_in_float64(_reduction_of_mapped_sum(_square, g.sqrt)), g.absolute
    ),
    "ReduceLogSum": _reduction_converter(
        _reduce_integers_in_float64(_reduction_of_mapped_sum(_identity, g.log)), g.log
    ),
    "ReduceLogSumExp": _reduction_converter(_reduce_integers_in_float64(reductions.log_sum_exp)),
    "ReduceSumSquare": _reduction_converter(_reduction_of_mapped_sum(_square), _square),
}
