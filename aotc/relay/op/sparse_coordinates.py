# SPDX-License-Identifier: Apache-2.0
"""Operators on sparse tensors in coordinate format: indices and values.

sparse_to_dense(indices, (3, 4), values)           # indices (N, 2), values (N)
sparse_reshape(indices, shape, new_shape)          # the coordinates in a tensor of another shape
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from aotc.ir import NO_ATTRS, Attrs, Shape, SymDim, TensorType, TupleType, Type, attribute_field
from aotc.ir.op import Arg, AxisMap, OpPattern, Types, declare_arguments, require
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.op import gather, scatter, shape, tensor_creation
from aotc.relay.op.advanced_indexing import coordinate_of_flat_position
from aotc.relay.op.opdef import Array, OpDef, Samples, reference_from_element_function
from aotc.relay.op.operator_definition import (
    choose,
    exact_sample,
    greater,
    may_be_equal_dims,
    number_converter_with_dtype_of,
    random_array,
)
from aotc.relay.op.type_rules import (
    require_same_dtype,
    require_scalar_tensor_type,
    require_tensor_of_rank,
    require_tensor_type,
    static_shape_of,
)
from aotc.tir import Tensor, te

# --- sparse_to_dense


class SparseToDenseAttrs(Attrs):
    """A tensor of `output_shape` with `sparse_values` at `sparse_indices` and `default_value` (0)
    elsewhere.

    Indices are (N, rank), or (N,) or a scalar for a vector; values are (N,), or one for all. The
    last of several values at one position wins; indices out of bounds are ignored.
    """

    output_shape: tuple[int, ...] = attribute_field(type="int | Sequence[int]")


def _infer_sparse_to_dense_type(a: SparseToDenseAttrs, types: Types) -> Type:
    indices = gather.require_integer_tensor(types[0], "sparse_indices")
    values = require_tensor_type(types[1], "sparse_values")
    require_same_dtype(values, require_scalar_tensor_type("sparse.default", types[2], "default value"))
    wide = indices.shape[1] if indices.rank == 2 else 1
    axes = may_be_equal_dims(wide, len(a.output_shape))
    extents = min(a.output_shape, default=0) >= 0
    fits = indices.rank <= 2 and axes and extents
    require("sparse.indices", fits, lambda: f"sparse_indices {indices} do not fit the shape {a.output_shape}")
    count = indices.shape[0] if indices.rank else 1
    each = values.rank == 0 or (values.rank == 1 and may_be_equal_dims(values.shape[0], count))
    require("sparse.values", each, lambda: f"{values} has no value for each of {indices}")
    return TensorType(a.output_shape, values.dtype)


def _index_count_and_rank(indices_shape: Sequence[int], rank: int) -> tuple[int, int]:
    return indices_shape[0] if indices_shape else 1, rank


def _sparse_to_dense_reference(a: SparseToDenseAttrs, indices: Array, values: Array, default: Array) -> Array:
    count, rank = _index_count_and_rank(indices.shape, len(a.output_shape))
    places = gather.convert_index_to_int64(indices).reshape(count, rank).T
    base = np.full(a.output_shape, default, values.dtype)
    plain = scatter.ScatterNDAttrs()
    each = np.broadcast_to(values, (count,))
    dense = scatter.scatter_nd.reference(plain, base, places, each)
    return np.asarray(dense)


def _expand_sparse_to_dense(a: SparseToDenseAttrs, indices: Expr, values: Expr, default: Expr) -> Expr:
    count, rank = _index_count_and_rank(static_shape_of(indices), len(a.output_shape))
    places = shape.transpose(shape.reshape(indices, (count, rank), allowzero=count == 0), (1, 0))
    base = tensor_creation.full(default, a.output_shape, dtype=str(tensor_type_of(values).dtype))
    return scatter.scatter_nd(base, places, shape.broadcast_to(values, (count,)), mode="update")


_SPARSE_VALUE_CONVERTER = number_converter_with_dtype_of("sparse_values")


def _default_value_or_zero(value: Any, arguments: Mapping[str, Any]) -> Any:
    return _SPARSE_VALUE_CONVERTER(0 if value is None else value, arguments)


def _sparse_to_dense_test_samples() -> Samples:
    for places, to, values, dtype in (
        (2, (5,), (), "float32"),
        ((0, 4, 1), (5,), (3,), "int32"),
        ((3, 3), (4,), (2,), "float32"),
        (((0, 1), (2, 3)), (3, 4), (2,), "int8"),
        (((0, 1), (9, 0), (2, 2)), (3, 4), (), "float16"),
    ):  # fmt: skip
        default = random_array((), dtype, 3)
        yield exact_sample(
            SparseToDenseAttrs(output_shape=to), np.array(places, np.int64), random_array(values, dtype), default
        )


sparse_to_dense = OpDef(
    name="sparse_to_dense",
    attrs=SparseToDenseAttrs,
    args=declare_arguments(
        "sparse_indices", "sparse_values", Arg("default_value", "Expr | float | None", None, _default_value_or_zero)
    ),
    order="sparse_indices output_shape sparse_values default_value",
    infer=_infer_sparse_to_dense_type,
    reference=_sparse_to_dense_reference,
    axes=lambda a, _: AxisMap(((None,) * len(a.output_shape),)),
    expand=_expand_sparse_to_dense,
    samples=_sparse_to_dense_test_samples,
)


# --- sparse_reshape


def _infer_sparse_reshape_type(_: Any, types: Types) -> TupleType:
    indices = require_tensor_of_rank(
        "sparse.indices", gather.require_integer_tensor(types[0], "sparse_indices"), 2, "sparse_indices"
    )
    given = (gather.require_integer_tensor(t, "shape") for t in types[1:])
    old, new = (require_tensor_of_rank("sparse.shape", t, 1, "a shape") for t in given)
    require_same_dtype(indices, old)
    require_same_dtype(indices, new)
    same = may_be_equal_dims(indices.shape[1], old.shape[0])
    fits = same and 0 not in (*old.shape, *new.shape)
    require("sparse.shape", fits, lambda: f"the shapes {old} and {new} do not fit {indices}")
    return TupleType((TensorType((indices.shape[0], new.shape[0]), indices.dtype), new))


def _resolve_unknown_extent(old_shape: Any, new_shape: Any) -> list[Any]:
    """Return the extents of the new shape; an extent of -1 is inferred from the old shape's number
    of elements.
    """
    extents = [gather.convert_index_to_int64(new_shape[(k,)]) for k in range(new_shape.shape[0])]
    unit = extents[0] * 0 + 1  # valid for an old shape without axes, too
    elements = prod((gather.convert_index_to_int64(old_shape[(k,)]) for k in range(old_shape.shape[0])), start=unit)
    left = elements // greater(prod(extents) * -1, 1)
    return [choose(n < 0, left, n) for n in extents]


def _resolved_shape_element(_: Any, i: Any, _indices: Any, old_shape: Any, new_shape: Any) -> Any:
    return _select_value_at_index(_resolve_unknown_extent(old_shape, new_shape), i[0]).astype(new_shape.dtype)


def _select_value_at_index(values: Sequence[Any], index: Any) -> Any:
    selection = values[0]
    for n, value in enumerate(values[1:], 1):
        selection = choose(index >= n, value, selection)
    return selection


def _sparse_reshape_index_element(_: Any, i: Any, indices: Any, old_shape: Any, new_shape: Any) -> Any:
    extents = _resolve_unknown_extent(old_shape, new_shape)
    at = extents[0] * 0  # an old shape may have no axes
    for k in range(old_shape.shape[0]):
        at = at * gather.convert_index_to_int64(old_shape[(k,)]) + gather.convert_index_to_int64(indices[(i[0], k)])
    axes = range(len(extents))
    coordinate = _select_value_at_index([coordinate_of_flat_position(at, extents, k) for k in axes], i[1])
    return coordinate.astype(indices.dtype)


def _sparse_reshape_reference(_: Any, *arguments: Array) -> tuple[Array, ...]:
    parts = ((lambda _, types: _infer_sparse_reshape_type(_, types).fields[0]), (lambda _, types: types[2]))
    pairs = zip(parts, (_sparse_reshape_index_element, _resolved_shape_element), strict=True)
    return tuple(reference_from_element_function(ty, f)(_, *arguments) for ty, f in pairs)


def _compute_sparse_reshape(_: Any, *arguments: Tensor) -> tuple[Tensor, Tensor]:
    rows, rank = (arguments[0].shape[0], arguments[2].shape[0])
    places = te.compute((rows, rank), lambda *i: _sparse_reshape_index_element(_, i, *arguments), "sparse_reshape")
    return places, te.compute((rank,), lambda *i: _resolved_shape_element(_, i, *arguments), "sparse_shape")


def _sparse_reshape_test_samples() -> Samples:
    for places, old, new, dtype in (
        (((0, 0, 0), (1, 2, 3)), (2, 3, 6), (9, -1), "int32"),
        (((0, 4), (7, 3)), (9, 4), (-1,), "int64"),
        (((5,), (24,)), (25,), (5, 5), "int32"),
        (np.zeros((0, 2)), (3, 6), (-1, 2), "int64"),
    ):  # fmt: skip
        yield exact_sample(NO_ATTRS, *(np.array(x, dtype) for x in (places, old, new)))


sparse_reshape = OpDef(
    name="sparse_reshape",
    doc="The coordinates (N, rank) of a tensor of `prev_shape` in one of `new_shape`, and that shape, -1 resolved.",
    args=declare_arguments("sparse_indices", "prev_shape", "new_shape"),
    infer=_infer_sparse_reshape_type,
    reference=_sparse_reshape_reference,
    pattern=OpPattern.INJECTIVE,
    compute=_compute_sparse_reshape,
    samples=_sparse_reshape_test_samples,
)


# --- sparse_fill_empty_rows


def _infer_sparse_fill_empty_rows_type(_: Any, types: Types) -> Type:
    indices = require_tensor_of_rank(
        "sparse.indices", gather.require_integer_tensor(types[0], "sparse_indices"), 2, "sparse_indices"
    )
    values = require_tensor_of_rank("sparse.values", types[1], 1, "sparse_values")
    default = require_tensor_type(types[3], "default_value")
    dense = gather.require_integer_tensor(types[2], "dense_shape")
    require_tensor_of_rank("sparse.shape", dense, 1, "dense_shape")
    require_same_dtype(values, default)
    rank = indices.shape[1]
    fits = may_be_equal_dims(rank, dense.shape[0])
    fits = fits and 0 not in (rank, *dense.shape)
    text = f"the shape {dense} does not fit {indices}"
    require("sparse.shape", fits, text)
    is_scalar = default.rank <= 1 and all(may_be_equal_dims(d, 1) for d in default.shape)
    require("sparse.default", is_scalar, f"{default} must be a scalar")
    require(
        "sparse.values",
        may_be_equal_dims(indices.shape[0], values.shape[0]),
        f"{values} must have one value for each of {indices}",
    )
    rows: Shape = (SymDim(), indices.shape[1])
    fields = ((rows, indices.dtype), (rows[:1], values.dtype), ((SymDim(),), "bool"))
    return TupleType(TensorType(*field) for field in fields)


def _sparse_fill_empty_rows_reference(
    _: Any, indices: Array, values: Array, dense_shape: Array, default: Array
) -> tuple[Array, ...]:
    empty = ~np.isin(np.arange(dense_shape[0]), indices[:, 0])
    added = np.zeros((empty.sum(), indices.shape[1]), indices.dtype)
    added[:, 0] = np.flatnonzero(empty)
    places = np.concatenate([indices, added])
    order = np.argsort(places[:, 0], kind="stable")
    filled = np.concatenate([values, np.broadcast_to(default, (len(added),))])
    return (places[order], filled[order], empty)


def _sparse_fill_empty_rows_test_samples() -> Samples:
    for places, extents in (
        (((0, 1), (0, 3), (2, 0)), (5, 6)),
        (np.zeros((0, 3)), (2, 3, 7)),
        (((1,), (2,)), (3,)),
    ):  # fmt: skip
        indices = np.array(places, np.int64)
        dense = np.array(extents, np.int64)
        values = random_array((len(indices),))
        yield exact_sample(NO_ATTRS, indices, values, dense, random_array((1,)))


sparse_fill_empty_rows = OpDef(
    name="sparse_fill_empty_rows",
    doc="""A sparse tensor of `dense_shape`, by rows, with `default_value` in column 0 of each row that has no value.

    Its indices, its values, and which rows had none.
    """,
    args=declare_arguments("sparse_indices", "sparse_values", "dense_shape", "default_value"),
    infer=_infer_sparse_fill_empty_rows_type,
    reference=_sparse_fill_empty_rows_reference,
    static=lambda *_: None,
    samples=_sparse_fill_empty_rows_test_samples,
)
