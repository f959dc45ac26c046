# SPDX-License-Identifier: Apache-2.0
"""How operators on real numbers are computed on the integers that stand for them: a rule for each.

RULES["nn.conv2d"].exact(region, call)                 # qnn.conv2d, sums in int32 of scale x * w
RULES["add"].rounded(region, call, wanted)             # qnn.add to the scale and zero point of the result
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import DType, Op, OpPattern, Quantised, installed_ops
from aotc.relay.expr import Call, Constant, Expr, Tuple, axis_map, call, op_of, tensor_type_of, type_of
from aotc.relay.op.binary import maximum
from aotc.relay.op.cast import cast, clip
from aotc.relay.op.qnn.numbers import known, made
from aotc.relay.op.reduce import sum as total
from aotc.relay.op.shape import transpose
from aotc.relay.transform.affine import (
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
from aotc.relay.transform.affine_tables import tabled, tabulated

_LIMIT: Final = float(1 << 31)
#: Scales that differ by rounding only are the same: units in the last place of float32.
_ULPS: Final = 2
#: Operators of one tensor that have a quantised one of the same name.
_UNARY: Final = "sigmoid tanh exp sqrt rsqrt erf log abs nn.leaky_relu nn.softmax"


def narrow(found: Integers, node: Call) -> Integers:
    """What was found, if it is a tensor of bytes with one scale; Refused if not."""
    if not found.is_narrow:
        raise Refused("an operand is no tensor of 8 bits with one scale", node)
    return found


# --- sums of products


def _weights(found: Integers, axis: int, node: Call) -> Integers:
    """Weights of bytes with one scale, or one for each element along `axis`; Refused for others."""
    ty = found.tensor
    if not ty.is_single and ty.axis != axis:
        raise Refused("the weights have scales along an axis that is summed", node)
    value = known(found.expr)
    if ty.dtype not in NARROW and value is not None and DType(ty.dtype).bits < 8:
        found = Integers(Constant(value.astype(np.int8)), affine(ty.scale.data, ty.zero_point.data, "int8", ty.axis))
    if found.tensor.dtype not in NARROW:
        raise Refused(f"there are no sums of products with {ty.dtype}", node)
    return found


def _reach(ty: TensorAffineType) -> float:
    """The greatest distance of an integer from its zero point."""
    dtype, zero = DType(ty.dtype), ty.zero_point.data.astype(np.int64)
    return float(max(int(dtype.max) - int(zero.min()), int(zero.max()) - int(dtype.min)))


def _heaviest(w: Integers, axis: int) -> float:
    """What weights of one result sum up to at most, without signs."""
    ty, value = w.tensor, known(w.expr)
    if value is None:
        shape = tensor_type_of(w.expr).static_shape
        return _reach(ty) * prod(d for k, d in enumerate(shape) if k != axis)
    zero = ty.zero_point.data.reshape(-1)
    along = zero.reshape((-1,) + (1,) * (value.ndim - axis - 1))
    wide = np.abs(value.astype(np.int64) - along)
    others = tuple(k for k in range(value.ndim) if k != axis)
    return float(wide.sum(others).max(initial=0))


def summed(node: Call, name: str, x: Integers, w: Integers, axes: tuple[int, int], **more: Any) -> Integers:
    """The sums of products of two tensors of bytes, by the quantised operator `name`.

    axes   where the weights and the result have the channels
    """
    at, out = axes
    x, w = narrow(x, node), _weights(w, at, node)
    op = installed_ops().get(f"qnn.{name}")
    if op is None:
        raise Refused(f"there is no qnn.{name}", node)
    bound = _reach(x.tensor) * _heaviest(w, at)
    if bound >= _LIMIT:
        raise Refused(f"sums of products may reach {bound:.2e}, which int32 does not hold", node)
    names = {f.name for f in fields(op.attrs)}
    given = {k: v for k, v in node.attrs.items() if k in names} | {"out_dtype": "int32"} | more
    zeros, scales = (x.tensor.zero_point, w.tensor.zero_point), (x.tensor.scale, w.tensor.scale)
    made_of = qnn(name, x.expr, w.expr, *zeros, *scales, **given)
    return Integers(made_of, affine(x.tensor.factor * w.tensor.factor, 0, "int32", out), bound)


def _convolved(name: str, region: Region, node: Call) -> Integers:
    a: Any = node.attrs
    x, w = map(region.exact, node.args)
    out = a.out_layout or a.data_layout
    if not (out + a.data_layout + a.kernel_layout).isupper():
        raise Refused("its layouts are blocked", node)
    at = a.kernel_layout.index("O")
    if "transpose" in name and a.groups > 1 and not w.tensor.is_single:
        raise Refused("groups of a transposed convolution share scales", node)
    return summed(node, name, x, w, (at, out.index("C")))


def _swapped(x: Expr) -> Expr:
    """A matrix, or a batch of them, transposed."""
    rank = tensor_type_of(x).rank
    return made(transpose, x, axes=(*range(rank - 2), rank - 1, rank - 2))


def _multiplied(region: Region, node: Call) -> Integers:
    """nn.dense and nn.matmul: rows times a matrix, whose rows qnn.dense takes as the results' columns."""
    a: Any = node.attrs
    x, w = map(region.exact, node.args)
    dense = op_of(node).name == "nn.dense"
    if not dense and a.transpose_a:
        x = x.over(_swapped(x.expr))
    if not dense and not a.transpose_b:
        ty = w.tensor
        w = w.over(_swapped(w.expr), axis=ty.axis if ty.is_single else 1 - ty.axis)
    units = tensor_type_of(w.expr).shape[0]
    return summed(node, "dense", x, w, (0, tensor_type_of(node).rank - 1), units=units)


def _batched(region: Region, node: Call) -> Integers:
    a: Any = node.attrs
    x, w = map(region.exact, node.args)
    if not w.is_narrow:
        raise Refused("the second operand has scales of its own for parts", node)
    if a.transpose_a:
        x = x.over(_swapped(x.expr))
    if not a.transpose_b:
        w = w.over(_swapped(w.expr))
    return summed(node, "batch_matmul", x, w, (1, 2))


# --- what is added to sums


def _close(a: Array, b: Array) -> bool:
    """Whether scales are the same but for rounding."""
    return bool((np.abs(a.astype(np.float64) - b) <= _ULPS * np.spacing(np.abs(b).astype(np.float32))).all())


def _laid(value: Array, axis: int, rank: int) -> Array:
    """One number, or numbers along an axis of a tensor of `rank`."""
    return value if value.size == 1 else value.reshape((-1,) + (1,) * (rank - axis - 1))


def _addend(region: Region, node: Call, bias: Expr, sums: Integers, axis: int, rank: int) -> Array:
    """A constant as int32 of the sums' scale, which lies along `axis` of the constant if it had `rank` axes."""
    scale = _laid(sums.tensor.factor, axis, rank)
    value = known(bias)
    if value is None:
        found = region.exact(bias)
        data, ty = known(found.expr), found.tensor
        if data is None:
            raise Refused("what is added to its sums is no constant", node)
        factor = _laid(ty.factor, ty.axis, data.ndim)
        exact = data.astype(np.int64) - _laid(ty.zero_point.data, ty.axis, data.ndim)
        ratio = factor.astype(np.float64) / scale
        wide = exact if _close(factor, scale) else np.rint(exact * ratio)
    else:
        wide = np.rint(value.astype(np.float32) / scale)
    if not (np.abs(wide) < _LIMIT).all():
        raise Refused("what is added to its sums does not fit int32 at their scale", node)
    return wide.astype(np.int32)


def _is_sum(found: Integers) -> bool:
    return found.bound is not None and found.tensor.dtype == "int32" and found.tensor.zero == 0


def _biased(region: Region, node: Call) -> Integers:
    """nn.bias_add, and sums of which one operand is a constant: added as integers of the sums' own scale."""
    data, bias = node.args
    sums = region.exact(data)
    if not _is_sum(sums) or data.checked_type != node.checked_type:
        raise Refused("the scale of its result does not follow from those of its operands", node)
    rank = tensor_type_of(data).rank
    at = sums.tensor.axis
    if op_of(node).name == "nn.bias_add":
        axis = node.attrs["axis"] % rank
        if not sums.tensor.is_single and axis != at:
            raise Refused("the bias lies along another axis than the scales", node)
        at, rank = 0, 1
    value = _addend(region, node, bias, sums, at, rank)
    bound = (sums.bound or 0) + float(np.abs(value.astype(np.int64)).max(initial=0))
    if bound >= _LIMIT:
        raise Refused(f"sums may reach {bound:.2e}, which int32 does not hold", node)
    return Integers(call(op_of(node), (sums.expr, Constant(value)), node.attrs), sums.type, bound)


# --- operators of elements with scales of their own


def _two(name: str, region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    """qnn.add, subtract and mul."""
    left, right = (narrow(region.exact(a), node) for a in node.args)
    if {left.tensor.dtype, right.tensor.dtype} != {wanted.dtype}:
        raise Refused("its operands and its result are of different types", node)
    operands = (left.expr, right.expr, *pair(left.tensor), *pair(right.tensor))
    return tabulated(qnn(name, *operands, *pair(wanted)))


def _one(name: str, region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    """Operators of one tensor, which lower to tables."""
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
    """What was quantised before it is clamped, which is the same: rounding keeps the order."""
    data = node.args[0]
    if str(getattr(data, "op", "")) == "qnn.dequantize" and region.exact(data).type != wanted:
        return tabled(region, node, wanted)
    y = region.rounded(data, wanted)
    dtype = DType(wanted.dtype)
    ends = known(qnn("quantize", Constant(np.array([low, high], np.float32)), *pair(wanted), out_dtype=wanted.dtype))
    assert ends is not None
    first, last = map(int, ends)
    if (first, last) == (dtype.min, dtype.max):
        return y
    return maximum(y, Constant(ends[0])) if last == dtype.max else clip(y, a_min=first, a_max=last)


def _relu(region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    return _clamped(region, node, wanted, 0.0, np.inf)


def _clip(region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    return _clamped(region, node, wanted, node.attrs["a_min"], node.attrs["a_max"])


# --- moves, and choices among elements


def _is_real(expr: Expr) -> bool:
    return tensor_type_of(expr).dtype.is_float


def _quantised(value: Array, ty: TensorAffineType) -> Constant:
    """A constant as integers."""
    found = known(qnn("quantize", Constant(value.astype(np.float32)), *pair(ty), out_dtype=ty.dtype))
    assert found is not None
    return Constant(found)


def _same(region: Region, node: Call, arg: Expr, ty: TensorAffineType) -> Expr:
    """An operand as integers of a type that it has, or that holds it exactly."""
    value = known(arg)
    if value is None:
        found = region.exact(arg)
        if found.type != ty:
            raise Refused("its operands have different scales or zero points", node)
        return found.expr
    stored = _quantised(value, ty)
    back = known(qnn("dequantize", stored, *pair(ty)))
    if not np.array_equal(back, value):
        raise Refused("a constant is none of the numbers that its other operands can be", node)
    return stored


def _moved_axis(node: Call, ty: TensorAffineType) -> int:
    """Where the axis with the scales is in the result."""
    if ty.is_single:
        return ty.axis
    mapped = axis_map(node)
    found = [k for k, axis in enumerate(mapped.inputs[0] if mapped else ()) if axis == ty.axis]
    if len(found) != 1:
        raise Refused("elements with scales of their own do not stay apart", node)
    return found[0]


def _chosen_exact(region: Region, node: Call) -> Integers:
    """An operator on the integers themselves, which all have one meaning."""
    real = [a for a in node.args if _is_real(a)]
    first = next((a for a in real if known(a) is None), None)
    if first is None:
        raise Refused("an operand is not quantised", node)
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
    """The operator on operands that were quantised before, which is the same: rounding keeps the order."""
    if op_of(node).name == "split":
        raise Refused("it has several results", node)
    real = [a for a in node.args if _is_real(a)]
    if not any(a in region.inside for a in real):
        raise Refused("an operand is not quantised", node)
    args = [_to(region, a, wanted) if a in real else a for a in node.args]
    return call(op_of(node), args, node.attrs)


def _to(region: Region, arg: Expr, wanted: TensorAffineType) -> Expr:
    value = known(arg)
    return region.rounded(arg, wanted) if value is None else _quantised(value, wanted)


def _joined_exact(region: Region, node: Call) -> Integers:
    found = region.exact(node.args[0])
    assert isinstance(found.type, TupleAffineType)
    first = found.type.types[0]
    if not first.is_single or any(t != first for t in found.type.types):
        raise Refused("its operands have different scales or zero points", node)
    return Integers(call(op_of(node), (found.expr,), node.attrs), first, found.bound)


def _joined(region: Region, node: Call, wanted: TensorAffineType) -> Expr:
    """Each operand quantised before it is put into its place; those of bytes by qnn.concatenate."""
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
    scales, zeros = ([part(g.tensor) for g in known_parts] for part in (_scale, _zero))
    return qnn("concatenate", data, Tuple(scales), Tuple(zeros), *pair(wanted), axis=node.attrs["axis"])


def _scale(ty: TensorAffineType) -> Expr:
    return ty.scale


def _zero(ty: TensorAffineType) -> Expr:
    return ty.zero_point


def _narrow_leaf(region: Region, part: Expr, wanted: TensorAffineType) -> Integers | None:
    """The bytes that a part stands for, if they are of the wanted type; None for other parts."""
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
    """sum and mean: whole sums, and the count in scale and zero point."""
    x = narrow(region.exact(node.args[0]), node)
    source, result = (tensor_type_of(e) for e in (node.args[0], node))
    if not (source.is_static and result.is_static) or 0 in result.static_shape:
        raise Refused("the number of elements is not known", node)
    count = source.numel // result.numel
    ty = x.tensor
    bound = count * max(_reach(ty), 255.0) * 2
    if bound >= _LIMIT:
        raise Refused("sums of so many elements may not fit int32", node)
    mean = op_of(node).name == "mean"
    scale = ty.factor / np.float32(count) if mean else ty.factor
    sums = call(total, (cast(x.expr, dtype="int32"),), node.attrs)
    return Integers(sums, affine(scale, ty.zero * count, "int32"), bound)


# --- resampling


def _resized(part: Callable[..., Any], region: Region, node: Call, *wanted: TensorAffineType) -> Any:
    """Nearest neighbours are moves; Refused for means of several."""
    a: Any = node.attrs
    extrapolates = getattr(a, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
    if a.method != "nearest_neighbor" or extrapolates:
        raise Refused("it weighs elements with real numbers", node)
    return part(region, node, *wanted)


# --- the table

_CHOICES: Final = AbsorbRule("choose(dequantize(x)) => dequantize(choose(x))", _chosen_exact, _chosen)


def _sums(name: str, exact: Callable[[Region, Call], Integers]) -> AbsorbRule:
    short = name.removeprefix("nn.")
    return AbsorbRule(f"{short}(dequantize(x), dequantize(w)) => dequantize(qnn.{short}(x, w))", exact, sums=True)


def _to_qnn(name: str, rounded: Any, short: str) -> AbsorbRule:
    return AbsorbRule(f"quantize({name}(dequantize(x))) => qnn.{short}(x)", rounded=partial(rounded, short))


def _rules() -> dict[str, AbsorbRule]:
    rules: dict[str, AbsorbRule] = {}
    for n, more in ((n, m) for n in (1, 2, 3) for m in ("", "_transpose")):
        short = f"conv{n}d{more}"
        rules[f"nn.{short}"] = _sums(short, partial(_convolved, short))
    rules |= {name: _sums(name, _multiplied) for name in ("nn.dense", "nn.matmul")}
    rules["nn.batch_matmul"] = _sums("nn.batch_matmul", _batched)
    bias = "dequantize(sums) + b => dequantize(sums + round(b / scale))"
    rules["nn.bias_add"] = AbsorbRule(bias, _biased)
    for name, short in {"add": "add", "subtract": "subtract", "multiply": "mul"}.items():
        rules[name] = _to_qnn(name, _two, short)
    rules["add"] = AbsorbRule(rules["add"].name, _biased, rules["add"].rounded)
    for name in _UNARY.split():
        rules[name] = _to_qnn(name, _one, name.removeprefix("nn."))
    clamp = "quantize(clamp(x)) => clamp(quantize(x))"
    rules["nn.relu"] = AbsorbRule(clamp, _relu_exact, _relu)
    rules["clip"] = AbsorbRule(clamp, rounded=_clip)
    join = "quantize(join(x, ...)) => join(quantize(x), ...)"
    rules |= {name: AbsorbRule(join, _joined_exact, _joined) for name in ("concatenate", "stack")}
    rules["nn.avg_pool2d"] = _to_qnn("avg_pool2d", _pooled, "avg_pool2d")
    rules |= {n: AbsorbRule(f"{n}(dequantize(x)) => dequantize(sum(x))", _summed_up) for n in ("sum", "mean")}
    near = AbsorbRule(_CHOICES.name, partial(_resized, _chosen_exact), partial(_resized, _chosen))
    return rules | dict.fromkeys(("image.resize1d", "image.resize2d", "image.resize3d"), near)


RULES: Final = _rules()
_TABLE: Final = AbsorbRule("quantize(f(dequantize(x))) => table[x]", rounded=tabled)


def fallback(node: Call) -> AbsorbRule | None:
    """The rule of an operator without one of its own: by how it says that it behaves on integers."""
    op = node.op
    if not isinstance(op, Op):
        return None
    if op.quantised_kind is Quantised.PASS:
        return _CHOICES
    return _TABLE if op.pattern <= OpPattern.BROADCAST else None
