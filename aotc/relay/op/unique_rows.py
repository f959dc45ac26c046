# SPDX-License-Identifier: Apache-2.0
"""The distinct rows of a matrix.

first, inverse, counts, number = unique_rows(x, is_sorted=True)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.ir import Attrs, TensorType, TupleType, Type, Types
from aotc.relay.op.opdef import Array, OpDef, Samples, Scalar
from aotc.relay.op.operator_definition import exact_sample, random_array, to_numpy_computable_dtype
from aotc.relay.op.type_rules import require_tensor_of_rank
from aotc.tir import BOOL, Assign, Block, Buffer, Declare, For, If, Load, Stmt, Store, Tensor, Var, const, te
from aotc.tir import maximum as larger
from aotc.tir import minimum as smaller


class UniqueRowsAttrs(Attrs):
    """The distinct rows of a matrix, in lexicographic order if `is_sorted`, else in the order of first occurrence.

    The result is a tuple: the first position of each distinct row, the index of each row among the distinct ones, the
    number of occurrences of each distinct row, and the number of distinct rows, of shape (1,). Unused entries are 0.
    NaN equals no element. The time grows with the product of the numbers of rows and of distinct rows.
    """

    is_sorted: bool = True


def _infer_unique_rows_type(_: UniqueRowsAttrs, types: Types) -> Type:
    data = require_tensor_of_rank("unique_rows.rank", types[0], 2)
    numbers = TensorType(data.shape[:1], "int64")
    return TupleType((numbers, numbers, numbers, TensorType((1,), "int64")))


def _unique_rows_reference(a: UniqueRowsAttrs, data: Array) -> tuple[Array, ...]:
    rows = [tuple(row) for row in to_numpy_computable_dtype(data).tolist()]
    first: list[int] = []
    for k, row in enumerate(rows):
        if not any(rows[j] == row and all(v == v for v in row) for j in first):
            at = sum(rows[j] < row for j in first) if a.is_sorted else len(first)
            first.insert(at, k)
    inverse = [next((p for p, j in enumerate(first) if j == k or rows[j] == row), 0) for k, row in enumerate(rows)]
    counts = np.bincount(np.array(inverse, np.int64), minlength=len(rows))
    padded = np.zeros(len(rows), np.int64)
    padded[: len(first)] = first
    return padded, np.array(inverse, np.int64), counts.astype(np.int64), np.array([len(first)], np.int64)


def _compute_unique_rows(a: UniqueRowsAttrs, data: Tensor) -> tuple[Tensor, ...]:
    count, width = data.shape
    if count == 0:
        empty = te.compute((0,), lambda *_: const(0, "int64"), "rows")
        return empty, empty, empty, te.compute((1,), lambda _: const(0, "int64"), "number")

    def place(index: Scalar) -> Scalar:
        return larger(smaller(index, count - 1), 0)  # limited so that bounds can be proven

    def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        source = inputs[0]
        first, inverse, counts, number = outputs
        i, k, c, t, used, at, order = map(Var, ("i", "k", "c", "t", "used", "at", "order"))
        is_known = Var("known", BOOL)

        def compare(row: Scalar) -> list[Stmt]:
            """Set `order` to -1, 0 or 1 where a listed row is less than, equal to or greater than `row`."""
            listed = Load(source, place(Load(first, place(k))) * width + c)
            own = Load(source, row * width + c)
            unequal = If(
                listed < own, Assign(order, const(-1)), If(listed.equal(own), Block(()), Assign(order, const(1)))
            )
            return [Declare(order, const(0)), For(c, width, If(order.equal(0), unequal))]

        known = If(order.equal(0), Block((Assign(is_known, const(True, BOOL)), Assign(at, k))))
        after = [If(order < 0, Assign(at, k + 1))] if a.is_sorted else []
        search = For(k, used, Block((*compare(i), *after, known)))
        moved = [Store(b, place(used - t), Load(b, place(used - t - 1))) for b in (first, counts)]
        insert = Block((
            For(t, larger(used - at, 0), Block(tuple(moved))),
            Store(first, place(at), i),
            Store(counts, place(at), const(1, "int64")),
            Assign(used, used + 1),
        ))  # fmt: skip
        again = Store(counts, place(at), Load(counts, place(at)) + const(1, "int64"))
        start = const(0) if a.is_sorted else used
        begin = (Declare(is_known, const(False, BOOL)), Declare(at, start))
        collect = For(i, count, Block((*begin, search, If(is_known, again, insert))))
        clear = For(i, count, Block(tuple(Store(b, i, const(0, "int64")) for b in outputs[:3])))
        is_own = Load(first, place(k)).equal(i) | order.equal(0)
        name = For(i, count, For(k, used, Block((*compare(i), If(is_own, Store(inverse, i, k))))))
        return Block((Declare(used, const(0)), clear, collect, name, Store(number, const(0), used)))

    shapes = [((count,), "int64")] * 3 + [((1,), "int64")]
    return te.extern("unique_rows", shapes, [data], build, takes_sizes=True)


def _unique_rows_samples() -> Samples:
    for k, (shape, dtype) in enumerate((((9, 2), "float32"), ((7, 1), "int8"), ((5, 3), "uint8"), ((4, 0), "int32"))):
        few = (random_array(shape, "int8", k) % 2).astype(dtype)
        yield exact_sample(UniqueRowsAttrs(is_sorted=k % 2 == 0), few)
        yield exact_sample(UniqueRowsAttrs(is_sorted=k % 2 == 1), few)
    yield exact_sample(UniqueRowsAttrs(is_sorted=False), np.array([[1, np.nan], [0, 1], [1, np.nan]], np.float32))


unique_rows = OpDef(
    name="unique_rows",
    attrs=UniqueRowsAttrs,
    infer=_infer_unique_rows_type,
    reference=_unique_rows_reference,
    compute=_compute_unique_rows,
    samples=_unique_rows_samples,
)
