# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of elementwise arithmetic and of reductions.

OPS["ADD"](a, b, node=node)             # with the activation that is fused into it
OPS["MEAN"](x, [1, 2], node=node, keep_dims=True)
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from typing import Final

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import activations, reductions
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.tflite import int16x8, integer_functions, ops_integers
from aotc.relay.frontend.tflite.integer_semantics import INTERVALS, number, rescaled_twice
from aotc.relay.frontend.tflite.node import Ints, Node, Table, check_scales, same_scales

Unary = Callable[[Expr], Expr]


# --- unary operators


def _unary(function: Unary, x: Expr) -> Expr:
    return function(x)


def _function(function: Unary, integers: Callable[[Node], Expr], x: Expr, *, node: Node) -> Expr:
    """Apply a function of real numbers, or its integer form if the output is quantized."""
    return integers(node) if node.in_integers else function(x)


def _plain(name: str) -> Callable[[Expr], Expr]:
    return lambda x: g.op(name, x)


def _hard_swish(x: Expr, *, node: Node) -> Expr:
    if node.in_integers:
        return ops_integers.hard_swish(node)
    return g.div(g.mul(x, activations.relu6(g.add(x, 3.0))), 6.0)


def _gelu(x: Expr, *, approximate: bool = False, node: Node) -> Expr:
    if node.in_integers:
        return integer_functions.of_real("GELU_BY_TANH" if approximate else "GELU", node)
    return activations.gelu(x, approximate="tanh" if approximate else "none")


def _leaky_relu(x: Expr, *, alpha: float = 0.0, node: Node) -> Expr:
    if node.in_integers:
        return ops_integers.leaky_relu(node, alpha)
    return activations.leaky_relu(x, alpha=alpha)


def _prelu(x: Expr, slope: Expr, *, node: Node) -> Expr:
    return ops_integers.prelu(node) if node.in_integers else activations.prelu(x, slope)


def _cast(x: Expr, *, node: Node) -> Expr:
    """Convert CAST: quantized integers are cast unchanged, since both interpreters ignore their
    scales.
    """
    return g.cast(x, node.result.dtype)


def _relu(name: str, x: Expr, *, node: Node) -> Expr:
    """Convert RELU and its relatives; quantized integers are first requantized to the scale of the
    output.
    """
    if not node.in_integers:
        return node.within(x, name)
    if same_scales(node.tensor(0), node.result):
        return node.within(x, name)
    if name == "RELU6" and node.rounding.name == "tflm":
        check_scales(node, True)
    return node.within(rescaled_twice(node.whole(0), node.onto()), name)


def _curve(name: str, x: Expr, *, node: Node) -> Expr:
    """Convert LOGISTIC and TANH; for 8-bit quantized integers as a table."""
    if not node.in_integers:
        return g.op({"LOGISTIC": "sigmoid", "TANH": "tanh"}[name], x)
    whole, onto = node.whole(0), node.onto()
    if node.in_words:
        return int16x8.curve(name, whole, onto, node.rounding.name != "tflm")
    return node.rounding.curve(name, whole, onto)


def _quantize(x: Expr, *, node: Node) -> Expr:
    if node.tensor(0).quantized:
        return node.rounding.rescaled(node.whole(0), node.onto())
    _require_real(node, g.dtype(x).is_float)
    return node.rounding.quantize(x, node.onto())


def _require_real(node: Node, fits: bool) -> None:
    """Raise AotcError (code "tflite-quant") unless `fits`: 32-bit integers, whose scales are not
    read, are not supported.
    """
    require("tflite-quant", fits, f"{node.op.name} of {node.tensor(0).dtype} is not supported")


def _dequantize(x: Expr, *, node: Node) -> Expr:
    _require_real(node, node.tensor(0).quantized or g.dtype(x).is_float)
    return node.real(0) if node.tensor(0).quantized else g.cast(x, node.result.dtype)


# --- binary operators


def _require_near(node: Node, ratio: float) -> None:
    """Raise AotcError (code "tflite-quant") if the quotient of scales is 2^8 or more and XNNPACK's
    results, which are not known there, are wanted.
    """
    fits = ratio < 2.0**8 or node.rounding.name != "litert"
    require("tflite-quant", fits, f"the scales of {node.op.name} differ too much for LiteRT's fixed-point arithmetic")


def _sum(sign: int, a: Expr, b: Expr, *, node: Node) -> Expr:
    if not node.in_integers:
        return node.activated(g.add(a, b) if sign > 0 else g.sub(a, b))
    x, y, onto = node.whole(0), node.whole(1), node.onto()
    ratios = [float(number(v.scale) / number(onto.scale)) for v in (x, y)]
    _require_near(node, max(ratios))
    node = replace(node, rounding=node.rounding.within(min(ratios) >= 2.0**-10))
    return node.activated(node.rounding.add(x, y, onto, sign))


def _mul(a: Expr, b: Expr, *, node: Node) -> Expr:
    if not node.in_integers:
        return node.activated(g.mul(a, b))
    x, y, onto = node.whole(0), node.whole(1), node.onto()
    ratio = float(number(x.scale) * number(y.scale) / number(onto.scale))
    _require_near(node, ratio)
    node = replace(node, rounding=node.rounding.within(ratio >= 2.0**-16))
    return node.activated(node.rounding.product(x, y, onto))


def _div(a: Expr, b: Expr, *, node: Node) -> Expr:
    if node.in_integers:
        return integer_functions.quotient(node)
    return node.activated(g.div(a, b))


def _binary(name: str, a: Expr, b: Expr) -> Expr:
    return g.op(name, a, b)


def _compared(name: str, a: Expr, b: Expr, *, node: Node) -> Expr:
    quantized = node.tensor(0).quantized or node.tensor(1).quantized
    return integer_functions.compared(name, node) if quantized else g.op(name, a, b)


def _squared_difference(a: Expr, b: Expr, *, node: Node) -> Expr:
    if node.in_integers:
        return ops_integers.squared_difference(node)
    d = g.sub(a, b)
    return g.mul(d, d)


def _add_n(*parts: Expr) -> Expr:
    return reduce(g.add, parts)


def _select(condition: Expr, a: Expr, b: Expr) -> Expr:
    """Convert SELECT: a condition that is a vector selects along the first axis."""
    rank = g.rank(a)
    if g.rank(condition) == 1 and rank > 1:
        condition = g.along(condition, 0, rank)
    return g.where(condition, a, b)


# --- reductions


def _axes(x: Expr, axes: list[int]) -> list[int]:
    return sorted({g.axis(a, g.rank(x)) for a in axes})


def _reduced(name: str, x: Expr, axes: Ints, *, keep_dims: bool = False) -> Expr:
    return reductions.over(reductions.plain(name), x, _axes(x, axes), bool(keep_dims))


def _sum_over(x: Expr, axes: Ints, *, keep_dims: bool = False, node: Node) -> Expr:
    if not node.in_integers:
        return _reduced("sum", x, axes, keep_dims=keep_dims)
    return integer_functions.summed(node, _axes(x, axes), bool(keep_dims))


def _mean(x: Expr, axes: Ints, *, keep_dims: bool = False, node: Node) -> Expr:
    if not node.in_integers:
        return _reduced("mean", x, axes, keep_dims=keep_dims)
    whole, places = node.whole(0), _axes(x, axes)
    count = math.prod(g.dim(x, k) for k in places)
    require("tflite-quant", count > 0, "MEAN over an empty set of integers is not supported")
    few = count < 1 << (16 if node.in_words else 23)
    require("tflite-quant", few, f"MEAN of {count} integers of {node.result.dtype} is not supported")
    sums = g.reduce("sum", q.centered(whole.data, whole.zero, -1), places, bool(keep_dims))
    return node.rounding.mean(sums, whole, count, node.onto())


def _arg(name: str, x: Expr, axis: Ints, *, node: Node) -> Expr:
    require("tflite-input", len(axis) == 1, f"{node.op.name} needs one axis")
    found = g.op(name, x, axis=(g.axis(axis[0], g.rank(x)),), keepdims=False)
    return g.cast(found, node.result.dtype)


def _cumsum(x: Expr, axis: Ints, *, exclusive: bool = False, reverse: bool = False) -> Expr:
    require("tflite-input", len(axis) == 1, "CUMSUM needs one axis")
    place = g.axis(axis[0], g.rank(x))
    x = g.op("reverse", x, axis=place) if reverse else x
    y = g.op("cumsum", x, axis=place, dtype=str(g.dtype(x)), exclusive=bool(exclusive))
    return g.op("reverse", y, axis=place) if reverse else y


def _l2_normalization(x: Expr, *, node: Node) -> Expr:
    if node.in_integers:
        return node.activated(integer_functions.l2_normalized(node))

    def divided(y: Expr) -> Expr:
        total = g.reduce("sum", g.mul(y, y), [g.rank(y) - 1], True)
        return g.div(y, g.maximum(g.sqrt(total), 1e-6))

    return node.activated(g.in_float32(divided, x))


_UNARY: Final[dict[str, Unary]] = {
    "CEIL": _plain("ceil"),
    "COS": _plain("cos"),
    "FLOOR": _plain("floor"),
    "LOGICAL_NOT": _plain("logical_not"),
    "ROUND": _plain("round"),
    "SIGN": _plain("sign"),
    "SIN": _plain("sin"),
    "SQUARE": lambda x: g.mul(x, x),
    "ZEROS_LIKE": _plain("zeros_like"),
}
#: Functions of real numbers, and their integer forms.
_FUNCTIONS: Final[dict[str, tuple[Unary, Callable[[Node], Expr]]]] = {
    "ABS": (g.absolute, integer_functions.absolute),
    "ELU": (activations.elu, partial(integer_functions.of_real, "ELU")),
    "EXP": (g.exp, partial(integer_functions.of_real, "EXP")),
    "LOG": (g.log, partial(integer_functions.of_real, "LOG")),
    "NEG": (g.negative, integer_functions.negated),
    "RSQRT": (_plain("rsqrt"), integer_functions.rsqrt),
    "SQRT": (g.sqrt, integer_functions.root),
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
    "FLOOR_DIV": "floor_divide",
    "FLOOR_MOD": "floor_mod",
    "LOGICAL_AND": "logical_and",
    "LOGICAL_OR": "logical_or",
    "MAXIMUM": "maximum",
    "MINIMUM": "minimum",
    "POW": "power",
    "RIGHT_SHIFT": "right_shift",
}
_REDUCTIONS: Final = {
    "REDUCE_ALL": "all",
    "REDUCE_ANY": "any",
    "REDUCE_MAX": "max",
    "REDUCE_MIN": "min",
    "REDUCE_PROD": "prod",
}

OPS: Table = {
    **{name: partial(_unary, f) for name, f in _UNARY.items()},
    **{name: partial(_function, *both) for name, both in _FUNCTIONS.items()},
    **{name: partial(_binary, f) for name, f in _BINARY.items()},
    **{name: partial(_compared, f) for name, f in _COMPARISONS.items()},
    **{name: partial(_reduced, f) for name, f in _REDUCTIONS.items()},
    **{name: partial(_relu, name) for name in INTERVALS},
    "ADD": partial(_sum, 1),
    "ADD_N": _add_n,
    "ARG_MAX": partial(_arg, "argmax"),
    "ARG_MIN": partial(_arg, "argmin"),
    "CAST": _cast,
    "CUMSUM": _cumsum,
    "DEQUANTIZE": _dequantize,
    "DIV": _div,
    "GELU": _gelu,
    "HARD_SWISH": _hard_swish,
    "L2_NORMALIZATION": _l2_normalization,
    "LEAKY_RELU": _leaky_relu,
    "LOGISTIC": partial(_curve, "LOGISTIC"),
    "MEAN": _mean,
    "MUL": _mul,
    "PRELU": _prelu,
    "QUANTIZE": _quantize,
    "SELECT": _select,
    "SELECT_V2": g.where,
    "SQUARED_DIFFERENCE": _squared_difference,
    "SUB": partial(_sum, -1),
    "SUM": _sum_over,
    "TANH": partial(_curve, "TANH"),
}
#: Operators whose converters compute with quantized integers.
INTEGERS: Final = (
    INTERVALS.keys()
    | _FUNCTIONS.keys()
    | _COMPARISONS.keys()
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
        "SQUARED_DIFFERENCE",
        "SUB",
        "SUM",
        "TANH",
    }
)
#: Operators that select quantized integers unchanged, which requires inputs and outputs of one
#: scale.
MOVES: Final = frozenset({"MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN", "SELECT", "SELECT_V2"})
