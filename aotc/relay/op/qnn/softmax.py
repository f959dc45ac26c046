# SPDX-License-Identifier: Apache-2.0
"""qnn.softmax: exponentials from a table, and their sum.

softmax(x, 0.1, 3, 1 / 256, 0, axis=-1)        # uint8

Of 8 bits there are 256 differences from the greatest element: their exponentials are a table of float32.
"""

from __future__ import annotations

import numpy as np

from aotc.ir import Attrs, DType, OpPattern, Type, Types
from aotc.relay.expr import Constant, Expr, tensor_type_of
from aotc.relay.op import elementwise, index, reduce, scan
from aotc.relay.op import slice as slices
from aotc.relay.op.define import Array, OpDef, Samples, exact, random_array
from aotc.relay.op.qnn import numbers as q
from aotc.relay.op.qnn import scale, table
from aotc.relay.op.rules import all_but_axis, axis_of, require_dtype, tensor


class QuantisedSoftmaxAttrs(Attrs):
    """Softmax along an axis of the numbers that integers of 8 bits stand for, as integers of the same type.

    round_even(e / total * floor(1 / output_scale)) + output_zero_point saturated, in float32, as in ONNX Runtime: e are
    exponentials, as large as their sum allows, and the sum is taken in order.
    """

    axis: int = -1


_EVERY = np.arange(256, dtype=np.float64) - 255
#: What sums of exponentials stay below the greatest float32 by, as a logarithm.
_RESERVE = 5.0


def _room(count: int) -> float:
    """The logarithm of what exponentials, of numbers up to 0, are multiplied by before `count` of them are added.

    A float32, which ONNX Runtime takes it for: the table's last bits depend on it.
    """
    most = np.finfo(np.float32).max / np.float32(max(count, 1))
    return max(0.0, float(np.float32(np.log(np.float64(most)))) - _RESERVE)


def _infer(a: QuantisedSoftmaxAttrs, types: Types) -> Type:
    data = tensor(table.infer_one(a, types))
    require_dtype(data.dtype, data.dtype.bits == 8)
    axis_of(a.axis, data.rank)
    return data


def _reference(a: QuantisedSoftmaxAttrs, x: Array, s: Array, z: Array, so: Array, zo: Array) -> Array:
    step = s.astype(np.float64).reshape(())
    exponentials = np.exp((_EVERY + _room(x.shape[a.axis]) / step) * step).astype(np.float32)
    wide = x.astype(np.int32)
    terms = exponentials[wide - wide.max(a.axis, keepdims=True, initial=-128) + 255]
    total = np.cumsum(terms, a.axis, np.float32).take([-1] if x.shape[a.axis] else [], a.axis)
    factor = np.floor(np.float32(1) / so.astype(np.float32).reshape(()))
    return q.stored(np.rint(terms / total * factor), zo, None, DType.of(x))


def _exponentials(s: Expr, room: float) -> Expr:
    """The table of 256 exponentials, the last one the greatest."""
    step = q.laid(s, None, 0, "float64")
    shift = q.div(q.constant(room, "float64"), step)
    powers = q.mul(q.add(Constant(_EVERY), shift), step)
    return q.converted(q.made(elementwise.exp, powers), "float32")


def _expand(a: QuantisedSoftmaxAttrs, x: Expr, s: Expr, z: Expr, so: Expr, zo: Expr) -> Expr:
    q.checked(q.dtype_of(x), table.NAMES, s, z, so, zo)
    ty = tensor_type_of(x)
    axis = axis_of(a.axis, ty.rank)
    count = q.size_of(x, axis)
    wide = q.converted(x, "int32")
    greatest = reduce.max(wide, axis=axis, keepdims=True)
    place = q.sub(wide, q.sub(greatest, q.constant(255, "int32")))
    terms = index.take(_exponentials(s, _room(count)), place, axis=0)
    running = scan.cumsum(terms, axis=axis)
    total = slices.strided_slice(running, begin=[count - 1], end=[count], strides=[1], axes=[axis])
    inverse = q.div(q.constant(1, "float32"), q.laid(so, None, 0, "float32"))
    y = q.mul(q.div(terms, total), q.made(elementwise.floor, inverse))
    return q.nearest(y, zo, None, ty.dtype)


def _samples() -> Samples:
    pair = (scale.scale_array(0.1), scale.zero_array(3), scale.scale_array(1 / 256))
    for shape, axis in (((3, 7), -1), ((2, 5, 3), 1), ((1, 40), 1)):
        for dtype, zero in (("uint8", 0), ("int8", -128)):
            a = QuantisedSoftmaxAttrs(axis=axis)
            yield q.with_constants(a, random_array(shape, dtype), *pair, scale.zero_array(zero))
    yield exact(QuantisedSoftmaxAttrs(), random_array((2, 9), "uint8"), *pair, scale.zero_array(0))
    other = (*pair[:2], scale.scale_array(0.0039), scale.zero_array(0))
    yield exact(QuantisedSoftmaxAttrs(), random_array((2, 9), "uint8"), *other)


softmax = OpDef(
    name="qnn.softmax",
    attrs=QuantisedSoftmaxAttrs,
    args=table.ARGS,
    infer=_infer,
    reference=_reference,
    axes=all_but_axis,
    expand=_expand,
    samples=_samples,
    **q.facets(OpPattern.OUT_ELEMWISE_FUSABLE),
)
