# SPDX-License-Identifier: Apache-2.0
"""Integer rules for sums of products (convolution, dense, matmul) of dequantized tensors, and for
added biases.

summed(call, "dense", x, w, (0, 1))                    # qnn.dense, int32 of scale x * w
biased(region, call)                                   # the bias as int32 of the sums' scale, added
"""

from dataclasses import fields
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import DType, installed_ops
from aotc.relay.expr import Call, Constant, Expr, call, op_of, tensor_type_of
from aotc.relay.op.qnn.quant_params import known, made
from aotc.relay.op.shape import transpose
from aotc.relay.transform.affine_quantization import (
    NARROW,
    Array,
    Integers,
    Refused,
    Region,
    TensorAffineType,
    affine,
    qnn,
)

#: Smallest magnitude that int32 cannot hold (2 ** 31).
LIMIT: Final = float(1 << 31)
#: Largest difference of two scales that count as equal, in units in the last place of float32.
_ULPS: Final = 2


def narrow(found: Integers, node: Call) -> Integers:
    """Return a quantized value if it is an 8-bit tensor with one scale; raise Refused otherwise."""
    if not found.is_narrow:
        raise Refused("an operand is no tensor of 8 bits with one scale", node)
    return found


# --- sums of products


def _weights(found: Integers, axis: int, node: Call) -> Integers:
    """Return 8-bit weights with one scale, or with one for each element along `axis`; raise Refused
    for others.

    Constant weights of fewer bits are widened to int8.
    """
    ty = found.tensor
    if not ty.is_single and ty.axis != axis:
        raise Refused("the weights have scales along an axis that is summed", node)
    value = known(found.expr)
    if ty.dtype not in NARROW and value is not None and DType(ty.dtype).bits < 8:
        found = Integers(Constant(value.astype(np.int8)), affine(ty.scale.data, ty.zero_point.data, "int8", ty.axis))
    if found.tensor.dtype not in NARROW:
        raise Refused(f"there are no sums of products with {ty.dtype}", node)
    return found


def reach(ty: TensorAffineType) -> float:
    """Return the largest distance of an integer of this type from its zero point."""
    dtype, zero = DType(ty.dtype), ty.zero_point.data.astype(np.int64)
    return float(max(int(dtype.max) - int(zero.min()), int(zero.max()) - int(dtype.min)))


def _heaviest(w: Integers, axis: int) -> float:
    """Return the largest sum of magnitudes of the weights that contribute to one result."""
    ty, value = w.tensor, known(w.expr)
    if value is None:
        shape = tensor_type_of(w.expr).static_shape
        return reach(ty) * prod(d for k, d in enumerate(shape) if k != axis)
    zero = ty.zero_point.data.reshape(-1)
    along = zero.reshape((-1,) + (1,) * (value.ndim - axis - 1))
    wide = np.abs(value.astype(np.int64) - along)
    others = tuple(k for k in range(value.ndim) if k != axis)
    return float(wide.sum(others).max(initial=0))


def summed(node: Call, name: str, x: Integers, w: Integers, axes: tuple[int, int], **more: Any) -> Integers:
    """Return the sums of products of two 8-bit tensors, computed by the quantized operator `name`
    in int32.

    Raise Refused if the sums might overflow int32.

    axes   the channel axis of the weights, and that of the result
    """
    at, out = axes
    x, w = narrow(x, node), _weights(w, at, node)
    op = installed_ops().get(f"qnn.{name}")
    if op is None:
        raise Refused(f"there is no qnn.{name}", node)
    bound = reach(x.tensor) * _heaviest(w, at)
    if bound >= LIMIT:
        raise Refused(f"sums of products may reach {bound:.2e}, which int32 does not hold", node)
    names = {f.name for f in fields(op.attrs)}
    given = {k: v for k, v in node.attrs.items() if k in names} | {"out_dtype": "int32"} | more
    zeros, scales = (x.tensor.zero_point, w.tensor.zero_point), (x.tensor.scale, w.tensor.scale)
    made_of = qnn(name, x.expr, w.expr, *zeros, *scales, **given)
    return Integers(made_of, affine(x.tensor.factor * w.tensor.factor, 0, "int32", out), bound)


def convolved(name: str, region: Region, node: Call) -> Integers:
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
    """Return a matrix, or each matrix of a batch, transposed."""
    rank = tensor_type_of(x).rank
    return made(transpose, x, axes=(*range(rank - 2), rank - 1, rank - 2))


def multiplied(region: Region, node: Call) -> Integers:
    """Return nn.dense or nn.matmul on integers: qnn.dense with the columns of the second operand as
    rows of its weights.
    """
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


def batched(region: Region, node: Call) -> Integers:
    a: Any = node.attrs
    x, w = map(region.exact, node.args)
    if not w.is_narrow:
        raise Refused("the second operand has scales of its own for parts", node)
    if a.transpose_a:
        x = x.over(_swapped(x.expr))
    if not a.transpose_b:
        w = w.over(_swapped(w.expr))
    return summed(node, "batch_matmul", x, w, (1, 2))


# --- biases


def _close(a: Array, b: Array) -> bool:
    """Return True if two scales are equal up to rounding."""
    return bool((np.abs(a.astype(np.float64) - b) <= _ULPS * np.spacing(np.abs(b).astype(np.float32))).all())


def laid(value: Array, axis: int, rank: int) -> Array:
    """Return one value as a scalar, or values along an axis shaped to broadcast to a tensor of
    `rank`.
    """
    return value.reshape(() if value.size == 1 else (-1,) + (1,) * (rank - axis - 1))


def _addend(region: Region, node: Call, bias: Expr, sums: Integers, axis: int, rank: int) -> Array:
    """Return a constant addend as int32 with the scale of the sums, which lies along `axis` of a
    tensor of `rank`.

    Raise Refused if it is not constant or does not fit int32.
    """
    scale = laid(sums.tensor.factor, axis, rank)
    value = known(bias)
    if value is None:
        found = region.exact(bias)
        data, ty = known(found.expr), found.tensor
        if data is None:
            raise Refused("what is added to its sums is no constant", node)
        factor = laid(ty.factor, ty.axis, data.ndim)
        exact = data.astype(np.int64) - laid(ty.zero_point.data, ty.axis, data.ndim)
        ratio = factor.astype(np.float64) / scale
        wide = exact if _close(factor, scale) else np.rint(exact * ratio)
    else:
        wide = np.rint(value.astype(np.float32) / scale)
    if not (np.abs(wide) < LIMIT).all():
        raise Refused("what is added to its sums does not fit int32 at their scale", node)
    return wide.astype(np.int32)


def _is_sum(found: Integers) -> bool:
    return found.bound is not None and found.tensor.dtype == "int32" and found.tensor.zero == 0


def biased(region: Region, node: Call) -> Integers:
    """Return nn.bias_add, or a sum with a constant operand, as an int32 addition at the scale of
    the sums.

    Raise Refused if the data is not a sum of products or the result might overflow int32.
    """
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
    if bound >= LIMIT:
        raise Refused(f"sums may reach {bound:.2e}, which int32 does not hold", node)
    return Integers(call(op_of(node), (sums.expr, Constant(value)), node.attrs), sums.type, bound)
