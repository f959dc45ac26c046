# SPDX-License-Identifier: Apache-2.0
"""Integer rules for sums of products (convolution, dense, matmul) of dequantized tensors, and for
added biases.

integer_contraction(call, "dense", x, w, (0, 1))       # qnn.dense, int32 of scale x * w
integer_bias_add(region, call)                         # the bias as int32 of the sums' scale, added
"""

from dataclasses import fields
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import DType, installed_ops
from aotc.relay.expr import Call, Constant, Expr, require_op_of_call, tensor_type_of, typed_op_call
from aotc.relay.op.qnn.quant_params import call_or_fold_constants, constant_value_or_none
from aotc.relay.op.shape import transpose
from aotc.relay.transform.quantized_region_to_integers import (
    BYTE_DTYPES,
    Array,
    IntegerRegion,
    IntegerRuleRefused,
    QuantizedExpr,
    TensorAffineType,
    call_qnn_op,
    make_affine_type,
)

#: Smallest magnitude that int32 cannot hold (2 ** 31).
INT32_LIMIT: Final = float(1 << 31)
#: Largest difference of two scales that count as equal, in units in the last place of float32.
_MAX_SCALE_ULPS: Final = 2


def require_per_tensor_byte(quantized: QuantizedExpr, node: Call) -> QuantizedExpr:
    """Return a quantized value if it is an 8-bit tensor with one scale; raise IntegerRuleRefused
    otherwise.
    """
    if not quantized.is_per_tensor_byte:
        raise IntegerRuleRefused("an operand is no tensor of 8 bits with one scale", node)
    return quantized


# --- sums of products


def _require_byte_weights(quantized: QuantizedExpr, axis: int, node: Call) -> QuantizedExpr:
    """Return 8-bit weights with one scale, or with one for each element along `axis`; raise
    IntegerRuleRefused for others.

    Constant weights of fewer bits are widened to int8.
    """
    ty = quantized.affine_type
    if not ty.is_per_tensor and ty.axis != axis:
        raise IntegerRuleRefused("the weights have scales along an axis that is summed", node)
    value = constant_value_or_none(quantized.expr)
    if ty.dtype not in BYTE_DTYPES and value is not None and DType(ty.dtype).bits < 8:
        quantized = QuantizedExpr(
            Constant(value.astype(np.int8)), make_affine_type(ty.scale.data, ty.zero_point.data, "int8", ty.axis)
        )
    if quantized.affine_type.dtype not in BYTE_DTYPES:
        raise IntegerRuleRefused(f"operators on quantized weights take int8 or uint8, not {ty.dtype}", node)
    return quantized


def max_distance_from_zero_point(ty: TensorAffineType) -> float:
    """Return the largest distance of an integer of this type from its zero point."""
    dtype, zero = DType(ty.dtype), ty.zero_point.data.astype(np.int64)
    return float(max(int(dtype.max) - int(zero.min()), int(zero.max()) - int(dtype.min)))


def _max_weight_magnitude_sum(w: QuantizedExpr, axis: int) -> float:
    """Return the largest sum of magnitudes of the weights that contribute to one result."""
    ty, value = w.affine_type, constant_value_or_none(w.expr)
    if value is None:
        shape = tensor_type_of(w.expr).static_shape
        return max_distance_from_zero_point(ty) * prod(d for k, d in enumerate(shape) if k != axis)
    zero = ty.zero_point.data.reshape(-1)
    along = zero.reshape((-1,) + (1,) * (value.ndim - axis - 1))
    wide = np.abs(value.astype(np.int64) - along)
    sum_axes = tuple(k for k in range(value.ndim) if k != axis)
    return float(wide.sum(sum_axes).max(initial=0))


def integer_contraction(
    node: Call, name: str, x: QuantizedExpr, w: QuantizedExpr, axes: tuple[int, int], **attributes: Any
) -> QuantizedExpr:
    """Return the sums of products of two 8-bit tensors, computed by the quantized operator `name`
    in int32.

    Raise IntegerRuleRefused if the sums might overflow int32.

    axes   the channel axis of the weights, and that of the result
    """
    at, out = axes
    x, w = require_per_tensor_byte(x, node), _require_byte_weights(w, at, node)
    op = installed_ops().get(f"qnn.{name}")
    if op is None:
        raise IntegerRuleRefused(f"there is no qnn.{name}", node)
    bound = max_distance_from_zero_point(x.affine_type) * _max_weight_magnitude_sum(w, at)
    if bound >= INT32_LIMIT:
        raise IntegerRuleRefused(f"dot products may reach {bound:.2e}, which int32 cannot represent", node)
    names = {f.name for f in fields(op.attrs)}
    given = {k: v for k, v in node.attrs.items() if k in names} | {"out_dtype": "int32"} | attributes
    zeros, scales = (x.affine_type.zero_point, w.affine_type.zero_point), (x.affine_type.scale, w.affine_type.scale)
    made_of = call_qnn_op(name, x.expr, w.expr, *zeros, *scales, **given)
    return QuantizedExpr(
        made_of, make_affine_type(x.affine_type.scale_values * w.affine_type.scale_values, 0, "int32", out), bound
    )


def integer_convolution(name: str, region: IntegerRegion, node: Call) -> QuantizedExpr:
    a: Any = node.attrs
    x, w = map(region.require_exact_integers, node.args)
    out = a.out_layout or a.data_layout
    if not (out + a.data_layout + a.kernel_layout).isupper():
        raise IntegerRuleRefused("its layouts are blocked", node)
    at = a.kernel_layout.index("O")
    if "transpose" in name and a.groups > 1 and not w.affine_type.is_per_tensor:
        raise IntegerRuleRefused("groups of a transposed convolution share scales", node)
    return integer_contraction(node, name, x, w, (at, out.index("C")))


def _transpose_matrices(x: Expr) -> Expr:
    """Return a matrix, or each matrix of a batch, transposed."""
    rank = tensor_type_of(x).rank
    return call_or_fold_constants(transpose, x, axes=(*range(rank - 2), rank - 1, rank - 2))


def integer_dense(region: IntegerRegion, node: Call) -> QuantizedExpr:
    """Return nn.dense or nn.matmul on integers: qnn.dense with the columns of the second operand as
    rows of its weights.
    """
    a: Any = node.attrs
    x, w = map(region.require_exact_integers, node.args)
    dense = require_op_of_call(node).name == "nn.dense"
    if not dense and a.transpose_a:
        x = x.with_expr(_transpose_matrices(x.expr))
    if not dense and not a.transpose_b:
        ty = w.affine_type
        w = w.with_expr(_transpose_matrices(w.expr), axis=ty.axis if ty.is_per_tensor else 1 - ty.axis)
    units = tensor_type_of(w.expr).shape[0]
    return integer_contraction(node, "dense", x, w, (0, tensor_type_of(node).rank - 1), units=units)


def integer_batch_matmul(region: IntegerRegion, node: Call) -> QuantizedExpr:
    a: Any = node.attrs
    x, w = map(region.require_exact_integers, node.args)
    if not w.is_per_tensor_byte:
        raise IntegerRuleRefused("the second operand has scales of its own for parts", node)
    if a.transpose_a:
        x = x.with_expr(_transpose_matrices(x.expr))
    if not a.transpose_b:
        w = w.with_expr(_transpose_matrices(w.expr))
    return integer_contraction(node, "batch_matmul", x, w, (1, 2))


# --- biases


def _is_equal_up_to_rounding(a: Array, b: Array) -> bool:
    """Return True if two scales are equal up to rounding."""
    return bool((np.abs(a.astype(np.float64) - b) <= _MAX_SCALE_ULPS * np.spacing(np.abs(b).astype(np.float32))).all())


def reshape_to_broadcast_along_axis(value: Array, axis: int, rank: int) -> Array:
    """Return one value as a scalar, or values along an axis shaped to broadcast to a tensor of
    `rank`.
    """
    return value.reshape(() if value.size == 1 else (-1,) + (1,) * (rank - axis - 1))


def _require_constant_addend_as_int32(
    region: IntegerRegion, node: Call, bias: Expr, sums: QuantizedExpr, axis: int, rank: int
) -> Array:
    """Return a constant addend as int32 with the scale of the sums, which lies along `axis` of a
    tensor of `rank`.

    Raise IntegerRuleRefused if it is not constant or does not fit int32.
    """
    scale = reshape_to_broadcast_along_axis(sums.affine_type.scale_values, axis, rank)
    value = constant_value_or_none(bias)
    if value is None:
        addend = region.require_exact_integers(bias)
        data, ty = constant_value_or_none(addend.expr), addend.affine_type
        if data is None:
            raise IntegerRuleRefused("what is added to its sums is no constant", node)
        factor = reshape_to_broadcast_along_axis(ty.scale_values, ty.axis, data.ndim)
        exact = data.astype(np.int64) - reshape_to_broadcast_along_axis(ty.zero_point.data, ty.axis, data.ndim)
        ratio = factor.astype(np.float64) / scale
        wide = exact if _is_equal_up_to_rounding(factor, scale) else np.rint(exact * ratio)
    else:
        wide = np.rint(value.astype(np.float32) / scale)
    if not (np.abs(wide) < INT32_LIMIT).all():
        raise IntegerRuleRefused("what is added to its sums does not fit int32 at their scale", node)
    return wide.astype(np.int32)


def _is_bounded_int32_with_zero_point_0(quantized: QuantizedExpr) -> bool:
    return (
        quantized.bound is not None
        and quantized.affine_type.dtype == "int32"
        and quantized.affine_type.zero_point_value == 0
    )


def integer_bias_add(region: IntegerRegion, node: Call) -> QuantizedExpr:
    """Return nn.bias_add, or a sum with a constant operand, as an int32 addition at the scale of
    the sums.

    Raise IntegerRuleRefused if the data is not a sum of products or the result might overflow
    int32.
    """
    data, bias = node.args
    sums = region.require_exact_integers(data)
    if not _is_bounded_int32_with_zero_point_0(sums) or data.checked_type != node.checked_type:
        raise IntegerRuleRefused("the scale of its result does not follow from those of its operands", node)
    rank = tensor_type_of(data).rank
    at = sums.affine_type.axis
    if require_op_of_call(node).name == "nn.bias_add":
        axis = node.attrs["axis"] % rank
        if not sums.affine_type.is_per_tensor and axis != at:
            raise IntegerRuleRefused("the bias lies along another axis than the scales", node)
        at, rank = 0, 1
    value = _require_constant_addend_as_int32(region, node, bias, sums, at, rank)
    bound = (sums.bound or 0) + float(np.abs(value.astype(np.int64)).max(initial=0))
    if bound >= INT32_LIMIT:
        raise IntegerRuleRefused(f"the sums may reach {bound:.2e}, which int32 cannot represent", node)
    return QuantizedExpr(
        typed_op_call(require_op_of_call(node), (sums.expr, Constant(value)), node.attrs), sums.type, bound
    )
