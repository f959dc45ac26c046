# SPDX-License-Identifier: Apache-2.0
"""adv_index (numpy's advanced indexing) and unravel_index (flat positions to coordinates).

adv_index((x, i, j))                   # x[i, j], as numpy indexes
unravel_index(i, (2, 3))               # row indices and column indices
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from aotc.ir import NO_ATTRS, Shape, TensorType, Type, static_shape
from aotc.ir.op import Arg, AxisMap, OpPattern, Quantized, Types, args, require
from aotc.relay.expr import Expr, item_of
from aotc.relay.op import casts, concat_split, gather
from aotc.relay.op import shape as shapes
from aotc.relay.op.operator_definition import (
    Array,
    Index,
    OpDef,
    Samples,
    choose,
    exact,
    greater,
    of_formula,
    random_array,
)
from aotc.relay.op.type_rules import broadcast_shape, ranked, require_same_dtype, tensor, tensor_fields

# --- adv_index


def _spots(types: Types) -> tuple[TensorType, list[TensorType], Shape]:
    """Return the type of the data, the types of the indices, and the shape to which the indices
    broadcast.
    """
    data, *indices = tensor_fields(types[0], "inputs") or (TensorType((), "float32"),)
    fits = 1 <= len(indices) <= data.rank
    require("adv_index.count", fits, lambda: f"{len(indices)} tensors of indices for {data}")
    shapes = (gather.integer_tensor(t).shape for t in indices)
    return (data, indices, reduce(broadcast_shape, shapes))


def _adv_infer(_: Any, types: Types) -> Type:
    data, indices, spots = _spots(types)
    shape = (*spots, *data.shape[len(indices) :])
    readable = 0 not in data.shape[: len(indices)] or 0 in shape
    require("gather_nd.empty", readable, "cannot gather from an empty axis")
    return TensorType(shape, data.dtype)


def _adv_reference(_: Any, inputs: Sequence[Array]) -> Array:
    data, *indices = inputs
    at = tuple(gather.from_end(x, n) for x, n in zip(indices, data.shape, strict=False))
    shape = (*np.broadcast_shapes(*(x.shape for x in at)), *data.shape[len(at) :])
    return data[at] if data.size else np.zeros(shape, data.dtype)


def _adv_expand(_: Any, inputs: Expr) -> Expr:
    assert inputs.checked_type is not None
    _, indices, spots = _spots((inputs.checked_type,))
    wide = static_shape(spots)
    parts = [casts.cast(item_of(inputs, k + 1), "int64") for k in range(len(indices))]
    rows = [shapes.reshape(shapes.broadcast_to(x, wide), (1, *wide), allowzero=True) for x in parts]
    return gather.gather_nd(item_of(inputs, 0), concat_split.concatenate(rows, 0))


def _adv_samples() -> Samples:
    for shape, *places in (
        ((5, 5), (3, 4), (3, 1)),
        ((5, 4), (2,)),
        ((5, 5, 2), (1, 2, 1), (2, 3)),
        ((5,), (0,)),
    ):  # fmt: skip
        pairs = zip(places, ("int64", "int32"), strict=False)
        indices = [gather.integers(place, 5, dtype) for place, dtype in pairs]
        yield exact(NO_ATTRS, (random_array(shape), *indices))


adv_index = OpDef(
    name="adv_index",
    doc="inputs[0][inputs[1], inputs[2], ...] as numpy indexes: the indices broadcast, further axes are kept.",
    args=args(Arg("inputs", "Sequence[Expr] | Expr", takes=concat_split.packed)),
    infer=_adv_infer,
    reference=_adv_reference,
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((None,) * tensor(_adv_infer(_, types)).rank,)),
    expand=_adv_expand,
    quantized=Quantized.REFUSE,
    samples=_adv_samples,
)


# --- unravel_index


def _unravel_infer(_: Any, types: Types) -> Type:
    indices, shape = (
        gather.integer_tensor(types[0]),
        ranked("unravel_index.shape", gather.integer_tensor(types[1], "shape"), 1),
    )
    require_same_dtype(indices, shape)
    require("unravel_index.shape", shape.shape[0] != 0, "the shape must have an axis")
    return TensorType((shape.shape[0], *indices.shape), indices.dtype)


def coordinate(at: Any, shape: Sequence[Any], k: int) -> Any:
    """Return the coordinate along axis k of the flat position `at` in a tensor of shape `shape`.

    The coordinate along axis 0 is not wrapped, so positions past the end give coordinates past the
    extent.
    """
    for extent in reversed(shape[k + 1 :]):
        at = at // greater(extent, 1)
    return at % greater(shape[k], 1) if k else at


def _unravel_element(_: Any, i: Index, indices: Any, shape: Any) -> Any:
    sizes = [gather.as_index(shape[(k,)]) for k in range(shape.shape[0])]
    at = gather.as_index(indices[i[1:]])
    found = coordinate(at, sizes, 0)
    for k in range(1, len(sizes)):
        found = choose(i[0] >= k, coordinate(at, sizes, k), found)
    return found.astype(indices.dtype)


def _unravel_samples() -> Samples:
    for at, shape, dtype in (
        ((5, 0, 23), (2, 3, 4), "int32"),
        (7, (3, 3), "int64"),
        (((1, 2),), (9,), "uint8"),
    ):  # fmt: skip
        yield exact(NO_ATTRS, np.array(at, dtype), np.array(shape, dtype))


unravel_index = OpDef(
    name="unravel_index",
    doc="The coordinates of flat positions in a tensor of a shape: result[k, ...] are those along axis k.",
    args=args("indices", "shape"),
    infer=_unravel_infer,
    reference=of_formula(_unravel_infer, _unravel_element),
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((None, *range(tensor(types[0]).rank)),)),
    element=_unravel_element,
    samples=_unravel_samples,
)
