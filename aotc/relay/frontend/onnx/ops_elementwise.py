# SPDX-License-Identifier: Apache-2.0
"""Converters of elementwise and broadcasting operators.

Mod, Pow, BitShift, Cast and their like differ from the graph's operators in data types and
corner cases; most others are rows of a table.

    OPS["Add"](node)                        # add(a, b)
"""

from __future__ import annotations

from functools import partial
from functools import reduce as fold

import numpy as np

from aotc.ir import AotcError, DType
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.onnx.load import dtype_of_elem
from aotc.relay.frontend.onnx.node import Converted, Converter, Node, Table, of_input
from aotc.relay.frontend.quantisation import converted

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
_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _binary(name: str) -> Converter:
    return lambda node: g.op(name, node[0], _aligned(node, node[1]))


def _variadic(name: str) -> Converter:
    return lambda node: fold(partial(g.op, name), node.all_inputs())


def _aligned(node: Node, b: Expr) -> Expr:
    """The second operand, its axes moved to where `axis` of operator sets 1 to 6 puts them."""
    if "broadcast" not in node.attrs or not node.integer("broadcast") or "axis" not in node.attrs:
        return b
    rank, axis = g.rank(node[0]), node.integer("axis")
    after = rank - (axis % rank) - g.rank(b)
    return g.reshape(b, (*g.shape(b), *(1,) * after))


def _is_inf(node: Node) -> Expr:
    x, (negative, positive) = node[0], (node.integer("detect_negative", 1), node.integer("detect_positive", 1))
    found = g.op("isinf", x)
    if negative and positive:
        return found
    if not negative and not positive:
        return g.op("logical_and", found, g.constant(False))
    return g.op("logical_and", found, g.less(x, 0.0) if negative else g.greater(x, 0.0))


def _pow(node: Node) -> Expr:
    """The result has the base's type; a floating exponent of an integer base is computed in
    floating point.
    """
    base, exponent = node[0], _aligned(node, node[1])
    if isinstance(exponent, Constant) and exponent.data.size == 1 and not g.rank(exponent) > g.rank(base):
        value = exponent.data.reshape(-1)[0]
        if value == 2:
            return g.mul(base, base)
        if value == 1:
            return base
    dtype, other = g.dtype(base), g.dtype(exponent)
    if dtype == other:
        return g.op("power", base, exponent)
    if dtype.is_float or other.is_integer:
        return g.op("power", base, g.cast(exponent, dtype))
    work = "float64" if dtype.bits > 16 else "float32"
    return g.cast(g.op("power", g.cast(base, work), g.cast(exponent, work)), dtype)


def _bit_shift(node: Node) -> Expr:
    """A shift by the width or more, or by a negative amount, leaves only copies of the sign bit."""
    x, amount = node[0], node[1]
    left = node.text("direction") == "LEFT"
    bits, dtype = g.dtype(x).bits, g.dtype(x)
    op = "left_shift" if left else "right_shift"
    if isinstance(amount, Constant) and bool(np.all((amount.data >= 0) & (amount.data < bits))):
        return g.op(op, x, amount)
    inside = g.less(amount, bits)
    if dtype.is_signed:
        inside = g.op("logical_and", inside, g.binary("greater_equal", amount, 0))
    shifted = g.op(op, x, g.where(inside, amount, 0))
    beyond: Expr = g.constant(0, dtype)
    if dtype.is_signed and not left:
        beyond = g.where(g.less(x, 0), g.constant(-1, dtype), 0)
    return g.where(inside, shifted, beyond)


# --- conversions


def _legacy_dtype(node: Node) -> DType:
    """The `to` of Cast: a code, and a name in operator sets 1 to 5."""
    to = node.attrs["to"]
    if isinstance(to, str):
        from onnx import TensorProto

        return dtype_of_elem(TensorProto.DataType.Value(to), "the result of Cast")
    return dtype_of_elem(int(to), "the result of Cast")


def _converted(node: Node, dtype: DType) -> Expr:
    return converted(node[0], dtype, node.flag("saturate", 1))


def _clip(node: Node) -> Expr:
    """Bounds are attributes up to version 6, inputs after; a bound may be left out or come at run time."""
    x = node[0]
    dtype = g.dtype(x)
    low, high = (node.optional(1), node.optional(2))
    if "min" in node.attrs:
        low = g.constant(node.number("min"), dtype)
    if "max" in node.attrs:
        high = g.constant(node.number("max"), dtype)
    if isinstance(low, Constant) and isinstance(high, Constant) and dtype.is_float:
        bounds = (
            float(g.only(low.data, "the least value of Clip")),
            float(g.only(high.data, "the greatest value of Clip")),
        )
        if bounds[0] <= bounds[1]:
            return g.op("clip", x, a_min=bounds[0], a_max=bounds[1])
    if low is not None:
        x = g.maximum(x, _scalar(low))
    return x if high is None else g.minimum(x, _scalar(high))


def _scalar(x: Expr) -> Expr:
    return g.reshape(x, ()) if g.dims(x) != () else x


def _dropout(node: Node) -> Converted:
    """Inference: the data itself, and a mask of all true.  Training draws random numbers: refused."""
    x = node[0]
    training = node.const(2, "training_mode")
    if training is not None and g.only(training, "training_mode"):
        ratio = node.const(1, "ratio")
        if ratio is None or g.only(ratio, "ratio") != 0.0:
            raise AotcError("onnx-training", "Dropout in training mode is not supported")
    if not node.wants(1):
        return [x, None]
    mask_type = "bool" if node.since >= 10 else g.dtype(x)
    return [x, g.filled(True, g.shape(x), mask_type)]


OPS: Table = {
    **{name: of_input(partial(g.op, op)) for name, op in _UNARY.items()},
    **{name: _binary(op) for name, op in _BINARY.items()},
    **{name: _variadic(op) for name, op in _VARIADIC.items()},
    "BitShift": _bit_shift,
    "Cast": lambda node: _converted(node, _legacy_dtype(node)),
    "CastLike": lambda node: _converted(node, g.dtype(node[1])),
    "Clip": _clip,
    "Dropout": _dropout,
    "Identity": of_input(lambda x: x),
    "IsInf": _is_inf,
    "Mean": lambda node: g.div(fold(g.add, node.all_inputs()), float(len(node.inputs))),
    "Mod": lambda node: g.op("trunc_mod" if node.integer("fmod") else "floor_mod", node[0], node[1]),
    "Pow": _pow,
    "Reciprocal": of_input(lambda x: g.div(1.0, x)),
    "Where": lambda node: g.where(node[0], node[1], node[2]),
}
