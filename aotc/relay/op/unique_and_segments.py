# SPDX-License-Identifier: Apache-2.0
"""unique (distinct elements of a vector) and segment_sum (sums of rows with equal ids).

unique(x)                              # values, first positions, index of each element's value, number of values
segment_sum(x, ids)                    # the sums of the rows of x with equal ids
"""

from __future__ import annotations

import numpy as np

from aotc.ir import Attrs, TensorType, TupleType, Type, Types, is_static, require, require_static_shape
from aotc.relay.expr import Call, Constant, Expr, Tuple, tensor_type_of
from aotc.relay.op import (
    binary_elementwise,
    cast_clip_prelu,
    concat_split,
    cumulative,
    dyn,
    gather,
    reduce,
    reshape_slice_cast_like,
    scatter,
    shape,
    sorting,
    tensor_creation,
)
from aotc.relay.op import slice as slices
from aotc.relay.op.opdef import Array, OpDef, Samples
from aotc.relay.op.operator_definition import (
    NUMBER_KIND,
    exact_sample,
    random_array,
    require_dtype,
    require_tensor_of_rank,
    static_shape_of,
    to_numpy_computable_dtype,
)


class UniqueAttrs(Attrs):
    """The distinct elements of a vector, sorted if `is_sorted`, else in the order of first
    occurrence.

    The result is a tuple: the values, the first position of each value, the index of each element's
    value, the number of values, and with `return_counts` the number of occurrences of each value.
    Unused entries are zero. NaN equals no element.
    """

    is_sorted: bool = True
    return_counts: bool = False


def _infer_padded_unique_type(a: UniqueAttrs, types: Types) -> Type:
    data = require_tensor_of_rank("unique.rank", types[0], 1)
    require_dtype(data.dtype, not data.dtype.is_bool and data.dtype.can_represent_zero)
    require("unique.empty", data.shape[0] != 0, "there are no elements")
    numbers = TensorType(data.shape, "int32")
    fields = (data, numbers, numbers, TensorType((1,), "int32"), numbers)
    return TupleType(fields if a.return_counts else fields[:4])


def _unique_reference(a: UniqueAttrs, data: Array) -> tuple[Array, ...]:
    work = to_numpy_computable_dtype(data)
    order = np.argsort(work, kind="stable")
    new = np.append(True, work[order][1:] != work[order][:-1])
    group, first = (np.cumsum(new) - 1, order[new])
    if not a.is_sorted:
        by = np.argsort(first)
        group, first = (np.argsort(by)[group], first[by])
    inverse = np.zeros(len(data), np.int32)
    inverse[order] = group
    spare = (0, len(data) - len(first))
    counts = np.pad(np.bincount(group), spare)
    number = np.array([len(first)])
    parts = (np.pad(first, spare), inverse, number, counts)
    index_outputs = parts if a.return_counts else parts[:3]
    values = np.pad(data[first], spare)
    return (values, *(p.astype(np.int32) for p in index_outputs))


def _expand_unique(a: UniqueAttrs, data: Expr) -> Expr:
    (n,) = static_shape_of(data)
    dtype = tensor_type_of(data).dtype
    nothing, unit, end = (Constant(np.array(v, np.int32)) for v in (0, 1, n))
    zeros = tensor_creation.zeros((n,), "int32")
    order = sorting.argsort(data, dtype="int32")
    ordered = gather.take(data, order, axis=0)
    after = slices.strided_slice(ordered, (1,), (n,))
    before = slices.strided_slice(ordered, (0,), (n - 1,))
    changes = cast_clip_prelu.cast(binary_elementwise.not_equal(after, before), "int32")
    new = concat_split.concatenate([Constant(np.ones(1, np.int32)), changes], 0)
    group = binary_elementwise.subtract(cumulative.cumsum(new, axis=0), unit)
    none = tensor_creation.full(end, (n,))
    ones = tensor_creation.ones((n,), "int32")
    to = scatter.scatter_elements
    first = to(none, group, order, reduction="min")
    counts = to(zeros, group, ones, reduction="add")
    if not a.is_sorted:
        by = sorting.argsort(first, dtype="int32")
        rank = to(zeros, by, tensor_creation.arange(0, n, 1, "int32"))
        group = gather.take(rank, group, axis=0)
        first = gather.take(first, by, axis=0)
        counts = gather.take(counts, by, axis=0)
    inverse = to(zeros, order, group)
    is_present = binary_elementwise.less(first, end)
    first = binary_elementwise.where(is_present, first, nothing)
    zero = Constant(np.zeros((), dtype.numpy))
    values = binary_elementwise.where(is_present, gather.take(data, first, axis=0), zero)
    last = reduce.max(group, axis=0, keepdims=True)
    number = binary_elementwise.add(last, unit)
    parts = (values, first, inverse, number, counts)
    return Tuple(parts if a.return_counts else parts[:4])


def _unique_test_samples() -> Samples:
    for k, dtype in enumerate(NUMBER_KIND.examples):
        few = (random_array((20,), "int8", k) % 6).astype(dtype)
        yield exact_sample(UniqueAttrs(is_sorted=k % 2 == 0, return_counts=k % 3 == 0), few)
    for ordered in (True, False):
        special = np.array([2, np.nan, 0, -0.0, np.nan, np.inf, 2], np.float32)
        yield exact_sample(UniqueAttrs(is_sorted=ordered, return_counts=True), special)
        yield exact_sample(UniqueAttrs(is_sorted=ordered), np.ones(1, np.int32))


unique = OpDef(
    name="unique",
    attrs=UniqueAttrs,
    infer=_infer_padded_unique_type,
    reference=_unique_reference,
    expand=_expand_unique,
    samples=_unique_test_samples,
)


def segment_sum(data: Expr, segment_ids: Expr, num_segments: int | Expr | None = None) -> Call:
    """Sums of the rows of `data` with equal ids: row k of the result is the sum of rows whose id is
    k.

    The number of rows is `num_segments`, or one more than the largest id. Rows without an id and
    rows whose id is not below `num_segments` are ignored. Negative ids count from the end.
    """
    ty = tensor_type_of(data)
    rows = reshape_slice_cast_like.slice_like(data, segment_ids, axes=(0,))
    column = shape.reshape(segment_ids, (-1, *(1,) * (ty.rank - 1)))
    ids = reshape_slice_cast_like.broadcast_to_like(column, rows)
    row = ty.shape[1:]
    if isinstance(num_segments, int) and is_static(row):
        base = tensor_creation.zeros((num_segments, *require_static_shape(row)), ty.dtype)
    else:
        wide = cast_clip_prelu.cast(segment_ids, "int64")
        count = reduce.max(wide, axis=0, keepdims=True)
        # without ids the maximum is the smallest int64, and the result has no rows
        most: Expr = binary_elementwise.maximum(count, Constant(np.full((), -1, np.int64)))
        most = binary_elementwise.add(most, Constant(np.ones((), np.int64)))
        if num_segments is not None:
            given = Constant(np.array(num_segments)) if isinstance(num_segments, int) else num_segments
            most = shape.reshape(cast_clip_prelu.cast(given, "int64"), (1,))
        rest = slices.strided_slice(shape.shape_of(data, dtype="int64"), (1,), (ty.rank,))
        base = dyn.zeros(concat_split.concatenate([most, rest], 0), dtype=ty.dtype)
    return scatter.scatter_elements(base, ids, rows, axis=0, reduction="add")
