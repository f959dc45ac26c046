# SPDX-License-Identifier: Apache-2.0
"""The operator that permutes axes in an order that may be known at run time only.

permute_axes(x, places=(1, 0), shape=(3, 2))       # transpose of a (2, 3) tensor
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.ir import Attrs, OpPattern, SymDim, TensorType, Type, Types, is_static, require
from aotc.ir.dimensions import Dim
from aotc.ir.op import AxisMap
from aotc.relay.op.opdef import Array, Index, OpDef, Scalar, compute_from_element_function
from aotc.relay.op.operator_definition import exact_samples_from_rows, require_tensor_type
from aotc.tir import Tensor, as_expr, maximum, minimum, select


class PermuteAxesAttrs(Attrs):
    """`data` with permuted axes: axis k of the data is axis places[k] of the result, which has a `shape`.

    Both may be known at run time only; then, whoever builds the call states that they fit.
    """

    places: tuple[int | SymDim, ...]
    shape: tuple[int | SymDim, ...]


def _infer_permute_axes_type(a: PermuteAxesAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    fits = len(a.places) == len(a.shape) == data.rank
    require("permute_axes.rank", fits, lambda: f"places {a.places} and shape {a.shape} do not fit {data}")
    if is_static(a.places):
        places = [int(p) for p in a.places if isinstance(p, int)]
        require("permute_axes.places", sorted(places) == list(range(data.rank)), f"{places} is no permutation")
        if data.is_static and is_static(a.shape):
            fits = all(a.shape[p] == d for p, d in zip(places, data.shape, strict=True))
            require("permute_axes.shape", fits, lambda: f"axes of {data} at {places} do not have the shape {a.shape}")
    return TensorType(a.shape, data.dtype)


def _permute_axes_reference(a: Any, data: Array) -> Array:
    result: Array = data.transpose(np.argsort(a.places).tolist())
    return result


def _permuted_element(a: PermuteAxesAttrs, i: Index, data: Tensor) -> Scalar:
    return data[tuple(_index_at(i, place, extent) for place, extent in zip(a.places, data.shape, strict=True))]


def _index_at(indices: Index, place: Dim, extent: Dim) -> Any:
    """Return the index at a place; clipped to an axis, so that no element outside of the data is read."""
    if isinstance(place, int):
        return indices[place]
    chosen: Any = indices[-1]
    for k in reversed(range(len(indices) - 1)):
        chosen = select(as_expr(place).equal(k), indices[k], chosen)
    last = as_expr(extent) - 1
    return maximum(minimum(chosen, last), 0)


permute_axes = OpDef(
    name="permute_axes",
    attrs=PermuteAxesAttrs,
    infer=_infer_permute_axes_type,
    reference=_permute_axes_reference,
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((None,) * require_tensor_type(types[0]).rank,)),
    compute=compute_from_element_function("permute", _infer_permute_axes_type, _permuted_element),
    samples=exact_samples_from_rows(
        PermuteAxesAttrs,
        "places shape",
        (
            ((2, 3, 4), (1, 2, 0), (4, 2, 3)),
            ((2, 3), (0, 1), (2, 3)),
            ((3,), (0,), (3,)),
            ((), (), ()),
            ((0, 2), (1, 0), (2, 0)),
        ),
    ),
)
