# SPDX-License-Identifier: Apache-2.0
"""SimplifyExpr removes operators without effect and shortens chains of operators; DivToMul
multiplies by reciprocals.

add(reshape(reshape(%x, (6,)), (2, 3)), 0f)
%x                                               # where %x: Tensor[(2, 3), float32]

Rules on values are arithmetic identities, and chains of casts and clips. They are exact, except for
the sign of a zero (x + 0, if "compile.accuracy" is "fast") and the last bit of a power; NaN and
infinity are preserved. Rules on element positions remove reshapes, transposes, slices,
concatenations and pads without effect, or merge two of them.

DivToMul: multiply by the reciprocal instead of dividing by a constant.

divide(%x, 4f)
multiply(%x, 0.25f)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np

from aotc.ir import DType, NoAttrs, OpPattern, PassContext, TensorType
from aotc.relay.expr import Call, Constant, Expr, Tuple, splat, tensor_type_of
from aotc.relay.op import REGISTRY
from aotc.relay.op.binary_elementwise import divide, multiply
from aotc.relay.op.broadcast_like import collapse_sum_to
from aotc.relay.op.casts import cast as make_cast
from aotc.relay.op.elementwise_unary import relu, rsqrt, sqrt
from aotc.relay.op.shape import TransposeAttrs, broadcast_to, permutation, reshape, transpose
from aotc.relay.transform.pass_base import Outcome, Rule, RulePass, WhyNot, is_uniform, op_call, recall, uniform_value

#: Operators that broadcast their operands against each other, as numpy does.
_BROADCASTS: Final = tuple(
    op for op in REGISTRY.values() if op.pattern is OpPattern.BROADCAST and op.arity > 1 and op.attrs is NoAttrs
)
#: Largest number of nodes inspected to prove that an expression is not negative.
_LOOKS: Final = 16
_ENLARGES: Final = WhyNot("the constant broadcasts the other operand")


def _keep(node: Call, x: Expr) -> Outcome:
    """Return `x` as the replacement of `node`, or WhyNot if `node` broadcasts it to a larger shape."""
    return x if x.checked_type == node.checked_type else _ENLARGES


def _neutral(value: float, sides: tuple[int, ...]) -> Callable[[Call], Outcome]:
    """Return a rewrite rule that drops an operand whose elements are all `value`, if its position
    is in `sides`.

    A zero of the other sign is dropped for integers, and for floats if the accuracy is "fast": -0.0
    + 0.0 is 0.0.
    """

    def rewrite(node: Call) -> Outcome:
        fast = PassContext.current().get_config("compile.accuracy", "fast") == "fast"
        either = value == 0 and (fast or not tensor_type_of(node).dtype.is_float)
        for side in sides:
            if is_uniform(node.args[side], value) or (either and is_uniform(node.args[side], -value)):
                return _keep(node, node.args[1 - side])
        return None

    return rewrite


def _twice(name: str, keep: int) -> Callable[[Call], Outcome]:
    """Return a rewrite rule for an operator applied to its own result, which leaves `keep` (0 or 1)
    applications.
    """

    def rewrite(node: Call) -> Outcome:
        inner = op_call(node.args[0], name)
        return None if inner is None else inner if keep else inner.args[0]

    return rewrite


def _maximum_zero(node: Call) -> Outcome:
    for x, zero in (node.args, node.args[::-1]):
        if is_uniform(zero, 0.0) and not isinstance(x, Constant):
            return relu(x) if x.checked_type == node.checked_type else _ENLARGES
    return None


def _is_natural(x: Expr) -> bool:
    """Return True if no element is negative or -0.0, proven through sums, means and products of
    squares, abs and exp.
    """
    todo, seen = [x], 0
    while todo:
        node, seen = todo.pop(), seen + 1
        value = uniform_value(node)
        if value is not None and math.copysign(1.0, float(value)) > 0:
            continue
        if not isinstance(node, Call) or seen > _LOOKS:
            return False
        square = str(node.op) == "multiply" and node.args[0] is node.args[1]
        if square or str(node.op) in ("abs", "exp", "sigmoid"):
            continue
        if str(node.op) not in ("add", "multiply", "divide", "sum", "mean", "reshape", "expand_dims", "squeeze"):
            return False
        todo.extend(node.args)
    return True


def _power(node: Call) -> Outcome:
    x, exponent = node.args
    value = uniform_value(exponent)
    if value is None or not tensor_type_of(x).dtype.is_float or value not in (1, 2, 3, -1, 0.5, -0.5):
        return None
    if x.checked_type != node.checked_type:
        return _ENLARGES
    if value == -1:
        return divide(Constant(np.ones_like(exponent.data)), x) if isinstance(exponent, Constant) else None
    if abs(value) == 0.5:
        # sqrt differs from power for -inf and -0.0
        if _is_natural(x):
            return sqrt(x) if value > 0 else rsqrt(x)
        return WhyNot("the base may be negative")
    squared = multiply(x, x)
    return x if value == 1 else squared if value == 2 else multiply(squared, x)


def _divide_by_power_of_two(node: Call) -> Outcome:
    x, divisor = node.args
    value = uniform_value(divisor)
    if value is None or not tensor_type_of(node).dtype.is_float or isinstance(x, Constant):
        return None
    return _by_reciprocal(node) if math.frexp(abs(float(value)))[0] == 0.5 else None


def _regroup(node: Call) -> Outcome:
    """Fold (x op c1) op c2 for integers, where wrapping sums and products are associative."""
    if not tensor_type_of(node).dtype.is_integer:
        return None
    for inner_expr, outer in (node.args, node.args[::-1]):
        inner = op_call(inner_expr, str(node.op))
        if inner is None or not isinstance(outer, Constant):
            continue
        for x, constant in (inner.args, inner.args[::-1]):
            if isinstance(constant, Constant) and not isinstance(x, Constant):
                return recall(node, (x, recall(node, (constant, outer))))
    return None


def _add_to_difference(node: Call) -> Outcome:
    """Fold (x - c1) + c2 for integers, where wrapping sums are associative."""
    if not tensor_type_of(node).dtype.is_integer:
        return None
    for inner_expr, outer in (node.args, node.args[::-1]):
        inner = op_call(inner_expr, "subtract")
        if inner is not None and isinstance(outer, Constant) and isinstance(inner.args[1], Constant):
            return recall(node, (inner.args[0], recall(inner, (outer, inner.args[1]))))
    return None


def _order_of_quantized(node: Call) -> Outcome:
    """Compute argmax, argmin or argsort of dequantized numbers on the integers, whose order is
    equal.
    """
    inner = op_call(node.args[0], "qnn.dequantize")
    if inner is None:
        return None
    x, scale, _ = inner.args
    dtype, value = tensor_type_of(x).dtype, uniform_value(scale)
    if value is None or dtype.bits > 16:
        return WhyNot("scales differ, or numbers are rounded")
    distinct = np.finfo(np.float32).tiny <= value <= np.finfo(np.float32).max / 2**17
    if not distinct or inner.attrs["out_dtype"] != "float32":
        return WhyNot("different numbers may become equal ones")
    return recall(node, [x])


_FILLS: Final = {"zeros": 0, "ones": 1}


def _of_shape(node: Call) -> Outcome:
    """Replace full_like, zeros_like and ones_like by a constant fill of the static shape."""
    ty, make = tensor_type_of(node), REGISTRY[str(node.op).removesuffix("_like")]
    if not ty.is_static:
        return WhyNot("the shape is not static")
    return make(*node.args[1:], ty.static_shape, str(ty.dtype))


_LIKE: Final = ("reshape_like", "broadcast_to_like", "collapse_sum_like", "cast_like")


def _like(node: Call) -> Outcome:
    """Replace the second operand of an operator, used for its shape or type only, by an attribute."""
    data, ty = node.args[0], tensor_type_of(node)
    match str(node.op):
        case "cast_like":
            return make_cast(data, ty.dtype)
        case _ if not ty.is_static:
            return WhyNot("the shape is not static")
        case "reshape_like":
            return reshape(data, ty.static_shape, allowzero=0 in ty.shape)
        case "broadcast_to_like":
            return broadcast_to(data, ty.static_shape)
        case _:
            return collapse_sum_to(data, ty.static_shape)


def _filled(node: Call) -> Outcome:
    """Replace an operand filled with one value by a scalar if the other operand has the result's
    shape.
    """
    for k, operand in enumerate(node.args):
        made = op_call(operand, "full", *_FILLS)
        if made is None or len(node.args) != 2:
            continue
        value = uniform_value(made.args[0]) if made.args else _FILLS[str(made.op)]
        if value is not None:
            scalar = Constant(np.asarray(value).astype(tensor_type_of(operand).dtype.numpy))
            new = recall(node, (scalar, node.args[1]) if k == 0 else (node.args[0], scalar))
            return new if new.checked_type == node.checked_type else _ENLARGES
    return None


def _where(node: Call) -> Outcome:
    condition, yes, no = node.args
    value = uniform_value(condition)
    return None if value is None else _keep(node, yes if bool(value) else no)


# --- casts and clips


def lossless(source: str, target: str) -> bool:
    """Return True if every value of type `source` is a value of type `target`."""
    a, b = DType(source), DType(target)
    if a == b:
        return True
    if a.is_bool:
        return b.has_zero
    if b.is_bool or (a.is_float and not b.is_float) or any(d.is_float and d.bits < 16 for d in (a, b)):
        return False
    return a.digits <= b.digits and a.min >= b.min and a.max <= b.max


def _cast(node: Call) -> Outcome:
    source, last = node.args[0], DType(node.attrs["dtype"])
    if tensor_type_of(source).dtype == last:
        return source
    inner = op_call(source, "cast")
    if inner is None:
        return None
    x = inner.args[0]
    first, middle = tensor_type_of(x).dtype, tensor_type_of(source).dtype
    clipped = _is_clipped(x, middle)
    if not (lossless(first, middle) or clipped):
        return WhyNot("the inner cast loses values")
    same_kind = (first.is_integer and middle.is_integer) or (first.is_float and middle.is_float)
    kept = lossless(middle, last) and last.is_integer if clipped and first.is_float else lossless(first, last)
    if not (kept or last.is_bool or same_kind):
        return WhyNot("values out of range are converted differently")
    return x if first == last else make_cast(x, last)


def _is_clipped(x: Expr, dtype: DType) -> bool:
    """Return True if a clip bounds all values to the range of an integer type."""
    node = op_call(x, "clip")
    if node is None or not dtype.is_integer:
        return False
    low = node.attrs["a_min"]
    high = node.attrs["a_max"]
    return bool(dtype.min <= low <= high <= dtype.max)


def _clip(node: Call) -> Outcome:
    x, dtype = node.args[0], tensor_type_of(node).dtype
    if dtype.is_integer and node.attrs["a_min"] <= dtype.min and node.attrs["a_max"] >= dtype.max:
        return x
    inner = op_call(x, "clip")
    if inner is None:
        return None
    outer, first = cast(Any, (node.attrs, inner.attrs))
    if first.a_min > first.a_max or outer.a_min > outer.a_max or not dtype.is_float:
        return WhyNot("the bounds are crossed, or are rounded to integers")
    low, high = (min(max(bound, outer.a_min), outer.a_max) for bound in (first.a_min, first.a_max))
    return recall(inner, inner.args, a_min=low, a_max=high)


_VALUES: Final = (
    Rule("x + 0 => x", ("add",), _neutral(-0.0, (1, 0))),
    Rule("x - 0 => x", ("subtract",), _neutral(0.0, (1,))),
    Rule("x * 1 => x", ("multiply",), _neutral(1, (1, 0))),
    Rule("x / 1 => x", ("divide",), _neutral(1, (1,))),
    Rule("x / 2^k => x * 2^-k", ("divide",), _divide_by_power_of_two),
    Rule("x ^ n => x * ... * x, 1 / x or a root", ("power",), _power),
    Rule("(x op c1) op c2 => x op (c1 op c2)", ("add", "multiply"), _regroup),
    Rule("(x - c1) + c2 => x + (c2 - c1)", ("add",), _add_to_difference),
    Rule("copy(x) => x", ("copy",), lambda node: node.args[0]),
    Rule("relu(relu(x)) => relu(x)", ("nn.relu",), _twice("nn.relu", 1)),
    Rule("abs(abs(x)) => abs(x)", ("abs",), _twice("abs", 1)),
    Rule("-(-x) => x", ("negative",), _twice("negative", 0)),
    Rule("not not x => x", ("logical_not",), _twice("logical_not", 0)),
    Rule("max(x, 0) => relu(x)", ("maximum",), _maximum_zero),
    Rule("where(c, x, y) => x or y", ("where",), _where),
    Rule("argmax(dequantize(x)) => argmax(x)", ("argmax", "argmin", "argsort"), _order_of_quantized),
    Rule("full_like(x, c) => full(c)", ("full_like", "zeros_like", "ones_like"), _of_shape),
    Rule("op_like(x, y) => op(x, shape of y)", _LIKE, _like),
    Rule("x op full(c) => x op c", _BROADCASTS, _filled),
    Rule("cast(cast(x, a), b) => cast(x, b)", ("cast",), _cast),
    Rule("clip(clip(x)) => clip(x)", ("clip",), _clip),
)


# --- element positions


#: Operators whose result has the argument's elements in unchanged order.
VIEWS: Final = tuple(op for op in REGISTRY.values() if op.view)
_DYNAMIC: Final = WhyNot("the shape is not static")


def _unchanged(node: Call) -> Outcome:
    """Return an operator's argument if the result has its type, so that the operator does nothing;
    else None.
    """
    source = node.args[0]
    if source.checked_type != node.checked_type:
        return None
    return source if tensor_type_of(node).is_static else _DYNAMIC


def as_reshape(x: Expr, ty: TensorType) -> Expr:
    """Return `x` reshaped to the shape of `ty`, which is static and has equally many elements."""
    return x if x.checked_type == ty else reshape(x, ty.static_shape, allowzero=0 in ty.shape)


def _view_of_view(node: Call) -> Outcome:
    inner = op_call(node.args[0], *VIEWS)
    if inner is None:
        return None
    ty = tensor_type_of(node)
    return as_reshape(inner.args[0], ty) if ty.is_static else _DYNAMIC


def _axes(node: Call) -> tuple[int, ...]:
    return permutation(cast(TransposeAttrs, node.attrs), tensor_type_of(node).rank)


def _transpose(node: Call) -> Outcome:
    axes, source = _axes(node), node.args[0]
    if axes == tuple(range(len(axes))):
        return source
    inner = op_call(source, "transpose")
    if inner is not None:
        before = _axes(inner)
        return transpose(inner.args[0], tuple(before[k] for k in axes))
    shape = tensor_type_of(source).shape
    moved = [k for k in axes if shape[k] != 1]
    if moved != sorted(moved):
        return None
    return as_reshape(source, tensor_type_of(node)) if tensor_type_of(node).is_static else _DYNAMIC


def _slice(node: Call) -> Outcome:
    return _unchanged(node) if all(s == 1 for s in node.attrs["strides"]) else None


def _pad(node: Call) -> Outcome:
    return node.args[0] if all(pair == (0, 0) for pair in node.attrs["pad_width"]) else None


def _concatenate(node: Call) -> Outcome:
    fields = node.args[0]
    if not isinstance(fields, Tuple):
        return None
    if len(fields.fields) == 1:
        return fields.fields[0]
    # a part without elements adds nothing
    parts = [f for f in fields.fields if 0 not in tensor_type_of(f).shape]
    if len(parts) == len(fields.fields) or not parts:
        return None
    return recall(node, [Tuple(parts)])


def _split(node: Call) -> Outcome:
    source = node.args[0]
    ty = node.checked_type
    alone = ty is not None and getattr(ty, "fields", None) == (source.checked_type,)
    return Tuple((source,)) if alone else None


def _broadcast_operands(node: Call) -> Outcome:
    """Remove broadcast_to from operands that the operator broadcasts itself."""
    args: list[Expr] = list(node.args)
    for k, arg in enumerate(args):
        inner = op_call(arg, "broadcast_to")
        if inner is not None:
            trial = [*args[:k], inner.args[0], *args[k + 1 :]]
            args = trial if _result_shape(trial) == tensor_type_of(node).shape else args
    return None if (*args,) == node.args else recall(node, args)


def _result_shape(args: Sequence[Expr]) -> Any:
    """Return the broadcast of static operand shapes; None if a shape is not static."""
    types = [tensor_type_of(a) for a in args]
    if not all(t.is_static for t in types):
        return None
    return np.broadcast_shapes(*(t.static_shape for t in types))


def _layouts(node: Call) -> tuple[str, str]:
    return node.attrs["src_layout"], node.attrs["dst_layout"]


def _layout_transform(node: Call) -> Outcome:
    source, (before, after) = node.args[0], _layouts(node)
    if before == after:
        return source
    inner = op_call(source, "layout_transform")
    if inner is None or _layouts(inner) != (after, before):
        return None
    if inner.args[0].checked_type == node.checked_type:
        return inner.args[0]
    return WhyNot("padding is cut off")


_PLACES: Final = (
    Rule("view(x) => x", (*VIEWS, "broadcast_to", "tile", "repeat"), _unchanged),
    Rule("view(view(x)) => reshape(x)", VIEWS, _view_of_view),
    Rule("transpose(x) => x, reshape(x) or one transpose", ("transpose",), _transpose),
    Rule("x[:] => x", ("strided_slice",), _slice),
    Rule("pad(x, 0) => x", ("nn.pad", "nn.mirror_pad"), _pad),
    Rule("concatenate((x,)) => x", ("concatenate",), _concatenate),
    Rule("split(x, 1) => (x,)", ("split",), _split),
    Rule("broadcast_to(x) op y => x op y", _BROADCASTS, _broadcast_operands),
    Rule("layout_transform(layout_transform(x)) => x", ("layout_transform",), _layout_transform),
)


# --- the pass


RULES: Final = (*_VALUES, *_PLACES)


class SimplifyExpr(RulePass):
    """Pass that applies the simplification rules until none matches."""

    rules = RULES


# --- reciprocals


def reciprocal(constant: Constant) -> Constant | None:
    """Return 1 / constant in its data type; None if a reciprocal overflows or loses precision."""
    dtype: Any = constant.data.dtype
    one = constant.stored
    with np.errstate(all="ignore"):
        values = np.asarray(1.0 / one.astype(np.float64)).astype(dtype)
        exact = values.astype(np.float64) * one.astype(np.float64)
    # a subnormal reciprocal may have too few digits, and the quotient would be off by more than
    # rounding
    close = np.abs(exact - 1.0) <= 2.0 ** (1 - DType.of(values).digits)
    if not np.all(np.isfinite(values.astype(np.float64)) & close):
        return None
    if constant.is_splat:
        return splat(values[0], constant.data.shape, str(DType.of(values)), constant.span)
    return Constant(values.reshape(constant.data.shape), constant.span)


def _by_reciprocal(call: Call) -> Outcome:
    data, divisor = call.args
    if not isinstance(divisor, Constant):
        return None
    if not DType.of(divisor.data).is_float:
        return WhyNot("integers have no reciprocal")
    inverse = reciprocal(divisor)
    if inverse is None:
        return WhyNot("a reciprocal is not finite or not precise")
    return multiply(data, inverse)


class DivToMul(RulePass):
    """Pass that replaces divisions by float constants by multiplications; results may differ in the
    last digit.
    """

    rules = (Rule("x / c => x * (1 / c)", ("divide",), _by_reciprocal),)
    required = ("InferType", "FoldConstant")
