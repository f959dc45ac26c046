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
from aotc.relay.frontend.pytorch import converter_values as tv
from aotc.relay.frontend.pytorch.converter_values import Converter, Table, Value
from aotc.relay.frontend.reductions import Reduction, in_float32, log_sum_exp, over, p_norm, plain, top_k


def _scaled(value: Value, alpha: Value) -> Value:
    """Return `value * alpha`, where both may be numbers or `value` a tensor."""
    if alpha == 1:
        return value
    return g.mul(*tv.promoted(value, alpha)) if tv.is_tensor(value) else value * alpha


def _add(x: Value, other: Value, alpha: Value = 1) -> Expr:
    return _either("logical_or", "add", x, _scaled(other, alpha))


def _sub(x: Value, other: Value, alpha: Value = 1) -> Expr:
    return g.sub(*tv.promoted(x, _scaled(other, alpha)))


def _either(logical: str, name: str, x: Value, other: Value) -> Expr:
    """Call the binary operator `name`, or for bool operands the operator `logical` (`add` of bools
    is `logical_or`).
    """
    a, b = tv.promoted(x, other)
    return g.op(logical if g.dtype(a).is_bool else name, a, b)


_mul = partial(_either, "logical_and", "multiply")
_BITWISE = {name: partial(_either, f"logical_{name}", f"bitwise_{name}") for name in ("and", "or", "xor")}


def _div(x: Value, other: Value, rounding_mode: str | None = None) -> Expr:
    a, b = tv.promoted(x, other)
    if rounding_mode is None:
        return g.div(tv.floating(a), tv.floating(b))
    if rounding_mode == "floor":
        return g.op("floor_divide", a, b)
    return g.op("trunc", g.div(a, b)) if g.dtype(a).is_float else g.op("trunc_divide", a, b)


def _pow(x: Value, exponent: Value) -> Expr:
    a, b = tv.promoted(x, exponent)
    if isinstance(exponent, (int, float)) and exponent in (1, 2, 3):
        square = g.mul(a, a)
        return {1: a, 2: square}.get(int(exponent)) or g.mul(square, a)
    if g.dtype(a).is_float and exponent in (0.5, -0.5):
        return g.op("sqrt" if exponent == 0.5 else "rsqrt", a)
    return g.op("power", a, b)


def _binary(name: str, x: Value, other: Value) -> Expr:
    return g.op(name, *tv.promoted(x, other))


def _floating(name: str, x: Expr) -> Expr:
    return g.op(name, tv.floating(x))


def as_bool(x: Expr) -> Expr:
    """Convert a tensor to bool: True for each element that is not zero."""
    return x if g.dtype(x).is_bool else g.binary("not_equal", x, 0)


def _round(x: Expr, decimals: int = 0) -> Expr:
    if not g.dtype(x).is_float:
        return x
    if not decimals:
        return g.op("round", x)
    return g.div(g.op("round", g.mul(x, 10.0**decimals)), 10.0**decimals)


def _logical(name: str, x: Expr, other: Expr) -> Expr:
    return g.op(name, as_bool(x), as_bool(other))


def _unary(name: str, x: Expr) -> Expr:
    return g.op(name, x)


def _finite(name: str, x: Expr) -> Expr:
    """Call a test of floating-point numbers such as isnan; for integers the result is constant:
    True for isfinite, otherwise False.
    """
    if g.dtype(x).is_float:
        return g.op(name, x)
    same = g.equal(x, x)
    return same if name == "isfinite" else g.op("logical_not", same)


def _where(condition: Expr, x: Value, other: Value) -> Expr:
    return g.op("where", as_bool(condition), *tv.promoted(x, other))


def _clamp(x: Expr, min: Value = None, max: Value = None) -> Expr:
    dtype = tv.result_type(x, min, max)
    y = g.cast(x, dtype)
    if isinstance(min, (int, float)) and isinstance(max, (int, float)):
        # if min is greater than max, the result is max
        return g.op("clip", y, a_min=min if min < max else max, a_max=max)
    if min is not None:
        y = g.op("maximum", y, tv.as_tensor(min, dtype))
    return y if max is None else g.op("minimum", y, tv.as_tensor(max, dtype))


def _elu(x: Expr, alpha: Value = 1.0, scale: Value = 1.0, input_scale: Value = 1.0) -> Expr:
    negative = g.mul(g.op("expm1", g.scaled(x, input_scale)), float(alpha))
    return g.scaled(g.where(g.less(x, 0.0), negative, x), scale)


def _prelu(x: Expr, weight: Expr) -> Expr:
    per_channel = g.rank(x) > 1 and g.rank(weight) == 1
    return prelu(x, g.along(weight, 1, g.rank(x)) if per_channel else weight)


def _softplus(x: Expr, beta: Value = 1, threshold: Value = 20) -> Expr:
    scaled = g.scaled(x, beta)
    y = softplus(scaled)
    return g.where(g.greater(scaled, float(threshold)), x, y if beta == 1 else g.div(y, float(beta)))


def _softshrink(x: Expr, lambd: Value = 0.5) -> Expr:
    bound = float(lambd)
    return g.where(g.greater(x, bound), g.sub(x, bound), g.where(g.less(x, -bound), g.add(x, bound), g.mul(x, 0.0)))


def _hardshrink(x: Expr, lambd: Value = 0.5) -> Expr:
    inside = g.op("logical_and", g.binary("less_equal", x, float(lambd)), g.binary("greater_equal", x, -float(lambd)))
    return g.where(inside, 0, x)


def _glu(x: Expr, dim: Axis = -1) -> Expr:
    whole = tv.size(x, dim)
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


def reduced(body: Reduction, x: Expr, dim: Value = None, keepdim: bool = False) -> Expr:
    """Apply a reduction over the axes `dim`; None or an empty list means all axes. A tensor of rank
    0 is reduced as a vector of one element.
    """
    places = range(g.rank(x)) if dim is None or dim == [] else [tv.axis(a, x) for a in tv.ints(dim)]
    return over(body, x, places, keepdim)


def _widened(x: Expr, dtype: str | None) -> Expr:
    """Cast `x` to the data type in which PyTorch sums it: `dtype` if given, int64 for integers,
    otherwise the type of `x`.
    """
    return g.cast(x, dtype or (g.dtype(x) if g.dtype(x).is_float else "int64"))


def _summing(name: str, x: Expr, dim: Value = None, keepdim: bool = False, dtype: str | None = None) -> Expr:
    return reduced(plain(name), _widened(x, dtype), dim, keepdim)


def _extreme_with_place(name: str, x: Expr, dim: int, keepdim: bool = False) -> list[Expr]:
    return [reduced(plain(name), x, [dim], keepdim), _arg(f"arg{name}", x, dim, keepdim)]


def _arg(name: str, x: Expr, dim: int | None = None, keepdim: bool = False) -> Expr:
    return g.cast(reduced(plain(name), x, dim, keepdim), "int64")


def _truth(name: str, x: Expr, dim: Value = None, keepdim: bool = False) -> Expr:
    result = reduced(plain(name), as_bool(x), dim, keepdim)
    return g.cast(result, "uint8") if g.dtype(x) == "uint8" else result


def _var(x: Expr, dim: Value = None, unbiased: Value = True, correction: Value = None, keepdim: bool = False) -> Expr:
    """Convert var: the mean of squared deviations from the mean; `correction` (1 if `unbiased`) is
    subtracted from the count.
    """
    biased = 1 if unbiased is None else unbiased
    less = float(biased if correction is None else correction)

    @in_float32
    def moment(y: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
        count = math.prod(tv.shape(y)[a] for a in axes)
        centered = g.sub(y, g.reduce("mean", y, axes, True))
        squares = g.reduce("sum", g.mul(centered, centered), axes, keep)
        return g.mul(squares, 1.0 / (count - less) if count > less else math.nan)

    return reduced(moment, x, dim, keepdim)


def _std(x: Expr, **options: Value) -> Expr:
    return g.in_float32(lambda y: g.sqrt(_var(y, **options)), x)


def _with_mean(body: Converter, x: Expr, dim: Value = None, keepdim: bool = False, **options: Value) -> list[Expr]:
    return [body(x, dim=dim, keepdim=keepdim, **options), _summing("mean", x, dim, keepdim)]


def _norm(x: Expr, p: Value = 2, dim: Value = None, keepdim: bool = False, /, dtype: str | None = None) -> Expr:
    y = tv.floating(x) if dtype is None else g.cast(x, dtype)
    order = 2.0 if p is None or p == "fro" else float(p)
    if math.isinf(order):
        return reduced(plain("max" if order > 0 else "min"), g.absolute(y), dim, keepdim)
    if order == 0:
        return reduced(plain("sum"), g.cast(as_bool(y), g.dtype(y)), dim, keepdim)
    return p_norm(y, order, lambda powers: reduced(plain("sum"), powers, dim, keepdim))


def _linalg_norm(
    x: Expr, ord: Value = None, dim: Value = None, keepdim: bool = False, dtype: str | None = None
) -> Expr:
    axes = range(g.rank(x)) if dim is None else tv.ints(dim)
    if ord is not None and len(axes) != 1 and ord != "fro":
        raise AotcError("torch-op", f"the matrix norm {ord!r} is not supported", hint="vector norms are")
    return _norm(x, ord, dim, keepdim, dtype)


def _running(name: str, x: Expr, dim: Axis, dtype: str | None = None) -> Expr:
    y = _widened(x, dtype)
    return g.op(name, y, axis=dim, dtype=str(g.dtype(y))) if g.rank(x) else y


def _argsort(x: Expr, dim: Axis = -1, descending: bool = False) -> Expr:
    return g.op("argsort", x, axis=dim, is_ascend=not descending, dtype="int64")


def _sort(x: Expr, dim: Axis = -1, descending: bool = False) -> list[Expr]:
    places = _argsort(x, dim, descending)
    return [g.op("gather", x, places, axis=dim), places]


def _median(x: Expr) -> Expr:
    """Return the median of all elements; of an even number of elements the lower middle one."""
    flat = g.flat(x)
    middle = (tv.shape(flat)[0] - 1) // 2
    return g.op("take", g.op("sort", flat, axis=0, is_ascend=True), g.constant(middle, "int64"), axis=0)


def _cosine_similarity(x1: Expr, x2: Expr, dim: int = 1, eps: float = 1e-8) -> Expr:
    total = partial(reduced, plain("sum"), dim=[dim])

    def similarity(a: Expr, b: Expr) -> Expr:
        lengths = [g.binary("maximum", g.sqrt(total(g.mul(y, y))), eps) for y in (a, b)]
        return g.div(total(g.mul(a, b)), g.mul(*lengths))

    return g.in_float32(similarity, x1, x2)


OPS: Table = {
    **tv.named(_add, _div, _elu, _glu, _hardshrink, _pow, _prelu, _round, _softplus, _softshrink, _sub, _where),
    **tv.named(gelu, mish, relu6, softsign),
    **{name: partial(_floating, name) for name in _FLOATING},
    **{name: partial(_binary, relay) for name, relay in _BINARY.items()},
    **{f"logical_{name}": partial(_logical, f"logical_{name}") for name in ("and", "or", "xor")},
    **{f"bitwise_{name}": converter for name, converter in _BITWISE.items()},
    **{f"__{name}__": converter for name, converter in _BITWISE.items()},
    **{name: partial(_unary, name) for name in ("ceil", "floor", "sign", "trunc")},
    **{name: partial(_finite, name) for name in ("isfinite", "isinf", "isnan")},
    **dict.fromkeys(("clamp", "clamp_max", "clamp_min"), _clamp),
    "abs": lambda x: x if g.dtype(x).is_bool else g.absolute(x),
    "addcdiv": lambda x, tensor1, tensor2, value=1: _add(x, _div(tensor1, tensor2), value),
    "addcmul": lambda x, tensor1, tensor2, value=1: _add(x, _mul(tensor1, tensor2), value),
    "atan2": lambda x, other: g.op("atan2", *map(tv.floating, tv.promoted(x, other))),
    "bitwise_not": lambda x: g.op("logical_not" if g.dtype(x).is_bool else "bitwise_not", x),
    "celu": lambda x, alpha=1.0: _elu(x, alpha, 1.0, 1.0 / float(alpha)),
    "floor_divide": partial(_div, rounding_mode="floor"),
    "erfc": lambda x: g.sub(1.0, g.op("erf", tv.floating(x))),
    "hardsigmoid": lambda x: g.div(relu6(g.add(x, 3.0)), 6.0),
    "hardswish": lambda x: g.div(g.mul(x, relu6(g.add(x, 3.0))), 6.0),
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: g.clip(x, float(min_val), float(max_val)),
    "leaky_relu": lambda x, negative_slope=0.01: g.op("nn.leaky_relu", x, alpha=float(negative_slope)),
    "lerp": lambda x, end, weight: _add(x, _mul(_sub(end, x), weight)),
    "log_sigmoid": lambda x: g.negative(softplus(g.negative(x))),
    "logical_not": lambda x: g.op("logical_not", as_bool(x)),
    "masked_fill": lambda x, mask, value: g.op("where", as_bool(mask), tv.as_tensor(value, g.dtype(x)), x),
    "mul": _mul,
    "neg": lambda x: g.negative(x),
    "_prelu_kernel": prelu,
    "reciprocal": lambda x: g.div(1.0, tv.floating(x)),
    "relu": lambda x: g.op("nn.relu", x),
    "rsub": lambda x, other, alpha=1: _sub(other, x, alpha),
    "selu": lambda x: _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    "silu": swish,
    "square": lambda x: g.mul(x, x),
    "tanhshrink": lambda x: g.sub(x, g.tanh(x)),
    "threshold": lambda x, threshold, value: g.where(g.binary("less_equal", x, threshold), value, x),
    **tv.named(_argsort, _cosine_similarity, _linalg_norm, _median, _sort, _std, _var),
    **dict.fromkeys(("norm", "linalg_vector_norm"), _norm),
    **{name: partial(_arg, name) for name in ("argmax", "argmin")},
    **{f"{a}{name}": partial(reduced, plain(name)) for a in ("", "a") for name in ("max", "min")},
    **{f"{name}.dim": partial(_extreme_with_place, name) for name in ("max", "min")},
    **{name: partial(_running, name) for name in ("cumprod", "cumsum")},
    **{name: partial(_summing, name) for name in ("mean", "prod", "sum")},
    **{name: partial(_truth, name) for name in ("all", "any")},
    "logsumexp": lambda x, dim, keepdim=False: reduced(log_sum_exp, tv.floating(x), dim, keepdim),
    "std_mean": partial(_with_mean, _std),
    "topk": lambda x, k, dim=-1, largest=True: top_k(x, k, tv.axis(dim, x), not largest),
    "var_mean": partial(_with_mean, _var),
}
