# SPDX-License-Identifier: Apache-2.0
"""Operators that read elements at positions given by an index tensor: take, gather, gather_nd,
one_hot.

take(x, indices, axis=0)               # x[indices[...]]: embeddings
gather(x, 1, indices)                  # x[i, indices[i, j]]

Indices never read out of bounds. `take` clips or wraps them; `gather` and `gather_nd` count
negative indices from the end and then clip; in `one_hot`, an invalid index matches no position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, TypeVar

import numpy as np

from aotc.ir import (
    Arg,
    AxisMap,
    Dim,
    DType,
    OpPattern,
    PrecisionTreatment,
    QuantizationTreatment,
    TensorType,
    Type,
    Types,
    assume_at_least,
    declare_arguments,
    maximum_of_dims,
    require,
)
from aotc.ir.attrs import REQUIRED, Attrs, attribute_field
from aotc.ir.dimensions import product_of_dims as elements
from aotc.relay.op.opdef import Array, Index, OpDef, Samples, Scalar, reference_from_element_function
from aotc.relay.op.operator_definition import (
    ANY_DTYPE_KIND,
    choose,
    exact_sample,
    greater,
    lesser,
    may_be_equal_dims,
    number_to_constant_converter,
    random_array,
    replace_item,
    same,
)
from aotc.relay.op.type_rules import (
    normalize_axis,
    require_known_name,
    require_same_dtype,
    require_scalar_tensor_type,
    require_tensor_type,
)
from aotc.tir import INDEX, Tensor, te

D = TypeVar("D")


def require_integer_tensor(ty: Type, operand_name: str = "indices") -> TensorType:
    """Return `ty` as an integer tensor type; raise AotcError (code "indices") for other types."""
    indices = require_tensor_type(ty, operand_name)
    require("indices", indices.dtype.is_integer, lambda: f"{operand_name} must be integers, got {indices}")
    return indices


def convert_index_to_int64(value: Any) -> Any:
    """Return integers (expression or array) as int64; uint64 values above the int64 range become
    its maximum.
    """
    return (lesser(value, INDEX.max) if value.dtype == "uint64" else value).astype("int64")


def clip_index(index: Any, extent: int) -> Any:
    """Return indices clipped to 0 .. extent - 1."""
    return lesser(greater(convert_index_to_int64(index), 0), maximum_of_dims((extent, 1)) - 1)


def normalize_negative_index(index: Any, extent: int) -> Any:
    """Return indices as int64, with negative ones counted from the end of the axis."""
    at = convert_index_to_int64(index)
    return choose(at < 0, at + extent, at)


def normalize_and_clip_index(index: Any, extent: int) -> Any:
    """Return indices with negative ones counted from the end, clipped to the range of the axis."""
    return clip_index(normalize_negative_index(index, extent), extent)


# --- take


class TakeAttrs(Attrs):
    """Slices of `data` along `axis` selected by indices; an axis of None flattens the data.

    mode  "clip" clips indices to the range of the axis (negative ones to 0), "wrap" takes them modulo the extent
    """

    batch_dims: int = 0
    axis: int | None = None
    mode: str = "clip"


def _take_axis_and_batch_dims(a: TakeAttrs, data_rank: int, indices_rank: int) -> tuple[int, int]:
    """Return the axis along which elements are taken, and the number of batch axes."""
    batch = normalize_axis(a.batch_dims, indices_rank + 1) if a.batch_dims < 0 else a.batch_dims
    axis = normalize_axis(a.axis or 0, data_rank)
    fits = 0 <= batch <= min(axis, indices_rank) and (a.axis is not None or batch == 0)
    require("take.batch_dims", fits, f"batch_dims {a.batch_dims} is not compatible with axis {a.axis}")
    return axis, batch


def _take_result_dims(data_dims: Sequence[D], indices_dims: Sequence[D], axis: int, batch_dims: int) -> tuple[D, ...]:
    """Return the shape of the result of `take`."""
    return (*data_dims[:axis], *indices_dims[batch_dims:], *data_dims[axis + 1 :])


def _infer_take_type(a: TakeAttrs, types: Types) -> Type:
    data, indices = require_tensor_type(types[0], "data"), require_integer_tensor(types[1])
    data = data if a.axis is not None else TensorType((elements(data.shape),), data.dtype)
    require_known_name("take.mode", "mode", a.mode, ("clip", "wrap", "fast"))
    axis, batch = _take_axis_and_batch_dims(a, data.rank, indices.rank)
    _check_batch_dims_equal("take", batch, data, indices, indices.shape)
    shape = _take_result_dims(data.shape, indices.shape, axis, batch)
    require("take.empty", data.shape[axis] != 0 or 0 in shape, "cannot take elements from an empty axis")
    if 0 not in shape:
        assume_at_least(data.shape[axis], 1)
    return TensorType(shape, data.dtype)


def _check_batch_dims_equal(
    op_name: str, batch_dims: int, data: TensorType, indices: TensorType, indices_batch_shape: Sequence[Dim]
) -> None:
    same = all(map(may_be_equal_dims, data.shape[:batch_dims], indices_batch_shape[:batch_dims]))
    require(f"{op_name}.batch", same, lambda: f"the batch axes of {data} and {indices} differ")


def _take_axis_map(a: TakeAttrs, types: Types) -> AxisMap:
    data, indices = require_tensor_type(types[0]), require_tensor_type(types[1])
    if a.axis is None:
        return AxisMap(((None,) * indices.rank, tuple(range(indices.rank))))
    axis, batch = _take_axis_and_batch_dims(a, data.rank, indices.rank)
    from_data = _take_result_dims(range(data.rank), (None,) * indices.rank, axis, batch)
    shared = [k if k < batch else None for k in range(data.rank)]
    return AxisMap((from_data, _take_result_dims(shared, range(indices.rank), axis, batch)))


def _clip_or_wrap_index(a: TakeAttrs, index: Any, extent: int) -> Any:
    """Return the positions along the axis that the indices select, clipped or wrapped."""
    if a.mode != "wrap":
        return clip_index(index, extent)
    wide = index if index.dtype == "uint64" else index.astype("int64")
    return (wide % maximum_of_dims((extent, 1))).astype("int64")


def _take_reference(a: TakeAttrs, data: Array, indices: Array) -> Array:
    data = data if a.axis is not None else data.reshape(-1)
    axis, batch = _take_axis_and_batch_dims(a, data.ndim, indices.ndim)
    extent = data.shape[axis]
    at = _clip_or_wrap_index(a, indices, extent)
    result = np.zeros(_take_result_dims(data.shape, indices.shape, axis, batch), data.dtype)
    for row in np.ndindex(*data.shape[:batch]) if extent else ():
        result[row] = data[row].take(at[row], axis - batch)
    return result


def _take_element(a: TakeAttrs, i: Index, data: Tensor, indices: Tensor) -> Scalar:
    data = data if a.axis is not None else te.view(data, (data.live_size,))
    axis, batch = _take_axis_and_batch_dims(a, data.rank, indices.rank)
    extent, next_axis = data.shape[axis], axis + indices.rank - batch
    place = (*i[:batch], *i[axis:next_axis])
    where = (*i[:axis], _clip_or_wrap_index(a, indices[place], extent), *i[next_axis:])
    return data[where]


def _take_attrs_after_permutation(a: TakeAttrs, types: Types, new_axis_of: Callable[[int], int]) -> Attrs | None:
    """Return the attributes after a permutation of the axes; None with batch axes, and unchanged
    for flat data.
    """
    return (
        None
        if a.axis is None or a.batch_dims
        else a.replace(axis=new_axis_of(a.axis % require_tensor_type(types[0]).rank))
    )


def random_indices_some_out_of_range(shape: Sequence[int], extent: int, dtype: str = "int64", seed: int = 7) -> Array:
    """Return random indices, some of which are negative or too large for `extent`."""
    rng = np.random.default_rng(seed)
    low = -extent - 1 if DType(dtype).is_signed else 0
    return rng.integers(low, extent + 2, tuple(shape)).astype(DType(dtype).numpy)


def _out_of_range_index_samples(attrs_class: type[Attrs], field: str, rows: Any) -> Callable[[], Samples]:
    """Return a function that yields samples with out-of-range int32 and int64 indices.

    rows  (data shape, index shape, value of the attribute `field`)
    """

    def yield_out_of_range_samples() -> Samples:
        for (shape, places, value), dtype in product(rows, ("int64", "int32")):
            yield exact_sample(
                attrs_class(**{field: value}), random_array(shape), random_indices_some_out_of_range(places, 5, dtype)
            )

    return yield_out_of_range_samples


def _take_test_samples() -> Samples:
    cases: Any = (
        ((5, 3), (2, 2), 0, 0), ((2, 5, 3), (4,), 1, 0), ((2, 5, 3), (), -1, 0), ((2, 5), (3,), None, 0),
        ((2, 5, 3), (2, 4), 1, 1), ((2, 3, 5), (2, 3, 2), 2, 2), ((5,), (0,), 0, 0), ((0, 3), (2,), 1, 0),
    )  # fmt: skip
    modes = (("clip", "int64"), ("wrap", "int32"), ("clip", "uint8"))
    for (shape, places, axis, batch), (mode, dtype) in product(cases, modes):
        attributes = TakeAttrs(batch_dims=batch, axis=axis, mode=mode)
        yield exact_sample(attributes, random_array(shape), random_indices_some_out_of_range(places, 5, dtype))
    for dtype in ANY_DTYPE_KIND.examples:
        yield exact_sample(TakeAttrs(axis=0), random_array((4, 2), dtype), random_indices_some_out_of_range((3,), 4))


take = OpDef(
    name="take",
    attrs=TakeAttrs,
    order="data indices axis batch_dims mode",
    args=declare_arguments("data", "indices"),
    infer=_infer_take_type,
    reference=_take_reference,
    pattern=OpPattern.INJECTIVE,
    axes=_take_axis_map,
    moved=_take_attrs_after_permutation,
    element=_take_element,
    quantized=QuantizationTreatment.PASS,
    samples=_take_test_samples,
)


# --- gather


class GatherAttrs(Attrs):
    """out[i, j, ...] = data[i, indices[i, j, ...], ...]: the index replaces the position along
    `axis`.
    """

    axis: int


def may_be_at_most(small: Dim, large: Dim) -> bool:
    """Return False if two dimensions are static and the first is greater than the second, else
    True.
    """
    return not (isinstance(small, int) and isinstance(large, int)) or small <= large


def check_indices_fit_except_along(axis: int, data: TensorType, indices: TensorType, op_name: str) -> None:
    """Raise AotcError unless indices have the data's rank and, except along `axis`, no larger
    extents.
    """
    require(f"{op_name}.rank", data.rank == indices.rank, lambda: f"ranks of {data} and {indices} differ")
    pairs = list(zip(indices.shape, data.shape, strict=True))
    fits = all(k == axis or may_be_at_most(i, d) for k, (i, d) in enumerate(pairs))
    for k, (i, d) in enumerate(pairs):
        if k != axis:
            assume_at_least(d - i, 0)
    require(f"{op_name}.shape", fits, lambda: f"indices {indices} reach beyond {data}")


def _infer_gather_type(a: GatherAttrs, types: Types) -> Type:
    data, indices = require_tensor_type(types[0], "data"), require_integer_tensor(types[1])
    axis = normalize_axis(a.axis, data.rank)
    check_indices_fit_except_along(axis, data, indices, "gather")
    require("gather.empty", data.shape[axis] != 0 or 0 in indices.shape, "cannot gather from an empty axis")
    if 0 not in indices.shape:
        assume_at_least(data.shape[axis], 1)
    return TensorType(indices.shape, data.dtype)


def _gather_axis_map(a: GatherAttrs, types: Types) -> AxisMap:
    data, indices = map(require_tensor_type, types)
    axis = normalize_axis(a.axis, data.rank)
    same = [k != axis and data.shape[k] == indices.shape[k] for k in range(data.rank)]
    from_data = tuple(k if same[k] else None for k in range(data.rank))
    return AxisMap((from_data, tuple(k if same[k] or k == axis else None for k in range(data.rank))))


def _gather_element(a: GatherAttrs, i: Index, data: Any, indices: Any) -> Any:
    axis = normalize_axis(a.axis, len(data.shape))
    return data[replace_item(i, axis, normalize_and_clip_index(indices[i], data.shape[axis]))]


gather = OpDef(
    name="gather",
    attrs=GatherAttrs,
    order="data axis indices",
    args=declare_arguments("data", "indices"),
    infer=_infer_gather_type,
    reference=reference_from_element_function(_infer_gather_type, _gather_element),
    pattern=OpPattern.INJECTIVE,
    axes=_gather_axis_map,
    element=_gather_element,
    quantized=QuantizationTreatment.PASS,
    samples=_out_of_range_index_samples(GatherAttrs, "axis", (
        ((3, 5), (3, 2), 1), ((3, 5), (2, 5), 0), ((2, 3, 5), (2, 2, 7), -1), ((5,), (9,), 0), ((0, 5), (0, 2), 1),
    )),
)  # fmt: skip


# --- gather_nd


class GatherNDAttrs(Attrs):
    """Slices of `data` selected by index tuples, whose elements lie along the *first* axis of
    `indices`.

    out[y..., x...] = data[y[:batch_dims]..., indices[0, y...], indices[1, y...], ..., x...]
    """

    batch_dims: int = 0
    index_rank: int | None = None


def checked_index_tuple_length(op_name: str, data: TensorType, indices: TensorType, batch_dims: int = 0) -> int:
    """Return the number of data axes after the batch axes that an index tuple covers; raise
    AotcError if invalid.
    """
    require(f"{op_name}.rank", indices.rank >= 1, "indices need a leading axis of index tuples")
    depth = indices.shape[0]
    require(f"{op_name}.depth", isinstance(depth, int), "the length of the index tuples must be known")
    assert isinstance(depth, int)
    fits = 0 <= batch_dims < indices.rank and batch_dims + depth <= data.rank
    require(f"{op_name}.depth", fits, lambda: f"index tuples of {depth} after {batch_dims} axes do not fit {data}")
    return depth


def _infer_gather_nd_type(a: GatherNDAttrs, types: Types) -> Type:
    data, indices = require_tensor_type(types[0], "data"), require_integer_tensor(types[1])
    batch, grid = a.batch_dims, indices.shape[1:]
    depth = checked_index_tuple_length("gather_nd", data, indices, batch)
    _check_batch_dims_equal("gather_nd", batch, data, indices, grid)
    shape = (*grid, *data.shape[batch + depth :])
    readable = 0 not in data.shape[batch : batch + depth] or 0 in shape
    require("gather_nd.empty", readable, "cannot gather from an empty axis")
    for extent in data.shape[batch : batch + depth] if 0 not in shape else ():
        assume_at_least(extent, 1)
    return TensorType(shape, data.dtype)


def _gather_nd_axis_map(a: GatherNDAttrs, types: Types) -> AxisMap:
    data, indices = require_tensor_type(types[0]), require_tensor_type(types[1])
    batch, grid = a.batch_dims, indices.rank - 1
    depth = checked_index_tuple_length("gather_nd", data, indices, batch)
    from_data = (*range(batch), *(None,) * (grid - batch), *range(batch + depth, data.rank))
    return AxisMap((from_data, (*range(1, grid + 1), *(None,) * (data.rank - batch - depth))))


def _gather_nd_element(a: GatherNDAttrs, i: Index, data: Any, indices: Any) -> Any:
    batch, grid = a.batch_dims, len(indices.shape) - 1
    places = [(m, *i[:grid]) for m in range(indices.shape[0])]
    at = [normalize_and_clip_index(indices[p], data.shape[batch + m]) for m, p in enumerate(places)]
    where = (*i[:batch], *at, *i[grid:])
    return data[where]


gather_nd = OpDef(
    name="gather_nd",
    attrs=GatherNDAttrs,
    args=declare_arguments("data", "indices"),
    infer=_infer_gather_nd_type,
    reference=reference_from_element_function(_infer_gather_nd_type, _gather_nd_element),
    pattern=OpPattern.INJECTIVE,
    axes=_gather_nd_axis_map,
    element=_gather_nd_element,
    quantized=QuantizationTreatment.PASS,
    samples=_out_of_range_index_samples(GatherNDAttrs, "batch_dims", (
        ((5, 5), (2, 3), 0), ((5, 5, 2), (1, 2, 2), 0), ((3, 5, 2), (1, 3, 4), 1), ((3, 2, 5), (1, 3, 2), 2),
        ((5,), (1, 0), 0), ((2, 3), (0, 2), 0), ((5, 5), (2,), 0),
    )),
)  # fmt: skip


# --- one_hot


class OneHotAttrs(Attrs):
    """One-hot encoding: `on_value` where the position along a new axis of extent `depth` equals the
    index.

    Other elements are `off_value`; an index outside 0 .. depth - 1 matches no position.
    """

    depth: int = attribute_field(default=1, parameter_default=REQUIRED)
    axis: int = -1
    dtype: str = ""


def _infer_one_hot_type(a: OneHotAttrs, types: Types) -> Type:
    indices = require_integer_tensor(types[0])
    on = require_scalar_tensor_type("one_hot.values", types[1], "on value")
    off = require_scalar_tensor_type("one_hot.values", types[2], "off value")
    require_same_dtype(on, off)
    require("one_hot.depth", a.depth >= 0, f"depth must not be negative, got {a.depth}")
    axis = normalize_axis(a.axis, indices.rank + 1)
    return TensorType((*indices.shape[:axis], a.depth, *indices.shape[axis:]), a.dtype or on.dtype)


def _one_hot_axis_map(a: OneHotAttrs, types: Types) -> AxisMap:
    rank = require_tensor_type(types[0]).rank
    axis = normalize_axis(a.axis, rank + 1)
    return AxisMap(((*range(axis), None, *range(axis, rank)),))


def _one_hot_element(a: OneHotAttrs, i: Index, indices: Any, on: Any, off: Any) -> Any:
    axis = normalize_axis(a.axis, len(i))
    place = (*i[:axis], *i[axis + 1 :])
    chosen = same(convert_index_to_int64(indices[place]), i[axis])
    return choose(chosen, on[()], off[()]).astype(a.dtype or on.dtype)


def _one_hot_test_samples() -> Samples:
    cases = (((3,), -1, "float32"), ((2, 3), 0, "int32"), ((2, 3), 1, ""), ((), 0, "float32"), ((0, 2), -1, "bool"))
    for shape, axis, dtype in cases:
        values = (np.array(1, np.float32), np.array(0, np.float32))
        yield exact_sample(
            OneHotAttrs(depth=4, axis=axis, dtype=dtype), random_indices_some_out_of_range(shape, 4), *values
        )


_ONE_HOT_VALUE_CONVERTER = number_to_constant_converter(lambda given: given["dtype"] or "float32")

one_hot = OpDef(
    name="one_hot",
    attrs=OneHotAttrs,
    args=declare_arguments(
        "indices", *(Arg(name, "Expr | float", takes=_ONE_HOT_VALUE_CONVERTER) for name in ("on_value", "off_value"))
    ),
    infer=_infer_one_hot_type,
    reference=reference_from_element_function(_infer_one_hot_type, _one_hot_element),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    axes=_one_hot_axis_map,
    element=_one_hot_element,
    precision=PrecisionTreatment.FOLLOW,
    samples=_one_hot_test_samples,
)
