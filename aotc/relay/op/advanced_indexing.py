# SPDX-License-Identifier: Apache-2.0
"""adv_index (numpy's advanced indexing) and unravel_index (flat positions to coordinates).

adv_index((x, i, j))                   # x[i, j], as numpy indexes
unravel_index(i, (2, 3))               # row indices and column indices
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from aotc.ir import NO_ATTRS, Shape, TensorType, Type, require_static_shape
from aotc.ir.op import Arg, AxisMap, OpPattern, QuantizationTreatment, Types, declare_arguments, require
from aotc.relay.expr import Expr, tuple_item
from aotc.relay.op import cast_clip_prelu, concat_split, gather
from aotc.relay.op import shape as shapes
from aotc.relay.op.operator_definition import (
    Array,
    Index,
    OpDef,
    Samples,
    choose,
    exact_sample,
    greater,
    random_array,
    reference_from_element_function,
)
from aotc.relay.op.type_rules import (
    broadcast_two_shapes,
    require_same_dtype,
    require_tensor_fields,
    require_tensor_of_rank,
    require_tensor_type,
)

# --- adv_index


def _data_index_types_and_broadcast_shape(types: Types) -> tuple[TensorType, list[TensorType], Shape]:
    """Return the type of the data, the types of the indices, and the shape to which the indices
    broadcast.
    """
    data, *indices = require_tensor_fields(types[0], "inputs") or (TensorType((), "float32"),)
    fits = 1 <= len(indices) <= data.rank
    require("adv_index.count", fits, lambda: f"{len(indices)} tensors of indices for {data}")
    shapes = (gather.require_integer_tensor(t).shape for t in indices)
    return (data, indices, reduce(broadcast_two_shapes, shapes))


def _infer_adv_index_type(_: Any, types: Types) -> Type:
    data, indices, spots = _data_index_types_and_broadcast_shape(types)
    shape = (*spots, *data.shape[len(indices) :])
    readable = 0 not in data.shape[: len(indices)] or 0 in shape
    require("gather_nd.empty", readable, "cannot gather from an empty axis")
    return TensorType(shape, data.dtype)


def _adv_index_reference(_: Any, inputs: Sequence[Array]) -> Array:
    data, *indices = inputs
    at = tuple(gather.normalize_and_clip_index(x, n) for x, n in zip(indices, data.shape, strict=False))
    shape = (*np.broadcast_shapes(*(x.shape for x in at)), *data.shape[len(at) :])
    return data[at] if data.size else np.zeros(shape, data.dtype)


def _expand_adv_index(_: Any, inputs: Expr) -> Expr:
    assert inputs.checked_type is not None
    _, indices, spots = _data_index_types_and_broadcast_shape((inputs.checked_type,))
    wide = require_static_shape(spots)
    parts = [cast_clip_prelu.cast(tuple_item(inputs, k + 1), "int64") for k in range(len(indices))]
    rows = [shapes.reshape(shapes.broadcast_to(x, wide), (1, *wide), allowzero=True) for x in parts]
    return gather.gather_nd(tuple_item(inputs, 0), concat_split.concatenate(rows, 0))


def _adv_index_test_samples() -> Samples:
    for shape, *places in (
        ((5, 5), (3, 4), (3, 1)),
        ((5, 4), (2,)),
        ((5, 5, 2), (1, 2, 1), (2, 3)),
        ((5,), (0,)),
    ):  # fmt: skip
        pairs = zip(places, ("int64", "int32"), strict=False)
        indices = [gather.random_indices_some_out_of_range(place, 5, dtype) for place, dtype in pairs]
        yield exact_sample(NO_ATTRS, (random_array(shape), *indices))


adv_index = OpDef(
    name="adv_index",
    doc="inputs[0][inputs[1], inputs[2], ...] as numpy indexes: the indices broadcast, further axes are kept.",
    args=declare_arguments(Arg("inputs", "Sequence[Expr] | Expr", takes=concat_split.sequence_to_tuple_expr)),
    infer=_infer_adv_index_type,
    reference=_adv_index_reference,
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((None,) * require_tensor_type(_infer_adv_index_type(_, types)).rank,)),
    expand=_expand_adv_index,
    quantized=QuantizationTreatment.REFUSE,
    samples=_adv_index_test_samples,
)


# --- unravel_index


def _infer_unravel_index_type(_: Any, types: Types) -> Type:
    indices, shape = (
        gather.require_integer_tensor(types[0]),
        require_tensor_of_rank("unravel_index.shape", gather.require_integer_tensor(types[1], "shape"), 1),
    )
    require_same_dtype(indices, shape)
    require("unravel_index.shape", shape.shape[0] != 0, "the shape must have an axis")
    return TensorType((shape.shape[0], *indices.shape), indices.dtype)


def coordinate_of_flat_position(flat_position: Any, shape: Sequence[Any], axis: int) -> Any:
    """Return the coordinate along `axis` of the row-major position `flat_position` in a tensor of
    shape `shape`.

    The coordinate along axis 0 is not wrapped, so positions past the end give coordinates past the
    extent.
    """
    for extent in reversed(shape[axis + 1 :]):
        flat_position = flat_position // greater(extent, 1)
    return flat_position % greater(shape[axis], 1) if axis else flat_position


def _unravel_index_result_element(_: Any, i: Index, indices: Any, shape: Any) -> Any:
    sizes = [gather.convert_index_to_int64(shape[(k,)]) for k in range(shape.shape[0])]
    at = gather.convert_index_to_int64(indices[i[1:]])
    coordinate = coordinate_of_flat_position(at, sizes, 0)
    for k in range(1, len(sizes)):
        coordinate = choose(i[0] >= k, coordinate_of_flat_position(at, sizes, k), coordinate)
    return coordinate.astype(indices.dtype)


def _unravel_index_test_samples() -> Samples:
    for at, shape, dtype in (
        ((5, 0, 23), (2, 3, 4), "int32"),
        (7, (3, 3), "int64"),
        (((1, 2),), (9,), "uint8"),
    ):  # fmt: skip
        yield exact_sample(NO_ATTRS, np.array(at, dtype), np.array(shape, dtype))


unravel_index = OpDef(
    name="unravel_index",
    doc="The coordinates of flat positions in a tensor of a shape: result[k, ...] are those along axis k.",
    args=declare_arguments("indices", "shape"),
    infer=_infer_unravel_index_type,
    reference=reference_from_element_function(_infer_unravel_index_type, _unravel_index_result_element),
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((None, *range(require_tensor_type(types[0]).rank)),)),
    element=_unravel_index_result_element,
    samples=_unravel_index_test_samples,
)
