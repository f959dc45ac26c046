# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of elementwise operators (arithmetic, comparison, logic, activations),
reductions, cumulative operators and sorting.

OPS["add"](x=a, other=1.5, alpha=1)                 # add(cast(a), 1.5)
OPS["mean.dim"](x=a, dim=[2, 3], keepdim=True)      # mean(a, axis=(2, 3), keepdims=True)
"""

import math
from functools import partial

from aotc.ir import AotcError, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.activations import gelu, mish, prelu, relu6, softplus, softsign, swish
from aotc.relay.frontend.converter_signatures import Axis
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Converter, Table, TorchValue
from aotc.relay.frontend.reductions import (
    Reduction,
    apply_reduction,
    log_sum_exp,
    p_norm,
    reduction_by_name,
    reduction_with_narrow_floats_in_float32,
    top_k,
)


def _scale_by_alpha(value: TorchValue, alpha: TorchValue) -> TorchValue:
    """Return `value * alpha`, where both may be numbers or `value` a tensor."""
    if alpha == 1:
        return value
    return g.mul(*tv.cast_operands_to_promoted_dtype(value, alpha)) if tv.is_tensor(value) else value * alpha


def _add(x: TorchValue, other: TorchValue, alpha: TorchValue = 1) -> Expr:
    return _bool_or_numeric_op("logical_or", "add", x, _scale_by_alpha(other, alpha))


def _sub(x: TorchValue, other: TorchValue, alpha: TorchValue = 1) -> Expr:
    return g.sub(*tv.cast_operands_to_promoted_dtype(x, _scale_by_alpha(other, alpha)))


def _bool_or_numeric_op(bool_op: str, numeric_op: str, x: TorchValue, other: TorchValue) -> Expr:
    """Call the binary operator `numeric_op`, or for bool operands the operator `bool_op` (`add` of
    bools is `logical_or`).
    """
    a, b = tv.cast_operands_to_promoted_dtype(x, other)
    return g.call_op(bool_op if g.dtype(a).is_bool else numeric_op, a, b)


_mul = partial(_bool_or_numeric_op, "logical_and", "multiply")
_BITWISE = {name: partial(_bool_or_numeric_op, f"logical_{name}", f"bitwise_{name}") for name in ("and", "or", "xor")}


def _div(x: TorchValue, other: TorchValue, rounding_mode: str | None = None) -> Expr:
    a, b = tv.cast_operands_to_promoted_dtype(x, other)
    if rounding_mode is None:
        return g.div(tv.cast_integers_to_float32(a), tv.cast_integers_to_float32(b))
    if rounding_mode == "floor":
        return g.call_op("floor_divide", a, b)
    return g.call_op("trunc", g.div(a, b)) if g.dtype(a).is_float else g.call_op("trunc_divide", a, b)


def _pow(x: TorchValue, exponent: TorchValue) -> Expr:
    a, b = tv.cast_operands_to_promoted_dtype(x, exponent)
    if isinstance(exponent, (int, float)) and exponent in (1, 2, 3):
        square = g.mul(a, a)
        return {1: a, 2: square}.get(int(exponent)) or g.mul(square, a)
    if g.dtype(a).is_float and exponent in (0.5, -0.5):
        return g.call_op("sqrt" if exponent == 0.5 else "rsqrt", a)
    return g.call_op("power", a, b)


def _promoted_binary_op(name: str, x: TorchValue, other: TorchValue) -> Expr:
    return g.call_op(name, *tv.cast_operands_to_promoted_dtype(x, other))


def _float_unary_op(name: str, x: Expr) -> Expr:
    return g.call_op(name, tv.cast_integers_to_float32(x))


def as_bool(x: Expr) -> Expr:
    """Convert a tensor to bool: True for each element that is not zero."""
    return x if g.dtype(x).is_bool else g.not_equal(x, 0)


def _round(x: Expr, decimals: int = 0) -> Expr:
    if not g.dtype(x).is_float:
        return x
    if not decimals:
        return g.call_op("round", x)
    return g.div(g.call_op("round", g.mul(x, 10.0**decimals)), 10.0**decimals)


def _logical_op(name: str, x: Expr, other: Expr) -> Expr:
    return g.call_op(name, as_bool(x), as_bool(other))


def _unary_op(name: str, x: Expr) -> Expr:
    return g.call_op(name, x)


def sign(x: Expr) -> Expr:
    """Return -1, 0 or 1 by the sign of each element; 0 for NaN, as in PyTorch."""
    if g.dtype(x).is_bool:
        return x
    y = g.call_op("sign", x)
    return g.where(g.call_op("isnan", x), 0.0, y) if g.dtype(x).is_float else y


def _float_class_test(name: str, x: Expr) -> Expr:
    """Call a test of floating-point numbers such as isnan; for integers the result is constant:
    True for isfinite, otherwise False.
    """
    if g.dtype(x).is_float:
        return g.call_op(name, x)
    same = g.equal(x, x)
    return same if name == "isfinite" else g.logical_not(same)


def _where(condition: Expr, x: TorchValue, other: TorchValue) -> Expr:
    return g.call_op("where", as_bool(condition), *tv.cast_operands_to_promoted_dtype(x, other))


def _clamp(x: Expr, min: TorchValue = None, max: TorchValue = None) -> Expr:
    dtype = tv.torch_promoted_dtype_of_operands(x, min, max)
    y = g.cast(x, dtype)
    if isinstance(min, (int, float)) and isinstance(max, (int, float)):
        # if min is greater than max, the result is max
        return g.call_op("clip", y, a_min=min if min < max else max, a_max=max)
    if min is not None:
        y = g.call_op("maximum", y, tv.to_tensor_expr_of_dtype(min, dtype))
    return y if max is None else g.call_op("minimum", y, tv.to_tensor_expr_of_dtype(max, dtype))


def _elu(x: Expr, alpha: TorchValue = 1.0, scale: TorchValue = 1.0, input_scale: TorchValue = 1.0) -> Expr:
    negative = g.mul(g.call_op("expm1", g.multiply_by_number(x, input_scale)), float(alpha))
    return g.multiply_by_number(g.where(g.less(x, 0.0), negative, x), scale)


def _prelu(x: Expr, weight: Expr) -> Expr:
    per_channel = g.rank(x) > 1 and g.rank(weight) == 1
    return prelu(x, g.reshape_along_axis(weight, 1, g.rank(x)) if per_channel else weight)


def _softplus(x: Expr, beta: TorchValue = 1, threshold: TorchValue = 20) -> Expr:
    scaled = g.multiply_by_number(x, beta)
    y = softplus(scaled)
    return g.where(g.greater(scaled, float(threshold)), x, y if beta == 1 else g.div(y, float(beta)))


def _softshrink(x: Expr, lambd: TorchValue = 0.5) -> Expr:
    bound = float(lambd)
    return g.where(g.greater(x, bound), g.sub(x, bound), g.where(g.less(x, -bound), g.add(x, bound), g.mul(x, 0.0)))


def _hardshrink(x: Expr, lambd: TorchValue = 0.5) -> Expr:
    inside = g.logical_and(g.less_equal(x, float(lambd)), g.greater_equal(x, -float(lambd)))
    return g.where(inside, 0, x)


def _glu(x: Expr, dim: Axis = -1) -> Expr:
    whole = tv.static_dim(x, dim)
    require("torch-shape", whole % 2 == 0, f"glu needs a dimension of even size, not {whole}")
    value, gate = g.split(x, [whole // 2] * 2, dim)
    return g.mul(value, g.sigmoid(gate))


_FLOATING = (
    *("exp", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid"),
)
_BINARY = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "maximum": "maximum", "minimum": "minimum", "max.other": "maximum", "min.other": "minimum",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift", "__lshift__": "left_shift",
    "__rshift__": "right_shift", "fmod": "trunc_mod", "remainder": "floor_mod",
}  # fmt: skip


# --- reductions


def reduce_dims(reduction: Reduction, x: Expr, dim: TorchValue = None, keepdim: bool = False) -> Expr:
    """Apply a reduction over the axes `dim`; None or an empty list means all axes. A tensor of rank
    0 is reduced as a vector of one element.
    """
    places = range(g.rank(x)) if dim is None or dim == [] else tv.normalize_distinct_axes(dim, g.rank(x))
    return apply_reduction(reduction, x, places, keepdim)


def _cast_to_sum_dtype(x: Expr, dtype: str | None) -> Expr:
    """Cast `x` to the data type in which PyTorch sums it: `dtype` if given, int64 for integers,
    otherwise the type of `x`.
    """
    return g.cast(x, dtype or (g.dtype(x) if g.dtype(x).is_float else "int64"))


def _sum_like_reduction(
    name: str, x: Expr, dim: TorchValue = None, keepdim: bool = False, dtype: str | None = None
) -> Expr:
    return reduce_dims(reduction_by_name(name), _cast_to_sum_dtype(x, dtype), dim, keepdim)


def _extremum_with_index(name: str, x: Expr, dim: int, keepdim: bool = False) -> list[Expr]:
    return [reduce_dims(reduction_by_name(name), x, [dim], keepdim), _arg_reduction(f"arg{name}", x, dim, keepdim)]


def _arg_reduction(name: str, x: Expr, dim: int | None = None, keepdim: bool = False) -> Expr:
    return g.cast(reduce_dims(reduction_by_name(name), x, dim, keepdim), "int64")


def _bool_reduction(name: str, x: Expr, dim: TorchValue = None, keepdim: bool = False) -> Expr:
    result = reduce_dims(reduction_by_name(name), as_bool(x), dim, keepdim)
    return g.cast(result, "uint8") if g.dtype(x) == "uint8" else result


def _var(
    x: Expr, dim: TorchValue = None, unbiased: TorchValue = True, correction: TorchValue = None, keepdim: bool = False
) -> Expr:
    """Convert var: the mean of squared deviations from the mean; `correction` (1 if `unbiased`) is
    subtracted from the count.
    """
    biased = 1 if unbiased is None else unbiased
    less = float(biased if correction is None else correction)

    @reduction_with_narrow_floats_in_float32
    def variance(y: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
        count = math.prod(tv.static_dims(y)[a] for a in axes)
        centered = g.sub(y, g.call_reduction("mean", y, axes, True))
        squares = g.call_reduction("sum", g.mul(centered, centered), axes, keep)
        return g.mul(squares, 1.0 / (count - less) if count > less else math.nan)

    return reduce_dims(variance, x, dim, keepdim)


def _std(x: Expr, **options: TorchValue) -> Expr:
    return g.call_with_narrow_floats_in_float32(lambda y: g.sqrt(_var(y, **options)), x)


def _statistic_and_mean(
    statistic: Converter, x: Expr, dim: TorchValue = None, keepdim: bool = False, **options: TorchValue
) -> list[Expr]:
    return [statistic(x, dim=dim, keepdim=keepdim, **options), _sum_like_reduction("mean", x, dim, keepdim)]


def _norm(
    x: Expr, p: TorchValue = 2, dim: TorchValue = None, keepdim: bool = False, /, dtype: str | None = None
) -> Expr:
    y = tv.cast_integers_to_float32(x) if dtype is None else g.cast(x, dtype)
    order = 2.0 if p is None or p == "fro" else float(p)
    if math.isinf(order):
        return reduce_dims(reduction_by_name("max" if order > 0 else "min"), g.absolute(y), dim, keepdim)
    if order == 0:
        return reduce_dims(reduction_by_name("sum"), g.cast(as_bool(y), g.dtype(y)), dim, keepdim)
    return p_norm(y, order, lambda powers: reduce_dims(reduction_by_name("sum"), powers, dim, keepdim))


def _linalg_norm(
    x: Expr, ord: TorchValue = None, dim: TorchValue = None, keepdim: bool = False, dtype: str | None = None
) -> Expr:
    axes = range(g.rank(x)) if dim is None else tv.to_int_list(dim)
    if ord is not None and len(axes) != 1 and ord != "fro":
        raise AotcError("torch-op", f"the matrix norm {ord!r} is not supported", hint="vector norms are")
    return _norm(x, ord, dim, keepdim, dtype)


def _cumulative_op(name: str, x: Expr, dim: Axis, dtype: str | None = None) -> Expr:
    y = _cast_to_sum_dtype(x, dtype)
    return g.call_op(name, y, axis=dim, dtype=str(g.dtype(y))) if g.rank(x) else y


def _argsort(x: Expr, dim: Axis = -1, descending: bool = False) -> Expr:
    return g.call_op("argsort", x, axis=dim, is_ascend=not descending, dtype="int64")


def _sort(x: Expr, dim: Axis = -1, descending: bool = False) -> list[Expr]:
    places = _argsort(x, dim, descending)
    return [g.call_op("gather", x, places, axis=dim), places]


def _cosine_similarity(x1: Expr, x2: Expr, dim: int = 1, eps: float = 1e-8) -> Expr:
    total = partial(reduce_dims, reduction_by_name("sum"), dim=[dim])

    def similarity(a: Expr, b: Expr) -> Expr:
        lengths = [g.call_binary_op("maximum", g.sqrt(total(g.mul(y, y))), eps) for y in (a, b)]
        return g.div(total(g.mul(a, b)), g.mul(*lengths))

    return g.call_with_narrow_floats_in_float32(similarity, x1, x2)


OPS: Table = {
    **tv.converter_table_by_function_name(
        _add, _div, _elu, _glu, _hardshrink, _pow, _prelu, _round, _softplus, _softshrink, _sub, _where
    ),
    **tv.converter_table_by_function_name(gelu, mish, relu6, softsign),
    **{name: partial(_float_unary_op, name) for name in _FLOATING},
    **{name: partial(_promoted_binary_op, relay) for name, relay in _BINARY.items()},
    **{f"logical_{name}": partial(_logical_op, f"logical_{name}") for name in ("and", "or", "xor")},
    **{f"bitwise_{name}": converter for name, converter in _BITWISE.items()},
    **{f"__{name}__": converter for name, converter in _BITWISE.items()},
    **{name: partial(_unary_op, name) for name in ("ceil", "floor", "trunc")},
    **{name: partial(_float_class_test, name) for name in ("isfinite", "isinf", "isnan")},
    **dict.fromkeys(("clamp", "clamp_max", "clamp_min"), _clamp),
    "abs": lambda x: x if g.dtype(x).is_bool else g.absolute(x),
    "addcdiv": lambda x, tensor1, tensor2, value=1: _add(x, _div(tensor1, tensor2), value),
    "addcmul": lambda x, tensor1, tensor2, value=1: _add(x, _mul(tensor1, tensor2), value),
    "atan2": lambda x, other: g.call_op(
        "atan2", *map(tv.cast_integers_to_float32, tv.cast_operands_to_promoted_dtype(x, other))
    ),
    "bitwise_not": lambda x: g.call_op("logical_not" if g.dtype(x).is_bool else "bitwise_not", x),
    "celu": lambda x, alpha=1.0: _elu(x, alpha, 1.0, 1.0 / float(alpha)),
    "floor_divide": partial(_div, rounding_mode="floor"),
    "exp2": lambda x: g.call_binary_op("power", 2.0, tv.cast_integers_to_float32(x)),
    "erfc": lambda x: g.sub(1.0, g.call_op("erf", tv.cast_integers_to_float32(x))),
    "hardsigmoid": lambda x: g.div(relu6(g.add(x, 3.0)), 6.0),
    "hardswish": lambda x: g.div(g.mul(x, relu6(g.add(x, 3.0))), 6.0),
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: g.clip(x, float(min_val), float(max_val)),
    "leaky_relu": lambda x, negative_slope=0.01: g.call_op("nn.leaky_relu", x, alpha=float(negative_slope)),
    "lerp": lambda x, end, weight: _add(x, _mul(_sub(end, x), weight)),
    "log_sigmoid": lambda x: g.negative(softplus(g.negative(x))),
    "logical_not": lambda x: g.logical_not(as_bool(x)),
    "masked_fill": lambda x, mask, value: g.call_op(
        "where", as_bool(mask), tv.to_tensor_expr_of_dtype(value, g.dtype(x)), x
    ),
    "mul": _mul,
    "neg": lambda x: g.negative(x),
    "_prelu_kernel": prelu,
    "reciprocal": lambda x: g.div(1.0, tv.cast_integers_to_float32(x)),
    "relu": lambda x: g.call_op("nn.relu", x),
    "rsub": lambda x, other, alpha=1: _sub(other, x, alpha),
    "sign": sign,
    "selu": lambda x: _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    "silu": swish,
    "square": lambda x: g.mul(x, x),
    "tanhshrink": lambda x: g.sub(x, g.tanh(x)),
    "threshold": lambda x, threshold, value: g.where(g.less_equal(x, threshold), value, x),
    **tv.converter_table_by_function_name(_argsort, _cosine_similarity, _linalg_norm, _sort, _std, _var),
    **dict.fromkeys(("norm", "linalg_vector_norm"), _norm),
    **{name: partial(_arg_reduction, name) for name in ("argmax", "argmin")},
    **{f"{a}{name}": partial(reduce_dims, reduction_by_name(name)) for a in ("", "a") for name in ("max", "min")},
    **{f"{name}.dim": partial(_extremum_with_index, name) for name in ("max", "min")},
    **{name: partial(_cumulative_op, name) for name in ("cumprod", "cumsum")},
    **{name: partial(_sum_like_reduction, name) for name in ("mean", "prod", "sum")},
    **{name: partial(_bool_reduction, name) for name in ("all", "any")},
    **{f"is_{name}_true": partial(_bool_reduction, name) for name in ("all", "any")},
    "logsumexp": lambda x, dim, keepdim=False: reduce_dims(log_sum_exp, tv.cast_integers_to_float32(x), dim, keepdim),
    "std_mean": partial(_statistic_and_mean, _std),
    "topk": lambda x, k, dim=-1, largest=True: top_k(x, k, tv.normalize_axis(dim, x), not largest),
    "var_mean": partial(_statistic_and_mean, _var),
}
