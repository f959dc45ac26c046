# SPDX-License-Identifier: Apache-2.0
"""Cumulative sums and products along an axis (cumsum, cumprod).

cumsum(x, axis=1)                      # y[i, j] = x[i, 0] + ... + x[i, j]
cumsum(x, axis=1, exclusive=True)      # without x[i, j]
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from aotc.ir import Attrs, DType, PrecisionTreatment, TensorType, Type, Types, attribute_field, frozen
from aotc.ir.dimensions import product_of_dims as elements
from aotc.relay.op.contraction_accumulator_types import average_accumulator_dtype
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import (
    NUMBER_KIND,
    random_array,
    replace_item,
    sample_accuracy,
    to_numpy_computable_dtype,
    widen_narrow_float_array,
)
from aotc.relay.op.type_rules import (
    axis_map_excluding_axis_attribute_or_flat,
    normalize_axis,
    require_dtype,
    require_tensor_type,
)
from aotc.tir import Assign, Block, Buffer, Declare, For, Load, Stmt, Store, Tensor, Var, binary, const, forall, te
from aotc.tir.numpy_semantics import cast_array_to_dtype


class ScanAttrs(Attrs):
    axis: int | None = None
    dtype: str = attribute_field(default="", parameter_default=None)
    exclusive: bool = attribute_field(default=False, parameter_default=None)


def _scan_result_dtype(a: ScanAttrs, data_dtype: DType) -> DType:
    return DType(a.dtype or ("int32" if data_dtype.is_bool else data_dtype))


def _infer_scan_type(a: ScanAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    dtype = _scan_result_dtype(a, data.dtype)
    require_dtype(dtype, not dtype.is_bool and dtype.can_represent_zero)
    if a.axis is None:
        return TensorType((elements(data.shape),), dtype)
    normalize_axis(a.axis, data.rank)
    return TensorType(data.shape, dtype)


def _scan_reference(ufunc: Any, a: ScanAttrs, data: Array) -> Array:
    dtype = _scan_result_dtype(a, DType.from_numpy(data))
    work = widen_narrow_float_array(
        to_numpy_computable_dtype(cast_array_to_dtype(data if a.axis is not None else data.reshape(-1), dtype.numpy))
    )
    axis = normalize_axis(a.axis or 0, work.ndim)
    if a.exclusive and work.size:
        first = np.full(replace_item(work.shape, axis, 1), ufunc.identity, work.dtype)
        work = np.concatenate([first, work.take(range(work.shape[axis] - 1), axis)], axis)
    return np.asarray(ufunc.accumulate(work, axis, dtype=work.dtype)).astype(dtype.numpy)


@frozen
class _Scan:
    """Loop nests of a scan over an array of shape (outer, extent, inner) along its second axis.

    Running values of narrow floats are float32: a float16 sum of ones would stop growing at 2,048.
    """

    op: str
    dtype: DType
    outer: int
    extent: int
    inner: int
    exclusive: bool

    @property
    def identity_element_of_scan(self) -> Scalar:
        return const(0 if self.op == "add" else 1, self.dtype)

    def build_scan_with_register_per_row(self, source: Buffer, out: Buffer) -> Stmt:
        """Return a scan with one loop per row, which holds the running value in a register."""
        work = average_accumulator_dtype(self.dtype) if self.dtype.is_float else self.dtype
        o, k, j, total = Var("o"), Var("k"), Var("j"), Var("total", work)
        place = (o * self.extent + k) * self.inner + j
        add = Assign(total, binary(self.op, total, Load(source, place).astype(self.dtype).astype(work)))
        keep = Store(out, place, total.astype(self.dtype))
        steps = (keep, add) if self.exclusive else (add, keep)
        body = Block((Declare(total, self.identity_element_of_scan.astype(work)), For(k, self.extent, Block(steps))))
        return forall(o, self.outer, forall(j, self.inner, body))

    def build_scan_of_slices_through_memory(self, source: Buffer, out: Buffer) -> Stmt:
        """Return a scan that computes each slice of `inner` elements from the previous slice of the
        result.
        """
        o, k, j = Var("o"), Var("k"), Var("j")
        begin = o * (self.extent * self.inner) + j
        place = begin + k * self.inner
        item = Load(source, place - self.inner if self.exclusive else place).astype(self.dtype)
        first = Store(
            out, begin, self.identity_element_of_scan if self.exclusive else Load(source, begin).astype(self.dtype)
        )
        row = Store(out, place, binary(self.op, Load(out, place - self.inner), item))
        rows = For(k, self.extent, forall(j, self.inner, row), begin=1)
        start = forall(j, self.inner, first)
        return forall(o, self.outer, Block((start, rows)))


def _compute_scan(combiner: str, a: ScanAttrs, data: Tensor) -> Tensor:
    data = data if a.axis is not None else te.view(data, (data.size,))
    axis = normalize_axis(a.axis or 0, data.rank)
    outer, inner = (te.as_extent(elements(part)) for part in (data.shape[:axis], data.shape[axis + 1 :]))
    takes_sizes = isinstance(data.shape[axis], int) and isinstance(inner, int)
    scan = _Scan(combiner, _scan_result_dtype(a, data.dtype), outer, data.shape[axis], inner, a.exclusive)
    if 0 in data.shape:
        return te.compute(data.shape, lambda *_: scan.identity_element_of_scan, "scan")
    program = (
        scan.build_scan_with_register_per_row
        if inner == 1 or scan.dtype.is_narrow_float
        else scan.build_scan_of_slices_through_memory
    )
    shapes = [(data.shape, scan.dtype)]
    return te.extern("scan", shapes, [data], lambda i, o, _: program(i[0], o[0]), takes_sizes=takes_sizes)[0]


def _scan_test_samples() -> Samples:
    for dtype, axis in product(NUMBER_KIND.examples, (0, 1)):
        yield Sample(args=(random_array((4, 3), dtype),), attrs=ScanAttrs(axis=axis), accuracy=sample_accuracy(dtype))
    cases: Any = (((2, 4, 3), 1), ((2, 4, 3), -3), ((2, 3), None), ((5,), 0), ((1,), 0), ((0, 3), 1), ((), None))
    for (shape, where), exclusive in product(cases, (False, True)):
        yield Sample(args=(random_array(shape),), attrs=ScanAttrs(axis=where, exclusive=exclusive))
    for wider in ("", "int64", "float32"):
        yield Sample(args=(random_array((2, 5), "bool"),), attrs=ScanAttrs(axis=1, dtype=wider))
    yield Sample(args=(random_array((3, 4), "int8"),), attrs=ScanAttrs(axis=0, dtype="int32", exclusive=True))


def _scan_op(name: str, doc: str, combiner: str, ufunc: Any) -> OpDef:
    return OpDef(
        name=name,
        doc=doc,
        attrs=ScanAttrs,
        infer=_infer_scan_type,
        reference=partial(_scan_reference, ufunc),
        axes=axis_map_excluding_axis_attribute_or_flat,
        precision=PrecisionTreatment.NEVER,
        compute=partial(_compute_scan, combiner),
        samples=_scan_test_samples,
    )


cumsum = _scan_op(
    "cumsum",
    "The running sum along an axis (None: of the flattened data); `exclusive` leaves out the own element.",
    "add",
    np.add,
)
cumprod = _scan_op("cumprod", "The running product; see cumsum.", "mul", np.multiply)
