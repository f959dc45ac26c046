# SPDX-License-Identifier: Apache-2.0
"""Operators whose results have a number of rows that depends on the values of operands, and checks of values.

positions, count = nonzero_positions(x)            # one row of indices for each element that is not 0, and room
leading_rows(positions, count, rows=SymDim("n", 24))    # the rows that were found; from here on their number is n
after(x, y)                                        # x, computed after y: shapes may depend on a size found for y
require_range(x, n, least=0, most=3, requirement="a position is 0 to 3")    # x; other values of n end the run
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aotc.ir import Attrs, SymDim, TensorType, TupleType, Type, Types, declare_arguments, product_of_dims, require
from aotc.ir.op import AxisMap, LayoutTreatment
from aotc.relay.op.opdef import Array, Index, OpDef, Samples, Scalar
from aotc.relay.op.operator_definition import exact_sample, random_array, require_tensor_type
from aotc.tir import (
    Assign,
    Block,
    Buffer,
    Declare,
    For,
    If,
    Load,
    Stmt,
    Store,
    Tensor,
    Var,
    const,
    maximum,
    minimum,
    te,
)

#: Operators that schedules contain as what they check or define, and not as kernels: no other operator is fused with
#: them.
OPERATORS_WITHOUT_KERNEL: Final = frozenset({"after", "leading_rows", "require_range"})


class NonzeroPositionsAttrs(Attrs):
    """The indices of all elements that are not 0, in row-major order, and their number.

    The result is a tuple: the indices, one row for each element of the data, of which the first ones are used and
    the others are 0; and the number of rows that are used, of shape (1,). NaN is not 0.
    """


def _infer_nonzero_positions_type(_: NonzeroPositionsAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    require("nonzero_positions.rank", data.rank >= 1, "a scalar has no indices")
    return TupleType((TensorType((product_of_dims(data.shape), data.rank), "int64"), TensorType((1,), "int64")))


def _nonzero_positions_reference(_: NonzeroPositionsAttrs, data: Array) -> tuple[Array, Array]:
    found = np.argwhere(data)
    rows = np.zeros((data.size, data.ndim), np.int64)
    rows[: len(found)] = found
    return rows, np.array([len(found)], np.int64)


def _compute_nonzero_positions(_: NonzeroPositionsAttrs, data: Tensor) -> tuple[Tensor, ...]:
    shape, rank, room = data.shape, len(data.shape), data.live_size

    def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        rows, number = outputs
        count, clear = Var("count"), Var("clear")
        indices = tuple(Var(f"i{axis}") for axis in range(rank))
        place = maximum(minimum(count, room - 1), 0) * rank  # limited so that bounds can be proven
        stores = [Store(rows, place + axis, index) for axis, index in enumerate(indices)]
        element: Scalar = Load(inputs[0], te.flat_index(shape, indices))
        is_found = element if data.dtype.is_bool else element.not_equal(const(0, data.dtype))
        body: Stmt = If(is_found, Block((*stores, Assign(count, count + 1))))
        for index, extent in reversed(list(zip(indices, shape, strict=True))):
            body = For(index, extent, body)
        end = product_of_dims((room, rank))
        rest = For(clear, end, Store(rows, clear, const(0, "int64")), begin=maximum(count, 0) * rank)
        return Block((Declare(count, const(0)), body, rest, Store(number, const(0), count)))

    if isinstance(room, int) and not room:
        empty = te.compute((0, rank), lambda *_: const(0, "int64"), "positions")
        return empty, te.compute((1,), lambda _: const(0, "int64"), "count")
    outputs = [((product_of_dims(shape), rank), "int64"), ((1,), "int64")]
    return te.extern("nonzero", outputs, [data], build, takes_sizes=True)


def _nonzero_positions_samples() -> Samples:
    for shape, dtype in (((3, 4), "float32"), ((7,), "bool"), ((2, 3, 2), "int8"), ((0, 2), "float32")):
        data = random_array(shape, dtype)
        data = np.where(random_array(shape, "bool", 7), data, np.zeros((), data.dtype)).astype(data.dtype)
        yield exact_sample(NonzeroPositionsAttrs(), data)
    yield exact_sample(NonzeroPositionsAttrs(), np.array([0, np.nan, -0.0, np.inf, 1], np.float32))


nonzero_positions = OpDef(
    name="nonzero_positions",
    attrs=NonzeroPositionsAttrs,
    infer=_infer_nonzero_positions_type,
    reference=_nonzero_positions_reference,
    compute=_compute_nonzero_positions,
    samples=_nonzero_positions_samples,
)


class LeadingRowsAttrs(Attrs):
    """The first rows of `data`, as many as the one element of `count` says.

    `rows` is this number: a size that is known at run time only, from this call on. Each size is the `rows` of
    one `count`.
    """

    rows: int | SymDim


def _infer_leading_rows_type(a: LeadingRowsAttrs, types: Types) -> Type:
    data, count = map(require_tensor_type, types)
    require("leading_rows.rows", data.rank >= 1, "a scalar has no rows")
    fits = count.is_static and count.numel == 1 and count.dtype.is_integer
    require("leading_rows.count", fits, f"{count} is not one integer")
    whole = data.shape[0]
    fits = isinstance(a.rows, SymDim) or (a.rows >= 0 and (isinstance(whole, SymDim) or a.rows <= whole))
    require("leading_rows.rows", fits, f"{data} has no {a.rows} rows")
    return TensorType((a.rows, *data.shape[1:]), data.dtype)


def _leading_rows_reference(_: LeadingRowsAttrs, data: Array, count: Array) -> Array:
    return data[: int(count.reshape(-1)[0])]


def _leading_rows_element(_: LeadingRowsAttrs, i: Index, data: Tensor, count: Tensor) -> Scalar:
    return data[i]


def _leading_rows_samples() -> Samples:
    for shape, rows in (((5, 2), 3), ((4,), 0), ((4,), 4), ((3, 0), 2)):
        yield exact_sample(LeadingRowsAttrs(rows=rows), random_array(shape), np.array([rows], np.int64))


leading_rows = OpDef(
    name="leading_rows",
    attrs=LeadingRowsAttrs,
    args=declare_arguments("data", "count"),
    infer=_infer_leading_rows_type,
    reference=_leading_rows_reference,
    axes=lambda _, types: AxisMap(((None, *range(1, require_tensor_type(types[0]).rank)),)),
    layout=LayoutTreatment.BARRIER,
    element=_leading_rows_element,
    finds=("rows", 1),
    samples=_leading_rows_samples,
)


class AfterAttrs(Attrs):
    """`data`, unchanged, once `earlier` is computed: what depends on it may depend on sizes that are found then."""


def _after_samples() -> Samples:
    yield exact_sample(AfterAttrs(), random_array((3, 2)), random_array((2,), "int32"))


after = OpDef(
    name="after",
    attrs=AfterAttrs,
    args=declare_arguments("data", "earlier"),
    infer=lambda _, types: next(map(require_tensor_type, types)),
    reference=lambda _, data, earlier: data,
    axes=lambda _, types: AxisMap((tuple(range(require_tensor_type(types[0]).rank)),)),
    layout=LayoutTreatment.BARRIER,
    element=lambda _, i, data, earlier: data[i],
    samples=_after_samples,
)


class RequireRangeAttrs(Attrs):
    """`data`, unchanged, in a run in which the one element of `value`, an integer or bool, is from `least` to `most`.

    Any other run ends with a status, whose text is `requirement`: what the value must be.
    """

    least: int
    most: int
    requirement: str


def _infer_require_range_type(a: RequireRangeAttrs, types: Types) -> Type:
    data, value = map(require_tensor_type, types)
    fits = value.is_static and value.numel == 1 and value.dtype in ("bool", "int32", "int64")
    require("require_range.value", fits, f"{value} is not one bool, int32 or int64")
    require("require_range.range", a.least <= a.most, f"no value is from {a.least} to {a.most}")
    return data


def _require_range_reference(a: RequireRangeAttrs, data: Array, value: Array) -> Array:
    number = int(value.reshape(-1)[0])
    found = "this is not so" if value.dtype == np.bool_ else f"the value is {number}"
    require("require_range.violated", a.least <= number <= a.most, f"{a.requirement}: {found}")
    return data


def _require_range_samples() -> Samples:
    for value, least, most in ((np.array([3], np.int64), -1, 3), (np.array(True), 1, 1), (np.array(0, np.int32), 0, 2)):
        attributes = RequireRangeAttrs(least=least, most=most, requirement="the value is in its range")
        yield exact_sample(attributes, random_array((3, 2)), value)


require_range = OpDef(
    name="require_range",
    attrs=RequireRangeAttrs,
    args=declare_arguments("data", "value"),
    infer=_infer_require_range_type,
    reference=_require_range_reference,
    axes=lambda _, types: AxisMap((tuple(range(require_tensor_type(types[0]).rank)),)),
    layout=LayoutTreatment.BARRIER,
    element=lambda _, i, data, value: data[i],
    samples=_require_range_samples,
)
