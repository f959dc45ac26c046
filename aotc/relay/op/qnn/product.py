# SPDX-License-Identifier: Apache-2.0
"""Products of quantised matrices: qnn.dense and qnn.batch_matmul.

dense(x, w, 128, 0, 0.05, 0.01)                # x (..., K), w (N, K) -> int32 (..., N)
batch_matmul(x, y, 0, 0, 0.05, 0.01)           # x (B, M, K), y (B, N, K) -> int32 (B, M, N)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from aotc.ir import Attrs, AxisMap, OpPattern, Type, Types, args, param
from aotc.relay.expr import Expr
from aotc.relay.op import dense as products
from aotc.relay.op import reduce
from aotc.relay.op import shape as shapes
from aotc.relay.op.opdef import Array, OpDef, Samples
from aotc.relay.op.qnn import numbers as q
from aotc.relay.op.qnn import sums
from aotc.relay.op.qnn.convolution import zero_points
from aotc.relay.op.samples import exact, random_array


class QuantisedDenseAttrs(Attrs):
    """Sums of (data - input_zero_point) * (weight - kernel_zero_point): data (..., K), weight (N, K), int32 (..., N).

    The weights' scales and zero points are one value, or one for each of N.
    """

    units: int | None = param(given=None)
    out_dtype: str = "int32"


class QuantisedMatmulAttrs(Attrs):
    """Sums of (x - x_zero_point) * (y - y_zero_point): x (B, M, K), y (B, N, K), int32 (B, M, N)."""

    out_dtype: str = "int32"


def _plain(a: Any) -> tuple[OpDef, Attrs]:
    """The operator of plain integers, and its attributes."""
    if isinstance(a, QuantisedDenseAttrs):
        made = products.DenseAttrs(units=a.units, out_dtype=a.out_dtype)
        return products.dense, made
    plain = products.BatchMatmulAttrs(out_dtype=a.out_dtype, transpose_b=True)
    return products.batch_matmul, plain


def _channels(a: Any) -> int | None:
    """The axis of the second operand along which its zero points lie."""
    return 0 if isinstance(a, QuantisedDenseAttrs) else None


def _infer(names: Sequence[str], a: Any, types: Types) -> Type:
    x, y = (q.quantised(ty, name) for ty, name in zip(types[:2], names, strict=False))
    op, plain = _plain(a)
    result = op.infer(plain, (x, y))
    q.check_pairs(types[2::2], x, None, names[2], names[4])
    q.check_pairs(types[3::2], y, _channels(a), names[3], names[5])
    return result


def _axes(a: Any, types: Types) -> AxisMap | None:
    op, plain = _plain(a)
    assert op.axes is not None
    return op.axes(plain, types)


def _reference(a: Any, *given: Array) -> Array:
    x, y, xz, yz = given[:4]
    op, plain = _plain(a)
    other = q.offsets(y, yz, _channels(a))
    return np.asarray(op.reference(plain, q.offsets(x, xz), other))


def _expand(name: str, names: Sequence[str], a: Any, *given: Expr) -> Expr:
    sums.check(*given, names=names[2:])
    x, y, xz, yz = given[:4]
    axis, count = _channels(a), q.size_of(y, -1)
    y, yz = sums.without_zero(y, yz, axis)
    if a.out_dtype == "int32":
        sums.check_bounds(name, x, y, (xz, yz), axis, [q.rank_of(y) - 1])
    op, plain = _plain(a)
    total = q.made(op, x, y, **dict(plain.items()))
    rank = q.rank_of(total)

    def rows(z: Expr, keepdims: bool) -> Expr:
        wide = q.converted(z, "int32")
        return q.made(reduce.sum, wide, axis=[-1], keepdims=keepdims)

    def columns() -> Expr:
        found = rows(y, False)
        return found if axis == 0 else q.made(shapes.expand_dims, found, axis=1)

    def place(v: Expr) -> Expr:
        return q.laid(v, rank - 1, rank) if q.rank_of(v) < 2 else v

    return sums.taken(total, (xz, yz), count, columns, lambda: rows(x, True), place)


def _dense_samples() -> Samples:
    for shape, weight in (((3, 17), (5, 17)), ((2, 3, 8), (4, 8)), ((1, 33), (40, 33))):
        a, w = QuantisedDenseAttrs(units=weight[0]), random_array(weight, "int8", 1)
        x, unsigned = random_array(shape, "int8"), random_array(shape, "uint8")
        yield q.with_constants(a, unsigned, w, *zero_points(117, 0))
        yield q.with_constants(a, x, w, *zero_points(-128, np.arange(weight[0]) - 2))
        yield exact(a, x, random_array(weight, "uint8", 1), *zero_points(-7, 128))
        yield exact(QuantisedDenseAttrs(units=None), x, w, *zero_points(0, 0))


def _matmul_samples() -> Samples:
    for left, right in (((2, 3, 4), (2, 5, 4)), ((1, 3, 7), (2, 2, 7))):
        x, y = random_array(left, "uint8"), random_array(right, "int8", 1)
        yield exact(QuantisedMatmulAttrs(), x, y, *zero_points(3, -9))
        yield q.with_constants(QuantisedMatmulAttrs(), x, y, *zero_points(128, 0))


def _product(attributes: type[Attrs], names: Sequence[str], samples: Any, order: str = "") -> OpDef:
    dense = attributes is QuantisedDenseAttrs
    name = "qnn.dense" if dense else "qnn.batch_matmul"
    return OpDef(
        name=name,
        order=order,
        attrs=attributes,
        args=(*args(*names[:2]), *q.scales(*names[2:])),
        infer=partial(_infer, names),
        reference=_reference,
        axes=_axes,
        expand=partial(_expand, name, names),
        samples=samples,
        **q.facets(OpPattern.OUT_ELEMWISE_FUSABLE, sums=True),
    )


_DENSE = ("data", "weight", *sums.NAMES)
_MATMUL = ("x", "y", "x_zero_point", "y_zero_point", "x_scale", "y_scale")
_ORDER = " ".join((*_DENSE, "units", "out_dtype"))
dense = _product(QuantisedDenseAttrs, _DENSE, _dense_samples, _ORDER)
batch_matmul = _product(QuantisedMatmulAttrs, _MATMUL, _matmul_samples)
