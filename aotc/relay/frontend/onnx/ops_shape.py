# SPDX-License-Identifier: Apache-2.0
"""ONNX converters that move data without arithmetic: reshape, transpose, concatenation, slicing,
padding, gather and scatter, and constants.

Values that determine a shape must be known at compile time; the shape of a static tensor is.
Indices may be negative: constant ones are replaced by non-negative ones here, others at run time.

    OPS["Flatten"](x, axis=1)               # reshape(x, (2, 12))
    OPS["Gather"](x, indices, axis=1)       # take(x, indices, axis)
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from aotc.ir import (
    AotcError,
    Dim,
    DType,
    SymDim,
    check_rank,
    equality_of_dims,
    interval_of_dim,
    is_static,
    largest_size,
    maximum_of_dims,
    product_of_dims,
    require,
    require_static_shape,
    same_dim,
    sum_of_dims,
)
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis, OptionalExpr
from aotc.relay.frontend.onnx.load import decode_string_tensor
from aotc.relay.frontend.onnx.node import (
    Converted,
    KnownInt,
    OnnxNode,
    SizeInput,
    Strings,
    Table,
    table_by_function_name,
)
from aotc.relay.frontend.onnx.ops_slice_range import convert_range, convert_slice
from aotc.relay.frontend.onnx.run_time_axes import chosen_axes, dims_around_new_axes, dims_of_kept_axes, values_by_axis
from aotc.relay.frontend.run_time_slices import largest_of_dims
from aotc.relay.frontend.size_conditions import require_at_least, require_equal_dims
from aotc.relay.frontend.size_operands import define_size
from aotc.relay.frontend.slice_pad_depth_to_space import (
    check_and_normalize_constant_indices,
    depth_to_space,
    gather_slices,
    normalize_indices_into_axis,
    pad_or_crop,
    space_to_depth,
    squeeze_all_unit_axes,
)
from aotc.relay.frontend.string_slots import string_constant
from aotc.relay.op.type_rules import broadcast_two_shapes

# --- reshaping


def _reshape(x: Expr, shape: SizeInput, *, allowzero: int = 0) -> Expr:
    dims = g.dims(x)
    # no extent is larger than the number of elements, or than an extent next to one of 0
    values = shape.within(-1, largest_of_dims((product_of_dims(dims), *dims)))
    if any(isinstance(v, SymDim) and v.lower < 0 for v in values):
        return g.reshape(x, _shape_of_run_time_values(dims, values, bool(allowzero)))
    return _reshape_to(x, values, allowzero)


def _shape_of_run_time_values(dims: Sequence[Dim], values: Sequence[Dim], allowzero: bool) -> list[Dim]:
    """Return the shape that values known at run time only describe: 0 copies a dimension unless
    `allowzero`, and one of them may be -1.
    """
    total = product_of_dims(dims)
    most = max(map(largest_size, (total, *dims)), default=1)
    negative = [equality_of_dims(v, -1) for v in values]
    known: list[Dim] = []
    for k, (value, is_negative) in enumerate(zip(values, negative, strict=True)):
        copied = 0 if allowzero or k >= len(dims) else product_of_dims((equality_of_dims(value, 0), dims[k]))
        # 1 in place of -1
        known.append(define_size(sum_of_dims((value, product_of_dims((2, is_negative)), copied)), 0, most))
    divisor = define_size(maximum_of_dims((product_of_dims(known), 1)), 1, most ** max(len(values), 1))
    rest = define_size(total // divisor, 0, most)
    text = "more than one value of a shape is -1"
    require_at_least("onnx-reshape", 1, sum_of_dims(negative), text)
    return [
        define_size(sum_of_dims((value, product_of_dims((is_negative, rest - 1)))), 0, most)
        for value, is_negative in zip(known, negative, strict=True)
    ]


def _reshape_to(x: Expr, shape: Sequence[Dim], allowzero: int) -> Expr:
    dims = g.dims(x)
    target: list[Dim] = []
    for k, d in enumerate(shape):
        copied = d == 0 and not allowzero
        fits = not copied or k < len(dims)
        require("onnx-reshape", fits, f"{shape} copies dimension {k} of an input that has only {len(dims)} dimensions")
        target.append(dims[k] if copied else d)
    both = allowzero and 0 in shape and -1 in shape
    require("onnx-reshape", not both, f"{shape} contains both 0 and -1, which allowzero=1 forbids")
    return x if target == list(dims) else g.reshape(x, target)


def _flatten(x: Expr, *, axis: int = 1) -> Expr:
    rank = g.rank(x)
    place = axis + rank if axis < 0 else axis
    require("onnx-axis", 0 <= place <= rank, f"axis {axis} is outside rank {rank}")
    if place == 1 and rank > 2:
        return g.call_op("nn.batch_flatten", x)
    shape = g.dims(x)
    return g.reshape(x, (product_of_dims(shape[:place]), product_of_dims(shape[place:])))


def _squeeze(x: Expr, axes: SizeInput | None = None, *, node: OnnxNode) -> Expr:
    rank = g.rank(x)
    values = None if axes is None else axes.within(-rank, rank - 1)
    if values is not None and not is_static(values):
        chosen = chosen_axes(values, rank, "onnx-axis")
        # if a squeezed axis has another extent than 1, the numbers of elements differ
        return g.reshape(x, dims_of_kept_axes(g.dims(x), chosen, rank - len(values)))
    # an empty attribute counts as an omitted one
    if values is None or (not values and node.optional_input(1) is None):
        return squeeze_all_unit_axes(x, "Squeeze")
    return g.squeeze(x, sorted(g.normalize_axis(a, rank) for a in require_static_shape(values)))


def _unsqueeze(x: Expr, axes: SizeInput) -> Expr:
    rank = g.rank(x) + axes.count
    check_rank(rank, "the result of Unsqueeze")
    values = axes.within(-rank, rank - 1)
    if not is_static(values):
        inserted = chosen_axes(values, rank, "onnx-axis")
        return g.reshape(x, dims_around_new_axes(g.dims(x), inserted))
    places = sorted(g.normalize_axis(a, rank) for a in require_static_shape(values))
    require("onnx-axis", len(set(places)) == len(places), f"an axis occurs twice in {values}")
    return g.unsqueeze(x, places)


def _transpose(x: Expr, *, perm: list[int] | None = None) -> Expr:
    rank = g.rank(x)
    order = perm or list(reversed(range(rank)))
    require("onnx-transpose", sorted(order) == list(range(rank)), f"perm {order} is not a permutation of {rank} axes")
    return g.transpose(x, order)


def _convert_depth_space_rearrangement(
    rearrange: Callable[..., Expr], x: Expr, *, blocksize: int, mode: str = "DCR"
) -> Expr:
    return rearrange(x, blocksize, g.rank(x) - 2, mode == "DCR")


# --- concatenation, slicing, padding


def _concat(*parts: Expr, axis: int = 1) -> Expr:
    place = g.normalize_axis(axis, g.rank(parts[0]))
    least = min(map(g.rank, parts))
    require("onnx-axis", place < least, f"a tensor of rank {least} has no axis {place}")
    filled = [p for p in parts if g.dims(p)[place] != 0]
    return g.concat(filled or parts[:1], place)


def _split(
    x: Expr, split: SizeInput | None = None, *, axis: Axis = 0, num_outputs: int | None = None, node: OnnxNode
) -> Sequence[Expr | None]:
    size, names = g.dims(x)[axis], len(node.is_output_named)
    text = f"num_outputs is {num_outputs}, the node has {names} outputs"
    require("onnx-split", num_outputs in (None, names), text)
    given = None if split is None else split.within(0, largest_of_dims((size,)))
    count = len(given) if given is not None else names if num_outputs is None else num_outputs
    if count > names:
        g.check_unroll_count(count, "a split")
    if given is None and isinstance(size, SymDim):
        require("onnx-split", count > 0, f"{size} elements cannot be split into {count} parts")
        # a last part of less than 0 elements is a wrong size, which is found when the model runs
        most = (size + (count - 1)) // count
        given = [most] * (count - 1) + [size - most * (count - 1)]
    elif given is None:
        assert isinstance(size, int)
        # the last part is smaller if the number of parts does not divide the extent
        part = -(-size // max(count, 1))
        parts = [min(part, size - k * part) for k in range(count)]
        given = list(parts)
        fits = 0 < count <= max(size, names) and min(parts) >= 0
        require(
            "onnx-split",
            fits,
            f"{size} elements cannot be split into {count} parts of {part} elements with a smaller last part",
        )
    text = f"parts {given} do not add up to {size} elements"
    fits = all(isinstance(part, SymDim) or part >= 0 for part in given) and len(given) >= names
    require("onnx-split", fits, text)
    require_equal_dims("onnx-split", sum_of_dims(given), size, text)
    return g.split(x, given, axis)


def _pad(
    x: Expr,
    pads: SizeInput | None = None,
    filling: OptionalExpr = None,
    axes: SizeInput | None = None,
    *,
    node: OnnxNode,
) -> Expr:
    rank, dims = g.rank(x), g.dims(x)
    mode, value = node.attrs.get("mode", "constant"), node.attrs.get("value", 0.0)
    widths = node.attrs.get("paddings")  # the name of the attribute in operator set 1
    if not widths:
        if pads is None:
            raise AotcError("onnx-input", "Pad needs `pads`; it is left out")
        widths = pads.within(-(largest_of_dims(g.dims(x)) or 0) if mode == "constant" else 0, None)
    places: list[Dim] = list(range(rank)) if axes is None else axes.within(-rank, rank - 1)
    require(
        "onnx-pad",
        len(widths) == 2 * len(places),
        f"{len(widths)} pads are given for {len(places)} axes; two per axis are needed",
    )
    if is_static(places):
        places = [g.normalize_axis(a, rank) for a in require_static_shape(places)]
    rows = values_by_axis(places, (widths[: len(places)], widths[len(places) :]), [(0, 0)] * rank)
    given = [_with_short_extent(d, *row) for d, row in zip(dims, rows, strict=True)]
    added = [[maximum_of_dims((w, 0)) for w in pair] for pair in given]
    sizes = [sum_of_dims((d, *pair)) for d, pair in zip(dims, added, strict=True)]
    g.checked_dims(sizes, g.dtype(x), "the result of Pad")
    if mode != "constant":
        return pad_or_crop(x, given, mode=mode)
    return pad_or_crop(x, given, filling if filling is not None else value if g.dtype(x).is_float else int(value))


def _with_short_extent(extent: Dim, before: Dim, after: Dim) -> tuple[Dim, Dim]:
    """Return widths of a padding with which the padded extent is a size with a short name, where it depends on
    several sizes.
    """
    padded = sum_of_dims((extent, before, after))
    high = interval_of_dim(padded)[1]
    if not isinstance(padded, SymDim) or len(padded.symbols) < 2 or math.isinf(high):
        return before, after
    return before, define_size(padded, 0, int(high)) - extent - before


def _tile(x: Expr, repeats: SizeInput, axis: KnownInt | None = None) -> Expr:
    return _tile_by(x, repeats.within(0, None), axis)


def _tile_by(x: Expr, repeats: list[Dim], axis: int | None) -> Expr:
    if axis is not None:  # operator set 1 repeats along one axis
        require("onnx-tile", len(repeats) == 1, f"the number of tiles must be one value, got {repeats}")
        place = g.normalize_axis(axis, g.rank(x))
        repeats = [repeats[0] if k == place else 1 for k in range(g.rank(x))]
    fits = len(repeats) == g.rank(x) and all(isinstance(r, SymDim) or r >= 0 for r in repeats)
    require("onnx-tile", fits, f"repeats {repeats} do not fit rank {g.rank(x)}")
    sizes = [product_of_dims(pair) for pair in zip(g.dims(x), repeats, strict=True)]
    g.checked_dims(sizes, g.dtype(x), "the result of Tile")
    return x if all(r == 1 for r in repeats) else g.call_op("tile", x, reps=tuple(repeats))


def _expand(x: Expr, shape: SizeInput) -> Expr:
    given_shape = g.checked_dims(shape.within(0, None), g.dtype(x), "the shape of Expand")
    rank = max(g.rank(x), len(given_shape))
    left, right = ((1,) * (rank - len(s)) + tuple(s) for s in (g.dims(x), given_shape))
    if is_static(left) and is_static(right):
        target = broadcast_two_shapes(left, right)
    else:
        target = tuple(map(_expanded_dim, left, right))
    return g.broadcast_to(x, g.checked_dims(target, g.dtype(x), "the result of Expand"))


def _expanded_dim(extent: Dim, wanted: Dim) -> Dim:
    """Return the extent to which Expand broadcasts an axis: `wanted`, unless that is 1."""
    if same_dim(extent, wanted) or wanted == 1:
        return extent
    if extent == 1:
        return wanted
    text = f"an extent of {extent} cannot be expanded to {wanted}"
    if interval_of_dim(wanted)[0] <= 1 <= interval_of_dim(extent)[0] - 1:
        # the extent of the data is at least 2: the wanted one may be 1
        require_equal_dims("onnx-expand", product_of_dims((wanted - 1, wanted - extent)), 0, text)
    else:
        require_equal_dims("onnx-expand", wanted, extent, text)
    return wanted if isinstance(wanted, int) else extent


# --- shapes as values, and constants


def _shape(x: Expr, *, start: int = 0, end: int | None = None) -> Expr:
    chosen = g.dims(x)[start:end]
    if is_static(chosen):
        return g.constant(chosen, "int64")
    sizes = g.call_op("shape_of", x, dtype="int64")
    first, last, _ = slice(start, end).indices(g.rank(x))
    return sizes if (first, last) == (0, g.rank(x)) else g.strided_slice(sizes, [first], [max(first, last)], [0])


def _size(x: Expr) -> Expr:
    if is_static(g.dims(x)):
        return g.constant(math.prod(g.shape(x)), "int64")
    return g.call_op("ndarray_size", x, dtype="int64")


_CONSTANT_ATTRIBUTE_DTYPES = {
    "value_float": "float32",
    "value_floats": "float32",
    "value_int": "int64",
    "value_ints": "int64",
}


def _constant(*, node: OnnxNode, value: Any = None, **values: Any) -> Converted:
    if value is not None and value.data_type == TensorProto.STRING:
        return Strings(string_constant(decode_string_tensor(value)))
    if value is not None:
        return Constant(node.tensor(value))
    for name in ("value_string", "value_strings"):
        if name in values:
            return Strings(string_constant(values[name]))
    for name, dtype in _CONSTANT_ATTRIBUTE_DTYPES.items():
        if name in values:
            return g.constant(values[name], dtype)
    raise AotcError("onnx-constant", "this form of constant is not supported (a sparse tensor)")


def _constant_of_shape(shape: SizeInput, *, value: Any = None, node: OnnxNode) -> Expr:
    filling = np.zeros(1, np.float32) if value is None else node.tensor(value)
    dtype = DType.from_numpy(filling)
    only = g.require_single_element(filling, "the value of ConstantOfShape")
    sizes = g.checked_dims(shape.within(0, None), dtype, "the result of ConstantOfShape")
    return g.filled(only, sizes, str(dtype))


def _eye_like(x: Expr, *, k: int = 0, dtype: DType | None = None) -> Expr:
    result_dtype = dtype or g.dtype(x)
    g.check_materialization_cost(g.shape(x), result_dtype, "the result of EyeLike")
    rows, columns = g.shape(x)
    return g.constant(np.eye(rows, columns, k), result_dtype)


def _trilu(x: Expr, k: OptionalExpr = None, *, upper: bool = True) -> Expr:
    diagonal = g.constant(0, "int64") if k is None else g.reshape(k, ())
    return g.call_op("trilu", x, diagonal, upper=upper)


def _reverse_sequence(x: Expr, lengths: Expr, *, time_axis: int = 0, batch_axis: int = 1) -> Expr:
    return g.call_op("reverse_sequence", x, lengths, seq_axis=time_axis, batch_axis=batch_axis)


# --- gather and scatter


def _gather(x: Expr, indices: Expr, *, axis: Axis = 0) -> Expr:
    return gather_slices(x, normalize_indices_into_axis(x, indices, axis), axis)


def _gather_elements(x: Expr, indices: Expr, *, axis: Axis = 0) -> Expr:
    return g.call_op("gather", x, _indices_into_axis(x, indices, axis), axis=axis)


def _indices_into_axis(x: Expr, indices: Expr, axis: int) -> Expr:
    """Return indices into an axis with constant negative ones counted from the start."""
    size = g.dims(x)[axis]
    if isinstance(size, int) or not isinstance(indices, Constant):
        return check_and_normalize_constant_indices(indices, size) if isinstance(size, int) else indices
    return normalize_indices_into_axis(x, indices, axis)


def _check_and_transpose_index_tuples(indices: Expr, axis_extents: tuple[int, ...]) -> Expr:
    """Check constant index tuples (along the last axis) against the extents `axis_extents` and transpose
    the last axis to the front.
    """
    rank = g.rank(indices)
    return g.transpose(check_and_normalize_constant_indices(indices, axis_extents), (rank - 1, *range(rank - 1)))


def _gather_nd(x: Expr, indices: Expr, *, batch_dims: int = 0) -> Expr:
    depth = g.dim(indices, -1, "the indices")
    sizes = g.dims(x)[batch_dims : batch_dims + depth]
    require(
        "onnx-index", len(sizes) == depth, f"index tuples of {depth} numbers are longer than the rank of {g.dims(x)}"
    )
    if not is_static(sizes) and not isinstance(indices, Constant):
        rank = g.rank(indices)
        places = g.transpose(indices, (rank - 1, *range(rank - 1)))
    else:
        places = _check_and_transpose_index_tuples(indices, g.shape(x)[batch_dims : batch_dims + depth])
    return g.call_op("gather_nd", x, places, batch_dims=batch_dims)


def _scatter_reduction_name(reduction: str) -> str:
    require(
        "onnx-scatter",
        reduction in ("none", "add", "mul", "min", "max"),
        f"unknown reduction {reduction!r}; known reductions: none, add, mul, min, max",
    )
    return "update" if reduction == "none" else reduction


def _scatter_elements(x: Expr, indices: Expr, updates: Expr, *, axis: Axis = 0, reduction: str = "none") -> Expr:
    places = _indices_into_axis(x, indices, axis)
    return g.call_op("scatter_elements", x, places, updates, axis=axis, reduction=_scatter_reduction_name(reduction))


def _scatter_nd(x: Expr, indices: Expr, updates: Expr, *, reduction: str = "none") -> Expr:
    sizes = g.shape(x)[: g.dim(indices, -1, "the indices")]
    return g.call_op(
        "scatter_nd",
        x,
        _check_and_transpose_index_tuples(indices, sizes),
        updates,
        mode=_scatter_reduction_name(reduction),
    )


def _one_hot(indices: Expr, depth: SizeInput, values: Expr, *, axis: int = -1) -> Expr:
    """Convert OneHot by comparing the indices with 0, 1, ..., depth - 1; an index out of range
    matches none.
    """
    sizes = depth.within(0, None, truncated=True)
    require("onnx-onehot", len(sizes) == 1, f"the depth must be one number, got {sizes}")
    if isinstance(sizes[0], SymDim):
        return _one_hot_of_run_time_depth(indices, depth.node[depth.index], sizes[0], values, axis)
    return _one_hot_of_known_depth(indices, int(sizes[0]), values, axis)


def _one_hot_of_run_time_depth(indices: Expr, depth: Expr, size: Dim, values: Expr, axis: int) -> Expr:
    rank = g.rank(indices) + 1
    place = g.normalize_axis(axis, rank)
    number = g.cast(g.reshape(depth, ()), "int64")
    if g.dtype(indices) == "uint64":
        indices = g.minimum(indices, g.cast(number, "uint64"))
    index = g.cast(indices, "int64")
    index = g.where(g.less(index, 0), g.add(index, number), index)
    positions = g.reshape(g.positions_up_to(size), (size, *(1,) * (rank - 1 - place)))
    off, on = (gather_slices(values, g.constant(k, "int64"), 0) for k in (0, 1))
    return g.where(g.equal(g.unsqueeze(index, [place]), positions), on, off)


def _one_hot_of_known_depth(indices: Expr, depth: int, values: Expr, axis: int) -> Expr:
    require("onnx-onehot", depth >= 0, f"the depth must not be negative, got {depth}")
    rank = g.rank(indices) + 1
    place = g.normalize_axis(axis, rank)
    if g.dtype(indices) == "uint64":  # clamp first: the cast to int64 could make large values negative
        indices = g.minimum(indices, depth)
    index = g.cast(indices, "int64")
    index = g.where(g.less(index, 0), g.add(index, depth), index)
    positions = g.reshape_along_axis(g.iota(depth), place, rank)
    off, on = (gather_slices(values, g.constant(k, "int64"), 0) for k in (0, 1))
    return g.where(g.equal(g.unsqueeze(index, [place]), positions), on, off)


def _tensor_scatter(past: Expr, update: Expr, start: OptionalExpr = None, *, axis: Axis = -2, mode: str) -> Expr:
    """Convert TensorScatter: write `update` into `past` along `axis` from a start position per
    batch element on, modulo the extent if `mode` is "circular".
    """
    shape, new = g.shape(past), g.shape(update)
    fits = len(shape) == len(new)
    require("onnx-rank", fits, f"an update of shape {new} does not fit a cache of shape {shape}")
    index = step = g.reshape_along_axis(g.iota(new[axis]), axis, len(new))
    circular = mode == "circular"
    if start is not None:
        first = g.cast(g.reshape(start, (shape[0], *(1,) * (len(new) - 1))), "int64")
        index = g.add(g.floor_mod(first, shape[axis]) if circular else first, step)
    if circular:
        index = g.floor_mod(index, shape[axis])
    index = g.call_op("broadcast_to", index, shape=new)
    return g.call_op("scatter_elements", past, index, update, axis=axis, reduction="update")


OPS: Table = {
    **table_by_function_name(_concat, _constant, _constant_of_shape, _expand, _eye_like, _flatten, _gather),
    **table_by_function_name(_gather_elements, _one_hot, _pad, _reshape, _reverse_sequence),
    **table_by_function_name(_scatter_elements, _shape, _split, _squeeze, _tensor_scatter, _tile, _transpose, _trilu),
    **table_by_function_name(_unsqueeze),
    "DepthToSpace": partial(_convert_depth_space_rearrangement, depth_to_space),
    "Range": convert_range,
    "Size": _size,
    "Slice": convert_slice,
    "SpaceToDepth": partial(_convert_depth_space_rearrangement, space_to_depth),
    "GatherND": _gather_nd,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
}
