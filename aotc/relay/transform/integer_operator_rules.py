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

from aotc.ir import DType, Op, OpPattern, Quantized, installed_ops
from aotc.relay.expr import Call, Constant, Expr, Tuple, axis_map, call, op_of, tensor_type_of, type_of
from aotc.relay.op.binary_elementwise import maximum, minimum
from aotc.relay.op.casts import cast, clip
from aotc.relay.op.layout import fills
from aotc.relay.op.qnn.lookup_table import looked_up
from aotc.relay.op.qnn.quant_params import known
from aotc.relay.op.reduce import sum as total
from aotc.relay.transform.affine_quantization import (
    NARROW,
    AbsorbRule,
    Array,
    Integers,
    Refused,
    Region,
    TensorAffineType,
    TupleAffineType,
    affine,
    pair,
    qnn,
)
from aotc.relay.transform.integer_contractions import LIMIT, batched, biased, convolved, laid, multiplied, narrow, reach
from aotc.relay.transform.integer_lookup_tables import mapped, tabled, tabulated

#: Unary operators with a quantized operator of equal name.
_UNARY: Final = "sigmoid tanh exp sqrt rsqrt erf log abs nn.leaky_relu nn.softmax"


# --- elementwise operators


def _two(name: str, region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    """Return qnn.add, qnn.subtract or qnn.mul for a float operator of two 8-bit operands."""
    left, right = (narrow(region.exact(a), node) for a in node.args)
    if {left.tensor.dtype, right.tensor.dtype} != {wanted.dtype}:
        raise Refused("its operands and its result are of different types", node)
    operands = (left.expr, right.expr, *pair(left.tensor), *pair(right.tensor))
    return tabulated(qnn(name, *operands, *pair(wanted)))


def _one(name: str, region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    """Return the quantized operator for a unary float operator, or a table lookup if there is none."""
    x = narrow(region.exact(node.args[0]), node)
    op = installed_ops().get(f"qnn.{name}")
    if op is None or x.tensor.dtype != wanted.dtype:
        return tabled(region, node, wanted)
    names = {f.name for f in fields(op.attrs)}
    given = {k: v for k, v in node.attrs.items() if k in names}
    return qnn(name, x.expr, *pair(x.tensor), *pair(wanted), **given)


# --- clamps


def _relu_exact(region: Region, node: Call) -> Integers:
    x = region.exact(node.args[0])
    if not x.tensor.is_single and x.tensor.zero_point.data.any():
        raise Refused("its operand has zero points by channel", node)
    return x.over(maximum(x.expr, x.tensor.scalar))


def _clamped(region: Region, node: Call, wanted: TensorAffineType, low: float, high: float) -> Expr:
    """Return a clamp to [low, high] computed on the operand's quantized values.

    The result is equal to clamping before quantization, because rounding is monotonic.
    """
    data = node.args[0]
    if str(getattr(data, "op", "")) == "qnn.dequantize" and region.exact(data).type != wanted:
        x = region.exact(data)
        if not x.is_narrow or not wanted.is_single or wanted.dtype not in NARROW:
            return tabled(region, node, wanted)
        table = mapped(x, wanted, lambda real: np.clip(real, low, high))
        return looked_up(x.expr, lambda _: table)
    y = region.rounded(data, wanted)
    dtype, rank = DType(wanted.dtype), tensor_type_of(node).rank
    channels = max(part.data.size for part in (wanted.scale, wanted.zero_point))
    both = np.repeat(np.array([[low], [high]], np.float32), channels, 1)
    ends = known(qnn("quantize", Constant(both), *pair(wanted), axis=1, out_dtype=wanted.dtype))
    assert ends is not None
    first, last = (laid(end, wanted.axis, rank) for end in ends)
    if (last == dtype.max).all():
        return y if (first == dtype.min).all() else maximum(y, Constant(first))
    if wanted.is_single:
        return clip(y, a_min=int(first), a_max=int(last))
    return minimum(maximum(y, Constant(first)), Constant(last))


def _relu(region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    return _clamped(region, node, wanted, 0.0, np.inf)


def _clip(region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    return _clamped(region, node, wanted, node.attrs["a_min"], node.attrs["a_max"])


# --- operators that move or select elements


def _is_real(expr: Expr) -> bool:
    return tensor_type_of(expr).dtype.is_float


def _quantized(value: Array, ty: TensorAffineType) -> Constant:
    """Return a constant quantized to the given type."""
    found = known(qnn("quantize", Constant(value.astype(np.float32)), *pair(ty), out_dtype=ty.dtype))
    assert found is not None
    return Constant(found)


def _same(region: Region, node: Call, arg: Expr, ty: TensorAffineType) -> Expr:
    """Return an operand as integers of type `ty`; raise Refused unless it has that type or is a
    constant it represents exactly.
    """
    value = known(arg)
    if value is None:
        found = region.exact(arg)
        if found.type != ty:
            raise Refused("its operands have different scales or zero points", node)
        return found.expr
    stored = _quantized(value, ty)
    back = known(qnn("dequantize", stored, *pair(ty)))
    if back is None or not np.array_equal(back, value):
        raise Refused("a constant is none of the numbers that its other operands can be", node)
    return stored


def _moved_axis(node: Call, ty: TensorAffineType) -> int:
    """Return the result axis along which the per-channel scales of a moved tensor lie; raise
    Refused if there is none.
    """
    if ty.is_single:
        return ty.axis
    mapped = axis_map(node)
    found = [k for k, axis in enumerate(mapped.inputs[0] if mapped else ()) if axis == ty.axis]
    if len(found) != 1:
        raise Refused("elements with scales of their own do not stay apart", node)
    return found[0]


def _chosen_exact(region: Region, node: Call) -> Integers:
    """Apply an operator that moves or selects elements to the integers; all operands must have one
    quantization.
    """
    real = [a for a in node.args if _is_real(a)]
    first = next((a for a in real if known(a) is None), None)
    if first is None:
        raise Refused("an operand is not quantized", node)
    x = region.exact(first)
    if not x.tensor.is_single and len(real) > 1:
        raise Refused("its operands have scales by channel", node)
    args = [_same(region, node, a, x.tensor) if a in real else a for a in node.args]
    moved = call(op_of(node), args, node.attrs)
    if str(op_of(node)) == "split":
        count = len(type_of(moved).fields)  # type: ignore[union-attr]
        axis = _split_axis(node, x.tensor)
        return Integers(moved, TupleAffineType((x.over(x.expr, axis=axis).tensor,) * count), x.bound)
    return x.over(moved, axis=_moved_axis(node, x.tensor))


def _split_axis(node: Call, ty: TensorAffineType) -> int:
    if not ty.is_single and node.attrs["axis"] % tensor_type_of(node.args[0]).rank == ty.axis:
        raise Refused("it splits channels with scales of their own", node)
    return ty.axis


def _chosen(region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    """Apply an operator that moves or selects elements to operands that are quantized first.

    The result is equal to quantizing afterwards, because rounding is monotonic.
    """
    if op_of(node).name == "split":
        raise Refused("it has several results", node)
    real = [a for a in node.args if _is_real(a)]
    if not any(a in region.inside for a in real):
        raise Refused("an operand is not quantized", node)
    args = [_to(region, a, wanted) if a in real else a for a in node.args]
    return call(op_of(node), args, node.attrs)


def _to(region: Region, arg: Expr, wanted: TensorAffineType) -> Expr:
    value = known(arg)
    return region.rounded(arg, wanted) if value is None else _quantized(value, wanted)


def _joined_exact(region: Region, node: Call) -> Integers:
    found = region.exact(node.args[0])
    assert isinstance(found.type, TupleAffineType)
    first = found.type.types[0]
    if not first.is_single or any(t != first for t in found.type.types):
        raise Refused("its operands have different scales or zero points", node)
    return Integers(call(op_of(node), (found.expr,), node.attrs), first, found.bound)


def _joined(region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    """Return a concatenation or stack of operands that are quantized first; 8-bit operands use
    qnn.concatenate.
    """
    parts = node.args[0]
    if not isinstance(parts, Tuple):
        raise Refused("its operands are not written out", node)
    given = [_narrow_leaf(region, part, wanted) for part in parts.fields]
    if op_of(node).name != "concatenate" or any(g is None for g in given):
        fresh = [_to(region, part, wanted) for part in parts.fields]
        return call(op_of(node), (Tuple(fresh),), node.attrs)
    known_parts = [g for g in given if g is not None]
    data = Tuple([g.expr for g in known_parts])
    if all(g.type == wanted for g in known_parts):
        return call(op_of(node), (data,), node.attrs)
    numbers = map(Tuple, zip(*(pair(g.tensor) for g in known_parts), strict=True))
    return qnn("concatenate", data, *numbers, *pair(wanted), axis=node.attrs["axis"])


def _narrow_leaf(region: Region, part: Expr, wanted: TensorAffineType) -> Integers | None:
    """Return the 8-bit integers of one operand of a concatenation, if they have the wanted type;
    None otherwise.
    """
    try:
        found = region.exact(part)
    except Refused:
        return None
    return found if found.is_narrow and found.tensor.dtype == wanted.dtype else None


# --- means


def _pooled(name: str, region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    x = narrow(region.exact(node.args[0]), node)
    op = installed_ops().get(f"qnn.{name}")
    if op is None or x.tensor.dtype != wanted.dtype:
        raise Refused("there is no mean of these integers", node)
    return qnn(name, x.expr, *pair(x.tensor), *pair(wanted), **dict(node.attrs.items()))


def _summed_up(region: Region, node: Call) -> Integers:
    """Return a sum or mean as exact int32 sums; the number of elements enters scale and zero point."""
    x = narrow(region.exact(node.args[0]), node)
    source, result = (tensor_type_of(e) for e in (node.args[0], node))
    if not (source.is_static and result.is_static) or 0 in result.static_shape:
        raise Refused("the number of elements is not known", node)
    count = source.numel // result.numel
    ty = x.tensor
    bound = count * max(reach(ty), 255.0) * 2
    if bound >= LIMIT:
        raise Refused("sums of so many elements may not fit int32", node)
    mean = op_of(node).name == "mean"
    scale = ty.factor / np.float32(count) if mean else ty.factor
    sums = call(total, (cast(x.expr, dtype="int32"),), node.attrs)
    return Integers(sums, affine(scale, ty.zero * count, "int32"), bound)


def _global_mean(region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    """Return a global mean: the int32 sum of each channel, requantized with its scale divided by
    the number of elements.
    """
    x = narrow(region.exact(node.args[0]), node)
    source, result = (tensor_type_of(e) for e in (node.args[0], node))
    if not source.is_static or source.numel * 255 >= LIMIT or not wanted.is_single:
        raise Refused("sums of so many elements may not fit int32", node)
    count = source.numel // max(result.numel, 1)
    if count * result.numel != source.numel or any(
        a != b != 1 for a, b in zip(source.shape, result.shape, strict=True)
    ):
        raise Refused("it has means of parts", node)
    axes = [k for k, (a, b) in enumerate(zip(source.shape, result.shape, strict=True)) if a != b]
    sums = total(cast(x.expr, dtype="int32"), axis=axes, keepdims=True)
    onto = affine(wanted.factor * np.float32(count), wanted.zero, wanted.dtype)
    whole = affine(x.tensor.factor, x.tensor.zero * count, "int32")
    more: dict[str, Any] = {"rounding": region.rounding, "out_dtype": wanted.dtype}
    return qnn("requantize", sums, *pair(whole), *pair(onto), **more)


# --- the table

_CHOICES: Final = AbsorbRule("choose(dequantize(x)) => dequantize(choose(x))", _chosen_exact, _chosen)


def _chooses(holds: Callable[[Any], bool], reason: str) -> AbsorbRule:
    """Return the integer rule for an operator that only selects elements if `holds` is true of its
    attributes.
    """

    def checked(part: Callable[..., Any], region: Region, node: Call, *wanted: TensorAffineType) -> Any:
        if not holds(node.attrs):
            raise Refused(reason, node)
        return part(region, node, *wanted)

    return AbsorbRule(_CHOICES.name, partial(checked, _chosen_exact), partial(checked, _chosen))


def _nearest(a: Any) -> bool:
    """Return True if a resize takes the nearest neighbor, a pure move, and does not extrapolate."""
    crops = a.coordinate_transformation_mode == "tf_crop_and_resize"
    return a.method == "nearest_neighbor" and not crops


def _sums(name: str, exact: Callable[[Region, Call], Integers]) -> AbsorbRule:
    short = name.removeprefix("nn.")
    return AbsorbRule(f"{short}(dequantize(x), dequantize(w)) => dequantize(qnn.{short}(x, w))", exact, sums=True)


def _to_qnn(name: str, rounded: Any, short: str) -> AbsorbRule:
    return AbsorbRule(f"quantize({name}(dequantize(x))) => qnn.{short}(x)", rounded=partial(rounded, short))


def _rules() -> dict[str, AbsorbRule]:
    rules: dict[str, AbsorbRule] = {}
    for n, more in ((n, m) for n in (1, 2, 3) for m in ("", "_transpose")):
        short = f"conv{n}d{more}"
        rules[f"nn.{short}"] = _sums(short, partial(convolved, short))
    rules |= {name: _sums(name, multiplied) for name in ("nn.dense", "nn.matmul")}
    rules["nn.batch_matmul"] = _sums("nn.batch_matmul", batched)
    bias = "dequantize(sums) + b => dequantize(sums + round(b / scale))"
    rules["nn.bias_add"] = AbsorbRule(bias, biased)
    for name, short in {"add": "add", "subtract": "subtract", "multiply": "mul"}.items():
        rules[name] = _to_qnn(name, _two, short)
    rules["add"] = AbsorbRule(rules["add"].name, biased, rules["add"].rounded)
    for name in _UNARY.split():
        rules[name] = _to_qnn(name, _one, name.removeprefix("nn."))
    clamp = "quantize(clamp(x)) => clamp(quantize(x))"
    rules["nn.relu"] = AbsorbRule(clamp, _relu_exact, _relu)
    rules["clip"] = AbsorbRule(clamp, rounded=_clip)
    join = "quantize(join(x, ...)) => join(quantize(x), ...)"
    rules |= {name: AbsorbRule(join, _joined_exact, _joined) for name in ("concatenate", "stack")}
    rules["nn.avg_pool2d"] = _to_qnn("avg_pool2d", _pooled, "avg_pool2d")
    whole = AbsorbRule("quantize(global_mean(dequantize(x))) => requantize(sum(x))", rounded=_global_mean)
    rules |= {f"nn.{kind}_avg_pool{n}d": whole for kind in ("global", "adaptive") for n in (1, 2, 3)}
    rules |= {n: AbsorbRule(f"{n}(dequantize(x)) => dequantize(sum(x))", _summed_up) for n in ("sum", "mean")}
    near = _chooses(_nearest, "it weighs elements with real numbers")
    rules["topk"] = _chooses(lambda a: a.ret_type == "values", "it gives places")
    return rules | dict.fromkeys(("image.resize1d", "image.resize2d", "image.resize3d"), near)


RULES: Final = _rules()
_TABLE: Final = AbsorbRule("quantize(f(dequantize(x))) => table[x]", rounded=tabled)


def fallback(node: Call) -> AbsorbRule | None:
    """Return the integer rule for an operator without an entry in RULES, by its declared behavior;
    None if there is none.
    """
    op = node.op
    if not isinstance(op, Op):
        return None
    if op.quantized_kind is Quantized.PASS:
        return None if fills(node) else _CHOICES
    return _TABLE if op.pattern <= OpPattern.BROADCAST else None
