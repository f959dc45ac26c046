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

from aotc.ir import DType, NoAttrs, OpPattern, PassContext, TensorType, are_bounded, largest_size
from aotc.relay.expr import Call, Constant, Expr, Tuple, splat_constant, tensor_type_of
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.binary_elementwise import divide, multiply
from aotc.relay.op.cast_clip_prelu import cast as make_cast
from aotc.relay.op.elementwise_unary import relu, rsqrt, sqrt
from aotc.relay.op.reshape_slice_cast_like import collapse_sum_to
from aotc.relay.op.shape import TransposeAttrs, broadcast_to, reshape, transpose, transpose_permutation
from aotc.relay.op.tensor_creation import ArangeAttrs
from aotc.relay.transform.pass_base import (
    RewriteOutcome,
    Rule,
    RulePass,
    WhyNot,
    as_op_call,
    is_constant_filled_with,
    rebuild_call,
    uniform_value_of_constant,
)

#: Operators that broadcast their operands against each other, as numpy does.
_BROADCAST_OPERATORS: Final = tuple(
    op
    for op in OPERATORS_BY_NAME.values()
    if op.pattern is OpPattern.BROADCAST and op.arity > 1 and op.attrs is NoAttrs
)
#: Operators whose result has the argument's elements in unchanged order.
VIEWS: Final = tuple(op for op in OPERATORS_BY_NAME.values() if op.view)
#: Largest number of nodes inspected to prove that an expression is not negative.
_MAX_INSPECTED_NODES: Final = 16
_RESULT_IS_BROADCAST: Final = WhyNot("the operand that remains has a smaller shape than the result")


def _replace_if_same_type(node: Call, replacement: Expr) -> RewriteOutcome:
    """Return `replacement` as the replacement of `node`, or WhyNot if `node` broadcasts it to a
    larger shape.
    """
    return replacement if replacement.checked_type == node.checked_type else _RESULT_IS_BROADCAST


def _remove_neutral_operand_rule(value: float, operand_positions: tuple[int, ...]) -> Callable[[Call], RewriteOutcome]:
    """Return a rewrite rule that drops an operand whose elements are all `value`, if its position
    is in `operand_positions`.

    A zero of the other sign is dropped for integers, and for floats if the accuracy is "fast": -0.0
    + 0.0 is 0.0.
    """

    def remove_neutral_operand(node: Call) -> RewriteOutcome:
        fast = PassContext.current().get_config("compile.accuracy", "fast") == "fast"
        either = value == 0 and (fast or not tensor_type_of(node).dtype.is_float)
        for side in operand_positions:
            if is_constant_filled_with(node.args[side], value) or (
                either and is_constant_filled_with(node.args[side], -value)
            ):
                return _replace_if_same_type(node, node.args[1 - side])
        return None

    return remove_neutral_operand


def _collapse_repeated_op_rule(name: str, applications_left: int) -> Callable[[Call], RewriteOutcome]:
    """Return a rewrite rule for an operator applied to its own result, which leaves
    `applications_left` (0 or 1) applications.
    """

    def collapse_repeated_op(node: Call) -> RewriteOutcome:
        inner = as_op_call(node.args[0], name)
        return None if inner is None else inner if applications_left else inner.args[0]

    return collapse_repeated_op


def _rewrite_maximum_zero_as_relu(node: Call) -> RewriteOutcome:
    for x, zero in (node.args, node.args[::-1]):
        if is_constant_filled_with(zero, 0.0) and not isinstance(x, Constant):
            return relu(x) if x.checked_type == node.checked_type else _RESULT_IS_BROADCAST
    return None


def _is_nonnegative(x: Expr) -> bool:
    """Return True if no element is negative or -0.0, proven through sums, means and products of
    squares, abs and exp.
    """
    todo, node_count = [x], 0
    while todo:
        node, node_count = todo.pop(), node_count + 1
        value = uniform_value_of_constant(node)
        if value is not None and math.copysign(1.0, float(value)) > 0:
            continue
        if not isinstance(node, Call) or node_count > _MAX_INSPECTED_NODES:
            return False
        square = str(node.op) == "multiply" and node.args[0] is node.args[1]
        if square or str(node.op) in ("abs", "exp", "sigmoid"):
            continue
        if str(node.op) not in ("add", "multiply", "divide", "sum", "mean", "reshape", "expand_dims", "squeeze"):
            return False
        todo.extend(node.args)
    return True


def _simplify_power(node: Call) -> RewriteOutcome:
    x, exponent = node.args
    value = uniform_value_of_constant(exponent)
    if value is None or not tensor_type_of(x).dtype.is_float or value not in (1, 2, 3, -1, 0.5, -0.5):
        return None
    if x.checked_type != node.checked_type:
        return _RESULT_IS_BROADCAST
    if value == -1:
        return divide(Constant(np.ones_like(exponent.data)), x) if isinstance(exponent, Constant) else None
    if abs(value) == 0.5:
        # sqrt differs from power for -inf and -0.0
        if _is_nonnegative(x):
            return sqrt(x) if value > 0 else rsqrt(x)
        return WhyNot("the base may be negative")
    squared = multiply(x, x)
    return x if value == 1 else squared if value == 2 else multiply(squared, x)


def _rewrite_division_by_power_of_two(node: Call) -> RewriteOutcome:
    x, divisor = node.args
    value = uniform_value_of_constant(divisor)
    if value is None or not tensor_type_of(node).dtype.is_float or isinstance(x, Constant):
        return None
    return _rewrite_division_as_product(node) if math.frexp(abs(float(value)))[0] == 0.5 else None


def _fold_constants_of_nested_op(node: Call) -> RewriteOutcome:
    """Fold (x op c1) op c2 for integers, where wrapping sums and products are associative."""
    if not tensor_type_of(node).dtype.is_integer:
        return None
    for inner_expr, outer in (node.args, node.args[::-1]):
        inner = as_op_call(inner_expr, str(node.op))
        if inner is None or not isinstance(outer, Constant):
            continue
        for x, constant in (inner.args, inner.args[::-1]):
            if isinstance(constant, Constant) and not isinstance(x, Constant):
                return rebuild_call(node, (x, rebuild_call(node, (constant, outer))))
    return None


def _fold_add_to_difference(node: Call) -> RewriteOutcome:
    """Fold (x - c1) + c2 for integers, where wrapping sums are associative."""
    if not tensor_type_of(node).dtype.is_integer:
        return None
    for inner_expr, outer in (node.args, node.args[::-1]):
        inner = as_op_call(inner_expr, "subtract")
        if inner is not None and isinstance(outer, Constant) and isinstance(inner.args[1], Constant):
            return rebuild_call(node, (inner.args[0], rebuild_call(inner, (outer, inner.args[1]))))
    return None


def _compute_argsort_and_argmax_on_integers(node: Call) -> RewriteOutcome:
    """Compute argmax, argmin or argsort of dequantized numbers on the integers, whose order is
    equal.
    """
    inner = as_op_call(node.args[0], "qnn.dequantize")
    if inner is None:
        return None
    x, scale, _ = inner.args
    dtype, value = tensor_type_of(x).dtype, uniform_value_of_constant(scale)
    if value is None or dtype.bits > 16:
        return WhyNot("scales differ, or numbers are rounded")
    distinct = np.finfo(np.float32).tiny <= value <= np.finfo(np.float32).max / 2**17
    if not distinct or inner.attrs["out_dtype"] != "float32":
        return WhyNot("different numbers may become equal ones")
    return rebuild_call(node, [x])


_FILL_VALUES: Final = {"zeros": 0, "ones": 1}


def _replace_fill_like_by_static_fill(node: Call) -> RewriteOutcome:
    """Replace full_like, zeros_like and ones_like by a constant fill of the static shape."""
    ty, make = tensor_type_of(node), OPERATORS_BY_NAME[str(node.op).removesuffix("_like")]
    if not ty.is_static:
        return WhyNot("the shape is not static")
    return make(*node.args[1:], ty.static_shape, str(ty.dtype))


_LIKE_OPERATORS: Final = ("reshape_like", "broadcast_to_like", "collapse_sum_like", "cast_like")


def _replace_like_operand_by_attribute(node: Call) -> RewriteOutcome:
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


def _replace_uniform_operand_by_scalar(node: Call) -> RewriteOutcome:
    """Replace an operand filled with one value by a scalar if the other operand has the result's
    shape.
    """
    for k, operand in enumerate(node.args):
        fill_call = as_op_call(operand, "full", *_FILL_VALUES)
        if fill_call is None or len(node.args) != 2:
            continue
        value = uniform_value_of_constant(fill_call.args[0]) if fill_call.args else _FILL_VALUES[str(fill_call.op)]
        if value is not None:
            scalar = Constant(np.asarray(value).astype(tensor_type_of(operand).dtype.numpy))
            new = rebuild_call(node, (scalar, node.args[1]) if k == 0 else (node.args[0], scalar))
            return new if new.checked_type == node.checked_type else _RESULT_IS_BROADCAST
    return None


def _fold_where_with_constant_condition(node: Call) -> RewriteOutcome:
    condition, yes, no = node.args
    value = uniform_value_of_constant(condition)
    return None if value is None else _replace_if_same_type(node, yes if bool(value) else no)


# --- casts and clips


def is_lossless_cast(source: str, target: str) -> bool:
    """Return True if every value of type `source` is a value of type `target`."""
    a, b = DType(source), DType(target)
    if a == b:
        return True
    if a.is_bool:
        return b.can_represent_zero
    if b.is_bool or (a.is_float and not b.is_float) or any(d.is_float and d.bits < 16 for d in (a, b)):
        return False
    return a.digits <= b.digits and a.min >= b.min and a.max <= b.max


def _merge_casts(node: Call) -> RewriteOutcome:
    source, last = node.args[0], DType(node.attrs["dtype"])
    if tensor_type_of(source).dtype == last:
        return source
    inner = as_op_call(source, "cast")
    if inner is None:
        return None
    x = inner.args[0]
    first, middle = tensor_type_of(x).dtype, tensor_type_of(source).dtype
    clipped = _is_clipped_to_dtype(x, middle)
    if not (is_lossless_cast(first, middle) or clipped):
        return WhyNot("the inner cast loses values")
    same_kind = (first.is_integer and middle.is_integer) or (first.is_float and middle.is_float)
    is_lossless = (
        is_lossless_cast(middle, last) and last.is_integer
        if clipped and first.is_float
        else is_lossless_cast(first, last)
    )
    if not (is_lossless or last.is_bool or same_kind):
        return WhyNot("values out of range are converted differently")
    return x if first == last else make_cast(x, last)


def _is_clipped_to_dtype(x: Expr, dtype: DType) -> bool:
    """Return True if a clip bounds all values to the range of an integer type."""
    node = as_op_call(x, "clip")
    if node is None or not dtype.is_integer:
        return False
    low = node.attrs["a_min"]
    high = node.attrs["a_max"]
    return bool(dtype.min <= low <= high <= dtype.max)


def _merge_clips(node: Call) -> RewriteOutcome:
    x, dtype = node.args[0], tensor_type_of(node).dtype
    if dtype.is_integer and node.attrs["a_min"] <= dtype.min and node.attrs["a_max"] >= dtype.max:
        return x
    inner = as_op_call(x, "clip")
    if inner is None:
        return None
    outer, first = cast(Any, (node.attrs, inner.attrs))
    if first.a_min > first.a_max or outer.a_min > outer.a_max or not dtype.is_float:
        return WhyNot("the bounds are crossed, or are rounded to integers")
    low, high = (min(max(bound, outer.a_min), outer.a_max) for bound in (first.a_min, first.a_max))
    return rebuild_call(inner, inner.args, a_min=low, a_max=high)


def _compare_ranges_in_int32(node: Call) -> RewriteOutcome:
    """Rewrite a comparison of ranges of int64, whose length is known at run time only, to one of int32: vectors of
    them have as many lanes as those of float32, between which masks of attention choose.
    """
    if tensor_type_of(node).is_static or tensor_type_of(node.args[0]).dtype != "int64":
        return None
    a, b = (_range_in_int32(arg) for arg in node.args)
    return None if a is None or b is None else rebuild_call(node, (a, b))


def _range_in_int32(expr: Expr) -> Expr | None:
    """Return a range, possibly reshaped, in int32; None for other expressions, and if a value does not fit."""
    chain: list[Call] = []
    call = as_op_call(expr, *VIEWS)
    while call is not None:
        chain.append(call)
        expr = call.args[0]
        call = as_op_call(expr, *VIEWS)
    made = as_op_call(expr, "arange")
    if made is None:
        return None
    (count,), attrs = tensor_type_of(made).shape, cast(ArangeAttrs, made.attrs)
    if not are_bounded([count]) or attrs.start != 0 or attrs.step != 1 or largest_size(count) > DType("int32").max:
        return None
    result: Expr = rebuild_call(made, (), dtype="int32")
    for call in reversed(chain):
        result = rebuild_call(call, (result,))
    return result


_VALUE_RULES: Final = (
    Rule("x + 0 => x", ("add",), _remove_neutral_operand_rule(-0.0, (1, 0))),
    Rule("x - 0 => x", ("subtract",), _remove_neutral_operand_rule(0.0, (1,))),
    Rule("x * 1 => x", ("multiply",), _remove_neutral_operand_rule(1, (1, 0))),
    Rule("x / 1 => x", ("divide",), _remove_neutral_operand_rule(1, (1,))),
    Rule("x / 2^k => x * 2^-k", ("divide",), _rewrite_division_by_power_of_two),
    Rule("x ^ n => x * ... * x, 1 / x or a root", ("power",), _simplify_power),
    Rule("(x op c1) op c2 => x op (c1 op c2)", ("add", "multiply"), _fold_constants_of_nested_op),
    Rule("(x - c1) + c2 => x + (c2 - c1)", ("add",), _fold_add_to_difference),
    Rule("copy(x) => x", ("copy",), lambda node: node.args[0]),
    Rule("relu(relu(x)) => relu(x)", ("nn.relu",), _collapse_repeated_op_rule("nn.relu", 1)),
    Rule("abs(abs(x)) => abs(x)", ("abs",), _collapse_repeated_op_rule("abs", 1)),
    Rule("-(-x) => x", ("negative",), _collapse_repeated_op_rule("negative", 0)),
    Rule("not not x => x", ("logical_not",), _collapse_repeated_op_rule("logical_not", 0)),
    Rule("max(x, 0) => relu(x)", ("maximum",), _rewrite_maximum_zero_as_relu),
    Rule("where(c, x, y) => x or y", ("where",), _fold_where_with_constant_condition),
    Rule(
        "argmax(dequantize(x)) => argmax(x)", ("argmax", "argmin", "argsort"), _compute_argsort_and_argmax_on_integers
    ),
    Rule("full_like(x, c) => full(c)", ("full_like", "zeros_like", "ones_like"), _replace_fill_like_by_static_fill),
    Rule("op_like(x, y) => op(x, shape of y)", _LIKE_OPERATORS, _replace_like_operand_by_attribute),
    Rule("x op full(c) => x op c", _BROADCAST_OPERATORS, _replace_uniform_operand_by_scalar),
    Rule(
        "range < range => ranges of int32",
        ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
        _compare_ranges_in_int32,
    ),
    Rule("cast(cast(x, a), b) => cast(x, b)", ("cast",), _merge_casts),
    Rule("clip(clip(x)) => clip(x)", ("clip",), _merge_clips),
)


# --- element positions


_DYNAMIC_SHAPE_REFUSAL: Final = WhyNot("the shape is not static")


def _remove_identity_op(node: Call) -> RewriteOutcome:
    """Return an operator's argument if the result has its type, so that the operator does nothing;
    else None.
    """
    source = node.args[0]
    if source.checked_type != node.checked_type:
        return None
    return source if tensor_type_of(node).is_static else _DYNAMIC_SHAPE_REFUSAL


def reshape_to_type(x: Expr, ty: TensorType) -> Expr:
    """Return `x` reshaped to the shape of `ty`, which is static and has equally many elements."""
    return x if x.checked_type == ty else reshape(x, ty.static_shape, allowzero=0 in ty.shape)


def _merge_reshapes_and_other_views(node: Call) -> RewriteOutcome:
    inner = as_op_call(node.args[0], *VIEWS)
    if inner is None:
        return None
    ty = tensor_type_of(node)
    return reshape_to_type(inner.args[0], ty) if ty.is_static else _DYNAMIC_SHAPE_REFUSAL


def _permutation_of_transpose(node: Call) -> tuple[int, ...]:
    return transpose_permutation(cast(TransposeAttrs, node.attrs), tensor_type_of(node).rank)


def _simplify_transpose(node: Call) -> RewriteOutcome:
    axes, source = _permutation_of_transpose(node), node.args[0]
    if axes == tuple(range(len(axes))):
        return source
    inner = as_op_call(source, "transpose")
    if inner is not None:
        before = _permutation_of_transpose(inner)
        return transpose(inner.args[0], tuple(before[k] for k in axes))
    shape = tensor_type_of(source).shape
    wide_axes = [k for k in axes if shape[k] != 1]
    if wide_axes != sorted(wide_axes):
        return None
    return reshape_to_type(source, tensor_type_of(node)) if tensor_type_of(node).is_static else _DYNAMIC_SHAPE_REFUSAL


def _remove_full_slice(node: Call) -> RewriteOutcome:
    return _remove_identity_op(node) if all(s == 1 for s in node.attrs["strides"]) else None


def _remove_empty_pad(node: Call) -> RewriteOutcome:
    return node.args[0] if all(pair == (0, 0) for pair in node.attrs["pad_width"]) else None


def _simplify_concatenate(node: Call) -> RewriteOutcome:
    fields = node.args[0]
    if not isinstance(fields, Tuple):
        return None
    if len(fields.fields) == 1:
        return fields.fields[0]
    # a part without elements adds nothing
    parts = [f for f in fields.fields if 0 not in tensor_type_of(f).shape]
    if len(parts) == len(fields.fields) or not parts:
        return None
    return rebuild_call(node, [Tuple(parts)])


def _remove_split_into_one(node: Call) -> RewriteOutcome:
    source = node.args[0]
    ty = node.checked_type
    alone = ty is not None and getattr(ty, "fields", None) == (source.checked_type,)
    return Tuple((source,)) if alone else None


def _remove_redundant_broadcasts(node: Call) -> RewriteOutcome:
    """Remove broadcast_to from operands that the operator broadcasts itself."""
    args: list[Expr] = list(node.args)
    for k, arg in enumerate(args):
        inner = as_op_call(arg, "broadcast_to")
        if inner is not None:
            trial = [*args[:k], inner.args[0], *args[k + 1 :]]
            args = trial if _static_broadcast_shape(trial) == tensor_type_of(node).shape else args
    return None if (*args,) == node.args else rebuild_call(node, args)


def _static_broadcast_shape(args: Sequence[Expr]) -> Any:
    """Return the broadcast of static operand shapes; None if a shape is not static."""
    types = [tensor_type_of(a) for a in args]
    if not all(t.is_static for t in types):
        return None
    return np.broadcast_shapes(*(t.static_shape for t in types))


def _source_and_target_layout(node: Call) -> tuple[str, str]:
    return node.attrs["src_layout"], node.attrs["dst_layout"]


def _cancel_layout_transforms(node: Call) -> RewriteOutcome:
    source, (before, after) = node.args[0], _source_and_target_layout(node)
    if before == after:
        return source
    inner = as_op_call(source, "layout_transform")
    if inner is None or _source_and_target_layout(inner) != (after, before):
        return None
    if inner.args[0].checked_type == node.checked_type:
        return inner.args[0]
    return WhyNot("padding is cut off")


_POSITION_RULES: Final = (
    Rule("view(x) => x", (*VIEWS, "broadcast_to", "tile", "repeat"), _remove_identity_op),
    Rule("view(view(x)) => reshape(x)", VIEWS, _merge_reshapes_and_other_views),
    Rule("transpose(x) => x, reshape(x) or one transpose", ("transpose",), _simplify_transpose),
    Rule("x[:] => x", ("strided_slice",), _remove_full_slice),
    Rule("pad(x, 0) => x", ("nn.pad", "nn.mirror_pad"), _remove_empty_pad),
    Rule("concatenate((x,)) => x", ("concatenate",), _simplify_concatenate),
    Rule("split(x, 1) => (x,)", ("split",), _remove_split_into_one),
    Rule("broadcast_to(x) op y => x op y", _BROADCAST_OPERATORS, _remove_redundant_broadcasts),
    Rule("layout_transform(layout_transform(x)) => x", ("layout_transform",), _cancel_layout_transforms),
)


# --- the pass


RULES: Final = (*_VALUE_RULES, *_POSITION_RULES)


class SimplifyExpr(RulePass):
    """Pass that applies the simplification rules until none matches."""

    rules = RULES


# --- reciprocals


def reciprocal_if_precise(constant: Constant) -> Constant | None:
    """Return 1 / constant in its data type; None if a reciprocal overflows or loses precision."""
    dtype: Any = constant.data.dtype
    elements = constant.stored_elements
    with np.errstate(all="ignore"):
        values = np.asarray(1.0 / elements.astype(np.float64)).astype(dtype)
        exact = values.astype(np.float64) * elements.astype(np.float64)
    # a subnormal reciprocal may have too few digits, and the quotient would be off by more than
    # rounding
    close = np.abs(exact - 1.0) <= 2.0 ** (1 - DType.from_numpy(values).digits)
    if not np.all(np.isfinite(values.astype(np.float64)) & close):
        return None
    if constant.is_splat:
        return splat_constant(values[0], constant.data.shape, str(DType.from_numpy(values)), constant.span)
    return Constant(values.reshape(constant.data.shape), constant.span)


def _rewrite_division_as_product(call: Call) -> RewriteOutcome:
    data, divisor = call.args
    if not isinstance(divisor, Constant):
        return None
    if not DType.from_numpy(divisor.data).is_float:
        return WhyNot("integers have no reciprocal")
    inverse = reciprocal_if_precise(divisor)
    if inverse is None:
        return WhyNot("a reciprocal is not finite or not precise")
    return multiply(data, inverse)


class DivToMul(RulePass):
    """Pass that replaces divisions by float constants by multiplications; results may differ in the
    last digit.
    """

    rules = (Rule("x / c => x * (1 / c)", ("divide",), _rewrite_division_as_product),)
    required = ("InferType", "FoldConstant")
