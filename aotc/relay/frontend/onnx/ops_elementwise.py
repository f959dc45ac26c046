# SPDX-License-Identifier: Apache-2.0
"""Converters of elementwise and broadcasting operators.

Mod, Pow, BitShift, Cast and their like differ from the graph's operators in data types and corner cases;
most others are rows of a table.

    OPS["Add"](node)                        # add(a, b)
"""

from __future__ import annotations

from functools import reduce as fold

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend.onnx.build import (
    add,
    binary,
    cast,
    constant,
    dims_of,
    div,
    dtype_of,
    emit,
    filled,
    greater,
    less,
    maximum,
    minimum,
    mul,
    only,
    rank_of,
    reshape,
    shape_of,
    where,
)
from aotc.relay.frontend.onnx.load import dtype_of_elem
from aotc.relay.frontend.onnx.node import Converted, Converter, Node, Table

_UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "isnan",
    "Log": "log",
    "Neg": "negative",
    "Not": "logical_not",
    "Relu": "nn.relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
_BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "divide",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "multiply",
    "Or": "logical_or",
    "Sub": "subtract",
    "Xor": "logical_xor",
}
_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _unary(name: str) -> Converter:
    return lambda node: emit(name, node.input(0))


def _binary(name: str) -> Converter:
    def convert(node: Node) -> Expr:
        return emit(name, node.input(0), _aligned(node, node.input(1)))

    return convert


def _aligned(node: Node, b: Expr) -> Expr:
    """The second operand, its axes moved to where `axis` of operator sets 1 to 6 puts them."""
    if "broadcast" not in node.attrs or not node.integer("broadcast") or "axis" not in node.attrs:
        return b
    rank, axis = rank_of(node.input(0)), node.integer("axis")
    after = rank - (axis % rank) - rank_of(b)
    return reshape(b, (*shape_of(b), *(1,) * after))


def _variadic(name: str) -> Converter:
    return lambda node: fold(lambda a, b: emit(name, a, b), node.all_inputs())


def _mean(node: Node) -> Expr:
    parts = node.all_inputs()
    return div(fold(add, parts), float(len(parts)))


def _identity(node: Node) -> Expr:
    return node.input(0)


def _reciprocal(node: Node) -> Expr:
    return div(1.0, node.input(0))


def _is_inf(node: Node) -> Expr:
    x, (negative, positive) = node.input(0), (node.integer("detect_negative", 1), node.integer("detect_positive", 1))
    found = emit("isinf", x)
    if negative and positive:
        return found
    if not negative and not positive:
        return emit("logical_and", found, constant(False))
    return emit("logical_and", found, less(x, 0.0) if negative else greater(x, 0.0))


def _mod(node: Node) -> Expr:
    return emit("trunc_mod" if node.integer("fmod") else "floor_mod", node.input(0), node.input(1))


def _pow(node: Node) -> Expr:
    """The result has the base's type; a floating exponent of an integer base is computed in floating point."""
    base, exponent = node.input(0), _aligned(node, node.input(1))
    if isinstance(exponent, Constant) and exponent.data.size == 1 and not rank_of(exponent) > rank_of(base):
        value = exponent.data.reshape(-1)[0]
        if value == 2:
            return mul(base, base)
        if value == 1:
            return base
    dtype, other = dtype_of(base), dtype_of(exponent)
    if dtype == other:
        return emit("power", base, exponent)
    if dtype.is_float or other.is_integer:
        return emit("power", base, cast(exponent, dtype))
    work = "float64" if dtype.bits > 16 else "float32"
    return cast(emit("power", cast(base, work), cast(exponent, work)), dtype)


def _bit_shift(node: Node) -> Expr:
    """A shift by the width or more, or by a negative amount, leaves only copies of the sign bit."""
    x, amount = node.input(0), node.input(1)
    left = node.text("direction") == "LEFT"
    bits, dtype = dtype_of(x).bits, dtype_of(x)
    op = "left_shift" if left else "right_shift"
    if isinstance(amount, Constant) and bool(np.all((amount.data >= 0) & (amount.data < bits))):
        return emit(op, x, amount)
    inside = less(amount, bits)
    if dtype.is_signed:
        inside = emit("logical_and", inside, binary("greater_equal", amount, 0))
    shifted = emit(op, x, where(inside, amount, 0))
    beyond: Expr = constant(0, dtype)
    if dtype.is_signed and not left:
        beyond = where(less(x, 0), constant(-1, dtype), 0)
    return where(inside, shifted, beyond)


# --- conversions

_SATURATING = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def _legacy_dtype(node: Node) -> DType:
    """The `to` of Cast: a code, and a name in operator sets 1 to 5."""
    to = node.attrs["to"]
    if isinstance(to, str):
        from onnx import TensorProto

        return dtype_of_elem(TensorProto.DataType.Value(to), "the result of Cast")
    return dtype_of_elem(int(to), "the result of Cast")


def convert_dtype(x: Expr, dtype: DType, saturate: bool = True) -> Expr:
    """Cast as ONNX defines it: to float8, values out of range become the greatest finite one if `saturate`."""
    source = dtype_of(x)
    if dtype.is_float and dtype.bits <= 8 and source.is_float and source != dtype:
        if dtype == "float8_e8m0fnu":
            raise AotcError("onnx-cast", "rounding modes of float8e8m0 are not supported")
        if dtype == "float4_e2m1fn" or (saturate and dtype in _SATURATING):
            work = source if source.max >= dtype.max else DType("float32")
            x = emit("clip", cast(x, work), a_min=float(dtype.min), a_max=float(dtype.max))
    return cast(x, dtype)


def _cast(node: Node) -> Expr:
    return convert_dtype(node.input(0), _legacy_dtype(node), bool(node.integer("saturate", 1)))


def _cast_like(node: Node) -> Expr:
    return convert_dtype(node.input(0), dtype_of(node.input(1)), bool(node.integer("saturate", 1)))


def _where(node: Node) -> Expr:
    return where(node.input(0), node.input(1), node.input(2))


def _clip(node: Node) -> Expr:
    """Bounds are attributes up to version 6, inputs after; a bound may be left out or come at run time."""
    x = node.input(0)
    dtype = dtype_of(x)
    low, high = (node.optional(1), node.optional(2))
    if "min" in node.attrs:
        low = constant(node.number("min"), dtype)
    if "max" in node.attrs:
        high = constant(node.number("max"), dtype)
    if isinstance(low, Constant) and isinstance(high, Constant) and dtype.is_float:
        bounds = float(only(low.data, "the least value of Clip")), float(only(high.data, "the greatest value of Clip"))
        if bounds[0] <= bounds[1]:
            return emit("clip", x, a_min=bounds[0], a_max=bounds[1])
    if low is not None:
        x = maximum(x, _scalar(low))
    return x if high is None else minimum(x, _scalar(high))


def _scalar(x: Expr) -> Expr:
    return reshape(x, ()) if dims_of(x) != () else x


def _dropout(node: Node) -> Converted:
    """Inference: the data itself, and a mask of all true.  Training draws random numbers: refused."""
    x = node.input(0)
    training = node.const(2, "training_mode")
    if training is not None and only(training, "training_mode"):
        ratio = node.const(1, "ratio")
        if ratio is None or only(ratio, "ratio") != 0.0:
            raise AotcError("onnx-training", "Dropout in training mode is not supported")
    if not node.wants(1):
        return [x, None]
    mask_type = "bool" if node.since >= 10 else dtype_of(x)
    return [x, filled(True, shape_of(x), mask_type)]


OPS: Table = {
    **{name: _unary(op) for name, op in _UNARY.items()},
    **{name: _binary(op) for name, op in _BINARY.items()},
    **{name: _variadic(op) for name, op in _VARIADIC.items()},
    "BitShift": _bit_shift,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Dropout": _dropout,
    "Identity": _identity,
    "IsInf": _is_inf,
    "Mean": _mean,
    "Mod": _mod,
    "Pow": _pow,
    "Reciprocal": _reciprocal,
    "Where": _where,
}
