# SPDX-License-Identifier: Apache-2.0
"""qnn.softmax: softmax of 8-bit quantized tensors by a table of integer exponentials.

softmax(x, 0.1, 3, 1 / 256, 0, axis=-1)        # uint8

An element differs from the maximum by one of 256 values; the exponentials of these are a table of
integer multiples of 2^-30. Integer sums of table entries are exact in any order.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aotc.ir import Attrs, DType, OpPattern, Type, Types
from aotc.relay.expr import Constant, Expr, tensor_type_of
from aotc.relay.op import elementwise_unary, gather, reduce
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact, random_array
from aotc.relay.op.qnn import defined_rounding, lookup_table, requantize
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.type_rules import all_but_axis, axis_of, require_dtype, tensor


class QuantizedSoftmaxAttrs(Attrs):
    """Softmax of 8-bit quantized numbers along an axis, quantized to the output's scale with the
    type of the input.

    round_even(e * (1 / (total * output_scale))) + output_zero_point, saturated. The integers e are
    round(exp((x - max) * scale) * 2^30), and total is their exact sum; both are rounded to float32,
    and so is each operation on them.
    """

    axis: int = -1


_BITS: Final = 30
"""Number of fractional bits of the table's entries, which are multiples of 2^-30."""
_DIFFERENCES: Final = np.arange(256, dtype=np.float64) - 255


def _infer(a: QuantizedSoftmaxAttrs, types: Types) -> Type:
    data = tensor(lookup_table.infer_one(a, types))
    require_dtype(data.dtype, data.dtype.bits == 8)
    axis_of(a.axis, data.rank)
    return data


def _table(scale: Array) -> Array:
    """Return exp(-255 * scale) to exp(0) as integers with 30 fractional bits."""
    step = scale.astype(np.float64).reshape(())
    return np.rint(np.exp(_DIFFERENCES * step) * 2.0**_BITS).astype(np.int32)


def _reference(a: QuantizedSoftmaxAttrs, x: Array, s: Array, z: Array, so: Array, zo: Array) -> Array:
    wide = x.astype(np.int32)
    terms = _table(s)[wide - wide.max(a.axis, keepdims=True, initial=-128) + 255]
    total = terms.sum(a.axis, np.int64, keepdims=True).astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / (total * so.astype(np.float32).reshape(()))
    return q.stored(np.rint(terms.astype(np.float32) * inverse), zo, None, DType.of(x))


def _table_expr(s: Expr) -> Expr:
    """Return an expression for `_table` of a scale that may be known only at run time."""
    scale = q.known(s)
    if scale is not None:
        return Constant(_table(scale))
    powers = q.mul(Constant(_DIFFERENCES), q.laid(s, None, 0, "float64"))
    scaled = q.mul(q.made(elementwise_unary.exp, powers), q.constant(2.0**_BITS, "float64"))
    return q.converted(q.made(elementwise_unary.round, scaled), "int32")


def _expand(a: QuantizedSoftmaxAttrs, x: Expr, s: Expr, z: Expr, so: Expr, zo: Expr) -> Expr:
    q.checked(q.dtype_of(x), lookup_table.NAMES, s, z, so, zo)
    ty = tensor_type_of(x)
    axis = axis_of(a.axis, ty.rank)
    wide = q.converted(x, "int32")
    greatest = reduce.max(wide, axis=axis, keepdims=True)
    place = q.sub(wide, q.sub(greatest, q.constant(255, "int32")))
    terms = gather.take(_table_expr(s), place, axis=0)
    total = reduce.sum(q.converted(terms, "int64"), axis=axis, keepdims=True)
    steps = q.mul(q.converted(total, "float32"), q.laid(so, None, 0, "float32"))
    inverse = q.div(q.constant(1, "float32"), steps)
    return q.nearest(q.made(defined_rounding.product, q.converted(terms, "float32"), inverse), zo, None, ty.dtype)


def _samples() -> Samples:
    pair = (requantize.scale_array(0.1), requantize.zero_array(3), requantize.scale_array(1 / 256))
    for shape, axis in (((3, 7), -1), ((2, 5, 3), 1), ((1, 40), 1)):
        for dtype, zero in (("uint8", 0), ("int8", -128)):
            a = QuantizedSoftmaxAttrs(axis=axis)
            yield q.with_constants(a, random_array(shape, dtype), *pair, requantize.zero_array(zero))
    yield exact(QuantizedSoftmaxAttrs(), random_array((2, 9), "uint8"), *pair, requantize.zero_array(0))
    other = (*pair[:2], requantize.scale_array(0.0039), requantize.zero_array(0))
    yield exact(QuantizedSoftmaxAttrs(), random_array((2, 9), "uint8"), *other)


softmax = OpDef(
    name="qnn.softmax",
    attrs=QuantizedSoftmaxAttrs,
    args=lookup_table.ARGS,
    infer=_infer,
    reference=_reference,
    axes=all_but_axis,
    expand=_expand,
    samples=_samples,
    **q.facets(OpPattern.OUT_ELEMWISE_FUSABLE),
)
