# SPDX-License-Identifier: Apache-2.0
"""Integer rules of FakeQuantizationToInteger: for each float operator, its computation on quantized
operands.

RULES["nn.conv2d"].exact(region, call)                 # qnn.conv2d, sums in int32 of scale x * w
RULES["add"].rounded(region, call, wanted)             # qnn.add to the scale and zero point of the result
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import DType, Op, OpPattern, QuantizationTreatment, installed_ops
from aotc.relay.expr import (
    Call,
    Constant,
    Expr,
    Tuple,
    axis_map_of_call,
    require_op_of_call,
    tensor_type_of,
    type_of,
    typed_op_call,
)
from aotc.relay.op.binary_elementwise import maximum, minimum
from aotc.relay.op.cast_clip_prelu import cast, clip
from aotc.relay.op.layout import may_zero_pad_blocks
from aotc.relay.op.qnn.lookup_table import apply_by_lookup_table
from aotc.relay.op.qnn.quant_params import constant_value_or_none
from aotc.relay.op.reduce import sum as total
from aotc.relay.transform.integer_contractions import (
    INT32_LIMIT,
    integer_batch_matmul,
    integer_bias_add,
    integer_convolution,
    integer_dense,
    max_distance_from_zero_point,
    require_per_tensor_byte,
    reshape_to_broadcast_along_axis,
)
from aotc.relay.transform.integer_lookup_tables import (
    byte_function_table,
    call_as_table_lookup,
    try_binary_call_as_table_lookup,
)
from aotc.relay.transform.quantized_region_to_integers import (
    BYTE_DTYPES,
    AbsorbRule,
    Array,
    IntegerRegion,
    IntegerRuleRefused,
    QuantizedExpr,
    TensorAffineType,
    TupleAffineType,
    call_qnn_op,
    make_affine_type,
    scale_and_zero_point,
)

#: Unary operators with a quantized operator of equal name.
_UNARY: Final = "sigmoid tanh exp sqrt rsqrt erf log abs nn.leaky_relu nn.softmax"


# --- elementwise operators


def _binary_to_qnn(name: str, region: IntegerRegion, node: Call, target_type: TensorAffineType) -> Expr:
    """Return qnn.add, qnn.subtract or qnn.mul for a float operator of two 8-bit operands."""
    left, right = (require_per_tensor_byte(region.require_exact_integers(a), node) for a in node.args)
    if {left.affine_type.dtype, right.affine_type.dtype} != {target_type.dtype}:
        raise IntegerRuleRefused("its operands and its result are of different types", node)
    operands = (
        left.expr,
        right.expr,
        *scale_and_zero_point(left.affine_type),
        *scale_and_zero_point(right.affine_type),
    )
    return try_binary_call_as_table_lookup(call_qnn_op(name, *operands, *scale_and_zero_point(target_type)))


def _unary_to_qnn_or_table_lookup(name: str, region: IntegerRegion, node: Call, target_type: TensorAffineType) -> Expr:
    """Return the quantized operator for a unary float operator, or a table lookup if there is none."""
    x = require_per_tensor_byte(region.require_exact_integers(node.args[0]), node)
    op = installed_ops().get(f"qnn.{name}")
    if op is None or x.affine_type.dtype != target_type.dtype:
        return call_as_table_lookup(region, node, target_type)
    names = {f.name for f in fields(op.attrs)}
    given = {k: v for k, v in node.attrs.items() if k in names}
    return call_qnn_op(name, x.expr, *scale_and_zero_point(x.affine_type), *scale_and_zero_point(target_type), **given)


# --- clamps


def _relu_on_exact_integers(region: IntegerRegion, node: Call) -> QuantizedExpr:
    x = region.require_exact_integers(node.args[0])
    if not x.affine_type.is_per_tensor and x.affine_type.zero_point.data.any():
        raise IntegerRuleRefused("its operand has zero points by channel", node)
    return x.with_expr(maximum(x.expr, x.affine_type.zero_point_constant))


def _clamp_quantized(region: IntegerRegion, node: Call, target_type: TensorAffineType, low: float, high: float) -> Expr:
    """Return a clamp to [low, high] computed on the operand's quantized values.

    The result is equal to clamping before quantization, because rounding is monotonic.
    """
    data = node.args[0]
    if str(getattr(data, "op", "")) == "qnn.dequantize" and region.require_exact_integers(data).type != target_type:
        x = region.require_exact_integers(data)
        if not x.is_per_tensor_byte or not target_type.is_per_tensor or target_type.dtype not in BYTE_DTYPES:
            return call_as_table_lookup(region, node, target_type)
        table = byte_function_table(x, target_type, lambda real: np.clip(real, low, high))
        return apply_by_lookup_table(x.expr, lambda _: table)
    y = region.require_quantized_integers(data, target_type)
    dtype, rank = DType(target_type.dtype), tensor_type_of(node).rank
    channels = max(part.data.size for part in (target_type.scale, target_type.zero_point))
    both = np.repeat(np.array([[low], [high]], np.float32), channels, 1)
    ends = constant_value_or_none(
        call_qnn_op("quantize", Constant(both), *scale_and_zero_point(target_type), axis=1, out_dtype=target_type.dtype)
    )
    assert ends is not None
    first, last = (reshape_to_broadcast_along_axis(end, target_type.axis, rank) for end in ends)
    if (last == dtype.max).all():
        return y if (first == dtype.min).all() else maximum(y, Constant(first))
    if target_type.is_per_tensor:
        return clip(y, a_min=int(first), a_max=int(last))
    return minimum(maximum(y, Constant(first)), Constant(last))


def _quantized_relu(region: IntegerRegion, node: Call, target_type: TensorAffineType) -> Expr:
    return _clamp_quantized(region, node, target_type, 0.0, np.inf)


def _quantized_clip(region: IntegerRegion, node: Call, target_type: TensorAffineType) -> Expr:
    return _clamp_quantized(region, node, target_type, node.attrs["a_min"], node.attrs["a_max"])


# --- operators that move or select elements


def _is_float_tensor(expr: Expr) -> bool:
    return tensor_type_of(expr).dtype.is_float


def _quantize_constant(value: Array, ty: TensorAffineType) -> Constant:
    """Return a constant quantized to the given type."""
    integers = constant_value_or_none(
        call_qnn_op("quantize", Constant(value.astype(np.float32)), *scale_and_zero_point(ty), out_dtype=ty.dtype)
    )
    assert integers is not None
    return Constant(integers)


def _require_integers_of_type(region: IntegerRegion, node: Call, arg: Expr, ty: TensorAffineType) -> Expr:
    """Return an operand as integers of type `ty`; raise IntegerRuleRefused unless it has that type
    or is a constant it represents exactly.
    """
    value = constant_value_or_none(arg)
    if value is None:
        operand = region.require_exact_integers(arg)
        if operand.type != ty:
            raise IntegerRuleRefused("its operands have different scales or zero points", node)
        return operand.expr
    stored = _quantize_constant(value, ty)
    back = constant_value_or_none(call_qnn_op("dequantize", stored, *scale_and_zero_point(ty)))
    if back is None or not np.array_equal(back, value):
        raise IntegerRuleRefused("a constant is none of the numbers that its other operands can be", node)
    return stored


def _require_scale_axis_after_move(node: Call, ty: TensorAffineType) -> int:
    """Return the result axis along which the per-channel scales of a moved tensor lie; raise
    IntegerRuleRefused if there is none.
    """
    if ty.is_per_tensor:
        return ty.axis
    mapped = axis_map_of_call(node)
    result_axes = [k for k, axis in enumerate(mapped.inputs[0] if mapped else ()) if axis == ty.axis]
    if len(result_axes) != 1:
        raise IntegerRuleRefused("elements with scales of their own do not stay apart", node)
    return result_axes[0]


def _move_or_select_equally_quantized(region: IntegerRegion, node: Call) -> QuantizedExpr:
    """Apply an operator that moves or selects elements to the integers; all operands must have one
    quantization.
    """
    real = [a for a in node.args if _is_float_tensor(a)]
    first = next((a for a in real if constant_value_or_none(a) is None), None)
    if first is None:
        raise IntegerRuleRefused("an operand is not quantized", node)
    x = region.require_exact_integers(first)
    if not x.affine_type.is_per_tensor and len(real) > 1:
        raise IntegerRuleRefused("its operands have scales by channel", node)
    args = [_require_integers_of_type(region, node, a, x.affine_type) if a in real else a for a in node.args]
    new_call = typed_op_call(require_op_of_call(node), args, node.attrs)
    if str(require_op_of_call(node)) == "split":
        count = len(type_of(new_call).fields)  # type: ignore[union-attr]
        axis = _require_scale_axis_after_split(node, x.affine_type)
        return QuantizedExpr(new_call, TupleAffineType((x.with_expr(x.expr, axis=axis).affine_type,) * count), x.bound)
    return x.with_expr(new_call, axis=_require_scale_axis_after_move(node, x.affine_type))


def _require_scale_axis_after_split(node: Call, ty: TensorAffineType) -> int:
    if not ty.is_per_tensor and node.attrs["axis"] % tensor_type_of(node.args[0]).rank == ty.axis:
        raise IntegerRuleRefused("it splits channels with scales of their own", node)
    return ty.axis


def _move_or_select_quantized_operands(region: IntegerRegion, node: Call, target_type: TensorAffineType) -> Expr:
    """Apply an operator that moves or selects elements to operands that are quantized first.

    The result is equal to quantizing afterwards, because rounding is monotonic.
    """
    if require_op_of_call(node).name == "split":
        raise IntegerRuleRefused("it has several results", node)
    real = [a for a in node.args if _is_float_tensor(a)]
    if not any(a in region.inside for a in real):
        raise IntegerRuleRefused("an operand is not quantized", node)
    args = [_quantize_operand(region, a, target_type) if a in real else a for a in node.args]
    return typed_op_call(require_op_of_call(node), args, node.attrs)


def _quantize_operand(region: IntegerRegion, arg: Expr, target_type: TensorAffineType) -> Expr:
    value = constant_value_or_none(arg)
    return (
        region.require_quantized_integers(arg, target_type) if value is None else _quantize_constant(value, target_type)
    )


def _concatenate_equally_quantized_operands(region: IntegerRegion, node: Call) -> QuantizedExpr:
    operands = region.require_exact_integers(node.args[0])
    assert isinstance(operands.type, TupleAffineType)
    first = operands.type.types[0]
    if not first.is_per_tensor or any(t != first for t in operands.type.types):
        raise IntegerRuleRefused("its operands have different scales or zero points", node)
    return QuantizedExpr(typed_op_call(require_op_of_call(node), (operands.expr,), node.attrs), first, operands.bound)


def _concatenate_quantized_operands(region: IntegerRegion, node: Call, target_type: TensorAffineType) -> Expr:
    """Return a concatenation or stack of operands that are quantized first; 8-bit operands use
    qnn.concatenate.
    """
    parts = node.args[0]
    if not isinstance(parts, Tuple):
        raise IntegerRuleRefused("its operands are not written out", node)
    given = [_integers_if_byte_of_target_dtype(region, part, target_type) for part in parts.fields]
    if require_op_of_call(node).name != "concatenate" or any(g is None for g in given):
        fresh = [_quantize_operand(region, part, target_type) for part in parts.fields]
        return typed_op_call(require_op_of_call(node), (Tuple(fresh),), node.attrs)
    known_parts = [g for g in given if g is not None]
    data = Tuple([g.expr for g in known_parts])
    if all(g.type == target_type for g in known_parts):
        return typed_op_call(require_op_of_call(node), (data,), node.attrs)
    numbers = map(Tuple, zip(*(scale_and_zero_point(g.affine_type) for g in known_parts), strict=True))
    return call_qnn_op("concatenate", data, *numbers, *scale_and_zero_point(target_type), axis=node.attrs["axis"])


def _integers_if_byte_of_target_dtype(
    region: IntegerRegion, concatenated_operand: Expr, target_type: TensorAffineType
) -> QuantizedExpr | None:
    """Return the 8-bit integers of one operand of a concatenation, if they have the wanted type;
    None otherwise.
    """
    try:
        operand = region.require_exact_integers(concatenated_operand)
    except IntegerRuleRefused:
        return None
    return operand if operand.is_per_tensor_byte and operand.affine_type.dtype == target_type.dtype else None


# --- means


def _quantized_average_pool(name: str, region: IntegerRegion, node: Call, target_type: TensorAffineType) -> Expr:
    x = require_per_tensor_byte(region.require_exact_integers(node.args[0]), node)
    op = installed_ops().get(f"qnn.{name}")
    if op is None or x.affine_type.dtype != target_type.dtype:
        raise IntegerRuleRefused("there is no mean of these integers", node)
    return call_qnn_op(
        name,
        x.expr,
        *scale_and_zero_point(x.affine_type),
        *scale_and_zero_point(target_type),
        **dict(node.attrs.items()),
    )


def _sum_or_mean_as_int32_sums(region: IntegerRegion, node: Call) -> QuantizedExpr:
    """Return a sum or mean as exact int32 sums; the number of elements enters scale and zero point."""
    x = require_per_tensor_byte(region.require_exact_integers(node.args[0]), node)
    source, result = (tensor_type_of(e) for e in (node.args[0], node))
    if not (source.is_static and result.is_static) or 0 in result.static_shape:
        raise IntegerRuleRefused("the number of elements is not known", node)
    count = source.numel // result.numel
    ty = x.affine_type
    bound = count * max(max_distance_from_zero_point(ty), 255.0) * 2
    if bound >= INT32_LIMIT:
        raise IntegerRuleRefused("sums of so many elements may not fit int32", node)
    mean = require_op_of_call(node).name == "mean"
    scale = ty.scale_values / np.float32(count) if mean else ty.scale_values
    sums = typed_op_call(total, (cast(x.expr, dtype="int32"),), node.attrs)
    return QuantizedExpr(sums, make_affine_type(scale, ty.zero_point_value * count, "int32"), bound)


def _quantized_global_mean(region: IntegerRegion, node: Call, target_type: TensorAffineType) -> Expr:
    """Return a global mean: the int32 sum of each channel, requantized with its scale divided by
    the number of elements.
    """
    x = require_per_tensor_byte(region.require_exact_integers(node.args[0]), node)
    source, result = (tensor_type_of(e) for e in (node.args[0], node))
    if not source.is_static or source.numel * 255 >= INT32_LIMIT or not target_type.is_per_tensor:
        raise IntegerRuleRefused("sums of so many elements may not fit int32", node)
    count = source.numel // max(result.numel, 1)
    if count * result.numel != source.numel or any(
        a != b != 1 for a, b in zip(source.shape, result.shape, strict=True)
    ):
        raise IntegerRuleRefused("it has means of parts", node)
    axes = [k for k, (a, b) in enumerate(zip(source.shape, result.shape, strict=True)) if a != b]
    sums = total(cast(x.expr, dtype="int32"), axis=axes, keepdims=True)
    onto = make_affine_type(
        target_type.scale_values * np.float32(count), target_type.zero_point_value, target_type.dtype
    )
    whole = make_affine_type(x.affine_type.scale_values, x.affine_type.zero_point_value * count, "int32")
    attr_values: dict[str, Any] = {"rounding": region.rounding, "out_dtype": target_type.dtype}
    return call_qnn_op("requantize", sums, *scale_and_zero_point(whole), *scale_and_zero_point(onto), **attr_values)


# --- the table

_SELECTION_RULE: Final = AbsorbRule(
    "choose(dequantize(x)) => dequantize(choose(x))",
    _move_or_select_equally_quantized,
    _move_or_select_quantized_operands,
)


def _rule_if_attrs_only_select_elements(is_selection: Callable[[Any], bool], reason: str) -> AbsorbRule:
    """Return the integer rule for an operator that only selects elements if `is_selection` is true
    of its attributes.
    """

    def apply_rule_if_selection_or_refuse(
        rule_function: Callable[..., Any], region: IntegerRegion, node: Call, *wanted: TensorAffineType
    ) -> Any:
        if not is_selection(node.attrs):
            raise IntegerRuleRefused(reason, node)
        return rule_function(region, node, *wanted)

    return AbsorbRule(
        _SELECTION_RULE.name,
        partial(apply_rule_if_selection_or_refuse, _move_or_select_equally_quantized),
        partial(apply_rule_if_selection_or_refuse, _move_or_select_quantized_operands),
    )


def _is_nearest_resize_without_crop(attrs: Any) -> bool:
    """Return True if a resize takes the nearest neighbor, a pure move, and does not extrapolate."""
    crops = attrs.coordinate_transformation_mode == "tf_crop_and_resize"
    return attrs.method == "nearest_neighbor" and not crops


def _contraction_rule(name: str, exact: Callable[[IntegerRegion, Call], QuantizedExpr]) -> AbsorbRule:
    short = name.removeprefix("nn.")
    return AbsorbRule(f"{short}(dequantize(x), dequantize(w)) => dequantize(qnn.{short}(x, w))", exact, sums=True)


def _qnn_operator_rule(name: str, quantized_rule: Any, qnn_name: str) -> AbsorbRule:
    return AbsorbRule(
        f"quantize({name}(dequantize(x))) => qnn.{qnn_name}(x)", rounded=partial(quantized_rule, qnn_name)
    )


def _integer_rules_by_operator_name() -> dict[str, AbsorbRule]:
    rules: dict[str, AbsorbRule] = {}
    for n, suffix in ((n, m) for n in (1, 2, 3) for m in ("", "_transpose")):
        short = f"conv{n}d{suffix}"
        rules[f"nn.{short}"] = _contraction_rule(short, partial(integer_convolution, short))
    rules |= {name: _contraction_rule(name, integer_dense) for name in ("nn.dense", "nn.matmul")}
    rules["nn.batch_matmul"] = _contraction_rule("nn.batch_matmul", integer_batch_matmul)
    bias = "dequantize(sums) + b => dequantize(sums + round(b / scale))"
    rules["nn.bias_add"] = AbsorbRule(bias, integer_bias_add)
    for name, short in {"add": "add", "subtract": "subtract", "multiply": "mul"}.items():
        rules[name] = _qnn_operator_rule(name, _binary_to_qnn, short)
    rules["add"] = AbsorbRule(rules["add"].name, integer_bias_add, rules["add"].rounded)
    for name in _UNARY.split():
        rules[name] = _qnn_operator_rule(name, _unary_to_qnn_or_table_lookup, name.removeprefix("nn."))
    clamp = "quantize(clamp(x)) => clamp(quantize(x))"
    rules["nn.relu"] = AbsorbRule(clamp, _relu_on_exact_integers, _quantized_relu)
    rules["clip"] = AbsorbRule(clamp, rounded=_quantized_clip)
    join = "quantize(join(x, ...)) => join(quantize(x), ...)"
    rules |= {
        name: AbsorbRule(join, _concatenate_equally_quantized_operands, _concatenate_quantized_operands)
        for name in ("concatenate", "stack")
    }
    rules["nn.avg_pool2d"] = _qnn_operator_rule("avg_pool2d", _quantized_average_pool, "avg_pool2d")
    whole = AbsorbRule("quantize(global_mean(dequantize(x))) => requantize(sum(x))", rounded=_quantized_global_mean)
    rules |= {f"nn.{kind}_avg_pool{n}d": whole for kind in ("global", "adaptive") for n in (1, 2, 3)}
    rules |= {
        n: AbsorbRule(f"{n}(dequantize(x)) => dequantize(sum(x))", _sum_or_mean_as_int32_sums) for n in ("sum", "mean")
    }
    near = _rule_if_attrs_only_select_elements(_is_nearest_resize_without_crop, "it weighs elements with real numbers")
    rules["topk"] = _rule_if_attrs_only_select_elements(lambda a: a.ret_type == "values", "it gives places")
    return rules | dict.fromkeys(("image.resize1d", "image.resize2d", "image.resize3d"), near)


RULES: Final = _integer_rules_by_operator_name()
_TABLE_RULE: Final = AbsorbRule("quantize(f(dequantize(x))) => table[x]", rounded=call_as_table_lookup)


def integer_rule_by_declared_behavior(node: Call) -> AbsorbRule | None:
    """Return the integer rule for an operator without an entry in RULES, by its declared behavior;
    None if there is none.
    """
    op = node.op
    if not isinstance(op, Op):
        return None
    if op.quantization_treatment is QuantizationTreatment.PASS:
        return None if may_zero_pad_blocks(node) else _SELECTION_RULE
    return _TABLE_RULE if op.pattern <= OpPattern.BROADCAST else None
