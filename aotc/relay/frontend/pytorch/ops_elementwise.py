# SPDX-License-Identifier: Apache-2.0
"""Converters of elementwise operators: arithmetic, comparisons, logic, activations.

OPS["add"](x=a, other=1.5, alpha=1)     # add(cast(a), 1.5)
"""

from __future__ import annotations

import math

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.activations import softplus
from aotc.relay.frontend.pytorch.values import (
    Converter,
    Table,
    Value,
    as_tensor,
    floating,
    promoted,
    result_type,
    unary,
)


def _scaled(value: Value, alpha: Value) -> Value:
    """`value * alpha` for numbers and tensors."""
    if alpha == 1:
        return value
    return g.mul(*promoted(value, alpha)) if hasattr(value, "checked_type") else value * alpha


def _add(x: Value, other: Value, alpha: Value = 1) -> Expr:
    a, b = promoted(x, _scaled(other, alpha))
    return g.op("logical_or", a, b) if g.dtype(a).is_bool else g.add(a, b)


def _sub(x: Value, other: Value, alpha: Value = 1) -> Expr:
    return g.sub(*promoted(x, _scaled(other, alpha)))


def _rsub(x: Value, other: Value, alpha: Value = 1) -> Expr:
    return _sub(other, x, alpha)


def _mul(x: Value, other: Value) -> Expr:
    a, b = promoted(x, other)
    return g.op("logical_and", a, b) if g.dtype(a).is_bool else g.mul(a, b)


def _div(x: Value, other: Value, rounding_mode: str | None = None) -> Expr:
    a, b = promoted(x, other)
    if rounding_mode is None:
        return g.div(floating(a), floating(b))
    if rounding_mode == "floor":
        return g.op("floor_divide", a, b)
    return g.op("trunc", g.div(a, b)) if g.dtype(a).is_float else g.op("trunc_divide", a, b)


def _floor_divide(x: Value, other: Value) -> Expr:
    return _div(x, other, "floor")


def _pow(x: Value, exponent: Value) -> Expr:
    a, b = promoted(x, exponent)
    if isinstance(exponent, (int, float)) and exponent in (1, 2, 3):
        square = g.mul(a, a)
        return {1: a, 2: square}.get(int(exponent)) or g.mul(square, a)
    if g.dtype(a).is_float and exponent in (0.5, -0.5):
        return g.op("sqrt" if exponent == 0.5 else "rsqrt", a)
    return g.op("power", a, b)


def _binary(name: str) -> Converter:
    return lambda x, other: g.op(name, *promoted(x, other))


def _logical(name: str) -> Converter:
    return lambda x, other: g.op(name, as_bool(x), as_bool(other))


def as_bool(x: Expr) -> Expr:
    """Whether each element is not zero."""
    return x if g.dtype(x).is_bool else g.binary("not_equal", x, 0)


def _bitwise(name: str) -> Converter:
    def convert(x: Value, other: Value) -> Expr:
        a, b = promoted(x, other)
        return g.op(f"logical_{name}" if g.dtype(a).is_bool else f"bitwise_{name}", a, b)

    return convert


def _keeping(name: str) -> Converter:
    """A function that keeps the data type."""
    return lambda x: g.op(name, x)


def _rounding(name: str) -> Converter:
    """A function that leaves integers as they are."""
    return lambda x: g.op(name, x) if g.dtype(x).is_float else x


def _round(x: Expr, decimals: int = 0) -> Expr:
    if not g.dtype(x).is_float:
        return x
    return g.op("round", x) if not decimals else g.div(g.op("round", g.mul(x, 10.0**decimals)), 10.0**decimals)


def _bitwise_not(x: Expr) -> Expr:
    return g.op("logical_not" if g.dtype(x).is_bool else "bitwise_not", x)


def _finite(name: str, otherwise: bool) -> Converter:
    """A test of floating-point numbers; of integers the answer is known."""

    def convert(x: Expr) -> Expr:
        if g.dtype(x).is_float:
            return g.op(name, x)
        same = g.binary("equal", x, x)
        return same if otherwise else g.op("logical_not", same)

    return convert


def _where(condition: Expr, x: Value, other: Value) -> Expr:
    a, b = promoted(x, other)
    return g.op("where", as_bool(condition), a, b)


def _masked_fill(x: Expr, mask: Expr, value: Value) -> Expr:
    return g.op("where", as_bool(mask), as_tensor(value, str(g.dtype(x))), x)


def _clamp(x: Expr, min: Value = None, max: Value = None) -> Expr:
    dtype = result_type(x, *(v for v in (min, max) if v is not None))
    y = g.cast(x, dtype)
    if isinstance(min, (int, float)) and isinstance(max, (int, float)):
        return g.op("clip", y, a_min=min if min < max else max, a_max=max)  # where the bounds cross, max wins
    if min is not None:
        y = g.op("maximum", y, as_tensor(min, dtype))
    return y if max is None else g.op("minimum", y, as_tensor(max, dtype))


def _relu(x: Expr) -> Expr:
    return g.op("nn.relu", x)


def gelu(x: Expr, approximate: str = "none") -> Expr:
    """x times the normal distribution function of x, or an approximation through tanh."""
    if approximate == "tanh":
        cubic = g.add(x, g.mul(g.mul(g.mul(x, x), x), 0.044715))
        inner = g.op("tanh", g.mul(cubic, math.sqrt(2.0 / math.pi)))
    else:
        inner = g.op("erf", g.mul(x, math.sqrt(0.5)))
    return g.mul(g.mul(x, 0.5), g.add(inner, 1.0))


def _silu(x: Expr) -> Expr:
    return g.mul(x, g.op("sigmoid", x))


def _hard_sigmoid(x: Expr) -> Expr:
    return g.div(g.op("clip", g.add(x, 3.0), a_min=0.0, a_max=6.0), 6.0)


def _hard_swish(x: Expr) -> Expr:
    return g.div(g.mul(x, g.op("clip", g.add(x, 3.0), a_min=0.0, a_max=6.0)), 6.0)


def _hardtanh(x: Expr, min_val: Value = -1.0, max_val: Value = 1.0) -> Expr:
    return g.op("clip", x, a_min=float(min_val), a_max=float(max_val))


def _elu(x: Expr, alpha: Value = 1.0, scale: Value = 1.0, input_scale: Value = 1.0) -> Expr:
    inner = x if input_scale == 1 else g.mul(x, float(input_scale))
    y = g.where(g.less(x, 0.0), g.mul(g.op("expm1", inner), float(alpha)), x)
    return y if scale == 1 else g.mul(y, float(scale))


def _selu(x: Expr) -> Expr:
    return _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def _celu(x: Expr, alpha: Value = 1.0) -> Expr:
    return _elu(x, alpha, 1.0, 1.0 / float(alpha))


def _leaky_relu(x: Expr, negative_slope: Value = 0.01) -> Expr:
    return g.op("nn.leaky_relu", x, alpha=float(negative_slope))


def _prelu(x: Expr, weight: Expr) -> Expr:
    rank = g.rank(x)
    slope = weight
    if rank > 1 and g.rank(weight) == 1:
        slope = g.reshape(weight, (1, -1, *(1,) * (rank - 2)))
    return g.where(g.less(x, 0.0), g.mul(x, slope), x)


def _softplus(x: Expr, beta: Value = 1, threshold: Value = 20) -> Expr:
    scaled = x if beta == 1 else g.mul(x, float(beta))
    y = softplus(scaled)
    return g.where(g.greater(scaled, float(threshold)), x, y if beta == 1 else g.div(y, float(beta)))


def _softshrink(x: Expr, lambd: Value = 0.5) -> Expr:
    bound = float(lambd)
    return g.where(g.greater(x, bound), g.sub(x, bound), g.where(g.less(x, -bound), g.add(x, bound), g.mul(x, 0.0)))


def _hardshrink(x: Expr, lambd: Value = 0.5) -> Expr:
    inside = g.op("logical_and", g.binary("less_equal", x, float(lambd)), g.binary("greater_equal", x, -float(lambd)))
    return g.op("where", inside, g.constant(0, g.dtype(x)), x)


def _threshold(x: Expr, threshold: Value, value: Value) -> Expr:
    low = g.binary("less_equal", x, threshold)
    return g.op("where", low, g.constant(value, g.dtype(x)), x)


def _glu(x: Expr, dim: int = -1) -> Expr:
    half = g.dims(x)[dim]
    if not isinstance(half, int) or half % 2:
        raise AotcError("torch-shape", f"glu halves a dimension of {half} elements")
    value, gate = g.split(x, [half // 2] * 2, dim % g.rank(x))
    return g.mul(value, g.op("sigmoid", gate))


def _addcmul(x: Expr, tensor1: Expr, tensor2: Expr, value: Value = 1) -> Expr:
    return _add(x, _mul(tensor1, tensor2), value)


def _addcdiv(x: Expr, tensor1: Expr, tensor2: Expr, value: Value = 1) -> Expr:
    return _add(x, _div(tensor1, tensor2), value)


def _lerp(x: Expr, end: Expr, weight: Value) -> Expr:
    return _add(x, _mul(_sub(end, x), weight))


def _abs(x: Expr) -> Expr:
    return x if g.dtype(x).is_bool else g.op("abs", x)


_FLOATING = (
    *("exp", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid"),
)
_COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater"}

OPS: Table = {
    **{name: unary(name) for name in _FLOATING},
    **{name: _binary(relay) for name, relay in {**_COMPARISONS, "ge": "greater_equal"}.items()},
    **{name: _binary(name) for name in ("maximum", "minimum")},
    **{f"logical_{name}": _logical(f"logical_{name}") for name in ("and", "or", "xor")},
    **{f"bitwise_{name}": _bitwise(name) for name in ("and", "or", "xor")},
    **{f"__{name}__": _bitwise(name) for name in ("and", "or", "xor")},
    **{name: _rounding(name) for name in ("ceil", "floor", "trunc")},
    "abs": _abs,
    "add": _add,
    "addcdiv": _addcdiv,
    "addcmul": _addcmul,
    "atan2": lambda x, other: g.op("atan2", *map(floating, promoted(x, other))),
    **dict.fromkeys(("bitwise_left_shift", "__lshift__"), _binary("left_shift")),
    **dict.fromkeys(("bitwise_right_shift", "__rshift__"), _binary("right_shift")),
    "bitwise_not": _bitwise_not,
    "celu": _celu,
    "clamp": _clamp,
    "clamp_max": lambda x, max: _clamp(x, None, max),
    "clamp_min": lambda x, min: _clamp(x, min, None),
    "div": _div,
    "elu": _elu,
    "floor_divide": _floor_divide,
    "erfc": lambda x: g.sub(1.0, g.op("erf", floating(x))),
    "fmod": _binary("trunc_mod"),
    "gelu": gelu,
    "glu": _glu,
    "hardshrink": _hardshrink,
    "hardsigmoid": _hard_sigmoid,
    "hardswish": _hard_swish,
    "hardtanh": _hardtanh,
    "isfinite": _finite("isfinite", True),
    "isinf": _finite("isinf", False),
    "isnan": _finite("isnan", False),
    "leaky_relu": _leaky_relu,
    "lerp": _lerp,
    "log_sigmoid": lambda x: g.op("negative", softplus(g.op("negative", x))),
    "logical_not": lambda x: g.op("logical_not", as_bool(x)),
    "masked_fill": _masked_fill,
    "max.other": _binary("maximum"),
    "min.other": _binary("minimum"),
    "mish": lambda x: g.mul(x, g.op("tanh", softplus(x))),
    "mul": _mul,
    "neg": _keeping("negative"),
    "pow": _pow,
    "prelu": _prelu,
    "_prelu_kernel": lambda x, weight: g.where(g.less(x, 0.0), g.mul(x, weight), x),
    "reciprocal": lambda x: g.div(1.0, floating(x)),
    "relu": _relu,
    "relu6": lambda x: g.op("clip", x, a_min=0.0, a_max=6.0),
    "remainder": _binary("floor_mod"),
    "round": _round,
    "rsub": _rsub,
    "selu": _selu,
    "sign": _keeping("sign"),
    "silu": _silu,
    "softplus": _softplus,
    "softshrink": _softshrink,
    "square": lambda x: g.mul(x, x),
    "sub": _sub,
    "tanhshrink": lambda x: g.sub(x, g.op("tanh", x)),
    "threshold": _threshold,
    "where": _where,
    "softsign": lambda x: g.div(x, g.add(g.op("abs", x), 1.0)),
}
