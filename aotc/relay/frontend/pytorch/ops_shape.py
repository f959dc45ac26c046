# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of operators that move elements: reshape, permutation of axes, concatenation,
slicing, padding, indexing and scatter; and of data type conversions.

OPS["view"](x=a, size=[2, -1])          # reshape(a, (2, -1))
OPS["embedding"](weight=w, indices=i)   # take(w, i, axis=0)
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from aotc.ir import AotcError, Dim, SymDim, is_static, require, require_static_shape
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.ops_found_sizes import elements_at_mask
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Table, TorchValue
from aotc.relay.frontend.slice_pad_depth_to_space import (
    depth_to_space,
    gather_slices,
    normalize_negative_indices,
    pad_or_crop,
    select_element,
    space_to_depth,
)

_INT64_MAX = (1 << 63) - 1


def _replace_minus_one_if_same_dynamic_dim(
    dims: Sequence[Dim], target_dims: Sequence[TorchValue]
) -> Sequence[TorchValue]:
    """Return the target shape of a reshape with -1 replaced by its value, if `dims` and
    `target_dims` contain exactly one dynamic dimension each and these are equal; otherwise return
    it unchanged.
    """
    unknown = [d for d in dims if isinstance(d, SymDim)]
    if -1 not in target_dims or len(unknown) != 1 or unknown != [v for v in target_dims if isinstance(v, SymDim)]:
        return target_dims
    given = math.prod(tv.to_python_int(v) for v in target_dims if not isinstance(v, SymDim) and v != -1)
    whole = math.prod(d for d in dims if isinstance(d, int))
    return [whole // given if v == -1 else v for v in target_dims] if given and whole % given == 0 else target_dims


def _view(x: Expr, size: Sequence[TorchValue], /) -> Expr:
    return g.reshape(
        x, tv.reshape_target_with_dynamic_as_minus_one(_replace_minus_one_if_same_dynamic_dim(g.dims(x), size))
    )


def _flatten(x: Expr, start_dim: int = 0, end_dim: int = -1) -> Expr:
    rank = g.rank(x)
    if not rank:
        return g.reshape(x, (1,))
    first, last, dims = (
        tv.normalize_axis_for_rank(start_dim, rank),
        tv.normalize_axis_for_rank(end_dim, rank),
        g.dims(x),
    )
    require("torch-axis", first <= last, f"start_dim {start_dim} is after end_dim {end_dim} of {rank} dimensions")
    inner = dims[first : last + 1]
    count: TorchValue = math.prod(require_static_shape(inner)) if is_static(inner) else -1
    return _view(x, [*dims[:first], count, *dims[last + 1 :]])


def _unflatten(x: Expr, dim: Axis, sizes: Sequence[TorchValue]) -> Expr:
    dims = g.dims(x)
    return _view(x, [*dims[:dim], *sizes, *dims[dim + 1 :]])


def swap_axes(x: Expr, dim0: int, dim1: int, /) -> Expr:
    """Exchange two axes of a tensor, as torch.transpose does."""
    a, b, order = tv.normalize_axis(dim0, x), tv.normalize_axis(dim1, x), list(range(g.rank(x)))
    if order:
        order[a], order[b] = order[b], order[a]
    return g.transpose(x, order)


def _movedim(x: Expr, source: TorchValue, destination: TorchValue) -> Expr:
    rank = g.rank(x)
    sources, targets = (tv.normalize_distinct_axes(v, rank) for v in (source, destination))
    text = f"{len(sources)} dimensions cannot be moved to {len(targets)} positions"
    require("torch-axis", len(sources) == len(targets), text)
    order = [k for k in range(rank) if k not in sources]
    for place, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(place, axis)
    return g.transpose(x, order)


def _squeeze(x: Expr, dim: TorchValue = None) -> Expr:
    rank = g.rank(x)
    axes = range(rank) if dim is None else sorted(tv.normalize_distinct_axes(dim, rank))
    return g.squeeze(x, [a for a in axes if a < rank and g.dims(x)[a] == 1])


def expand(x: Expr, size: Sequence[TorchValue]) -> Expr:
    """Broadcast `x` along axes of extent 1 and along new leading axes; -1 in `size` leaves an axis
    unchanged.
    """
    new = len(size) - g.rank(x)
    require("torch-shape", new >= 0, f"{len(size)} extents do not fit a tensor of {g.rank(x)} dimensions")
    source_dims = [*([1] * new), *g.dims(x)]
    target = [
        k if not isinstance(s, SymDim) and tv.to_python_int(s) == -1 else s
        for s, k in zip(size, source_dims, strict=True)
    ]
    leading = [tv.to_python_int(s) for s in size[:new] if not isinstance(s, SymDim)]
    require("torch-shape", -1 not in leading, f"the extents {leading} of new leading dimensions contain -1")
    if target == source_dims and not new:
        return x
    return g.broadcast_to(x, [tv.to_python_int(t) for t in target])


def _repeat(x: Expr, repeats: Sequence[TorchValue], /) -> Expr:
    counts = tv.to_int_list(repeats)
    text = f"the numbers of repeats {counts} must not be negative"
    require("torch-shape", min(counts, default=0) >= 0, text)
    counts = [1] * (g.rank(x) - len(counts)) + counts
    y = g.unsqueeze(x, range(len(counts) - g.rank(x)))
    return y if all(c == 1 for c in counts) else g.call_op("tile", y, reps=tuple(counts))


def _repeat_all_axes(x: Expr, repeats: Sequence[TorchValue], /) -> Expr:
    """Convert repeat, which needs a number for each axis, unlike tile."""
    text = f"{len(repeats)} numbers of repeats do not fit a tensor of {g.rank(x)} dimensions"
    require("torch-shape", len(repeats) >= g.rank(x), text)
    return _repeat(x, repeats)


def _repeat_interleave(x: Expr, repeats: TorchValue, dim: int | None = None, output_size: TorchValue = None) -> Expr:
    """Convert repeat_interleave: each element of an axis, repeated as often as `repeats` states: a
    number, or a tensor with a number for each element, whose sum is `output_size`.
    """
    data, axis = (g.flatten(x), 0) if dim is None else (x, tv.normalize_axis(dim, x))
    if not tv.is_tensor(repeats) or (isinstance(repeats, Constant) and repeats.data.size == 1):
        return g.call_op("repeat", data, repeats=tv.to_python_int(repeats), axis=axis)
    require("torch-shape", g.dims(repeats) == (g.dims(data)[axis],), f"repeats of shape {g.dims(repeats)} do not fit")
    return g.call_op("take", data, _repeated_positions(repeats, output_size), axis=axis, mode="clip")


def _repeated_positions(repeats: Expr, output_size: TorchValue = None) -> Expr:
    """Convert repeat_interleave of numbers of repeats alone: position k, repeats[k] times, in order."""
    if isinstance(repeats, Constant):
        require("torch-argument", bool(np.all(repeats.data >= 0)), "a number of repeats is negative")
        g.check_materialization_cost((int(repeats.data.sum()),), "int64", "repeated positions")
        return g.constant(np.repeat(np.arange(repeats.data.size), repeats.data), "int64")
    if output_size is None:
        hint = "give output_size to torch.repeat_interleave"
        raise AotcError("torch-dynamic", "the size of the result depends on numbers of repeats", hint=hint)
    ends = g.call_op("cumsum", g.cast(repeats, "int64"), axis=0, dtype="int64")
    return g.call_op("searchsorted", ends, g.iota(tv.to_python_int(output_size)), right=True, dtype="int64")


def _as_strided(x: Expr, size: TorchValue, stride: TorchValue, storage_offset: TorchValue = None) -> Expr:
    """Convert as_strided of a contiguous tensor: elements of its memory, by sizes and strides.

    Windows that slide along the last axis, as in torch.stft, become sliding_window.
    """
    sizes, strides, shape = tv.to_int_list(size), tv.to_int_list(stride), tv.static_dims(x)
    offset = 0 if storage_offset is None else tv.to_python_int(storage_offset)
    require("torch-shape", len(sizes) == len(strides), f"{len(sizes)} sizes and {len(strides)} strides do not fit")
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    is_inside = 0 in sizes or (offset >= 0 and min(strides, default=0) >= 0 and last < math.prod(shape))
    require("torch-index", is_inside, f"sizes {sizes}, strides {strides} exceed a tensor of shape {shape}")
    outer = [math.prod(shape[k + 1 :]) for k in range(len(shape) - 1)]
    slides = (
        not offset and len(sizes) == len(shape) + 1 > 1 and sizes[:-2] == list(shape[:-1]) and strides[:-2] == outer
    )
    if slides and 0 not in sizes and strides[-1] == 1 and strides[-2] > 0 and sizes[-1] <= shape[-1]:
        windows = g.call_op("sliding_window", x, axis=len(shape) - 1, window_shape=(sizes[-1],), strides=(strides[-2],))
        if tv.static_dim(windows, len(shape) - 1) >= sizes[-2]:
            return g.strided_slice(windows, [0], [sizes[-2]], [len(shape) - 1])
    g.check_materialization_cost(sizes, "int64", "the positions of as_strided")
    places = np.full(sizes, offset, np.int64)
    for axis, step in enumerate(strides):
        places += (np.arange(sizes[axis]) * step).reshape(-1, *[1] * (len(sizes) - 1 - axis))
    return g.call_op("take", g.flatten(x), g.constant(places, "int64"), axis=0, mode="clip")


def _unfold_backward(x: Expr, input_sizes: TorchValue, dim: int, size: int, step: int, /) -> Expr:
    """Convert unfold_backward, which torch.istft calls: the sum of windows (.., windows, .., size) that
    begin `step` elements apart along the axis `dim` of the result.
    """
    shape = tv.to_int_list(input_sizes)
    axis, extent = tv.normalize_axis_for_rank(dim, len(shape)), shape[tv.normalize_axis_for_rank(dim, len(shape))]
    windows = _movedim(x, axis, -2)
    *lead, count, _ = tv.static_dims(windows)
    total: Expr | None = None
    g.check_unroll_count(-(-size // step), "a sum of overlapping windows")
    for begin in range(0, size, step):
        width = min(step, size - begin)
        part = g.strided_slice(windows, [begin], [begin + width], [len(lead) + 1])
        part = g.pad(part, [(0, 0)] * (len(lead) + 1) + [(0, step - width)])
        row = g.reshape(part, (*lead, count * step))
        row = pad_or_crop(row, [(0, 0)] * len(lead) + [(begin, extent - begin - count * step)])
        total = row if total is None else g.add(total, row)
    require("torch-argument", total is not None, f"windows of {size} elements have no sum")
    return _movedim(total, -1, axis) if total is not None else x


def _cat(tensors: Sequence[Expr], dim: int = 0) -> Expr:
    require("torch-argument", bool(tensors), "cat has no tensors")
    parts = [t for t in tensors if g.dims(t) != (0,)] or list(tensors[:1])
    return g.concat(tv.cast_operands_to_promoted_dtype(*parts), tv.normalize_axis(dim, parts[0]))


def _stack(tensors: Sequence[Expr], dim: int = 0) -> Expr:
    require("torch-argument", bool(tensors), "stack has no tensors")
    axis = tv.normalize_axis_for_rank(dim, g.rank(tensors[0]) + 1)
    return g.stack(tv.cast_operands_to_promoted_dtype(*tensors), axis)


def _split(x: Expr, sizes: TorchValue, /, dim: Axis = 0) -> list[Expr]:
    if isinstance(sizes, (list, tuple)):
        return g.split(x, tv.to_int_list(sizes), dim)
    return g.split(x, g.equal_part_sizes(tv.static_dim(x, dim), tv.to_python_int(sizes)) or [0], dim)


def _chunk(x: Expr, chunks: int, dim: Axis = 0) -> list[Expr]:
    require("torch-argument", chunks > 0, f"the number of chunks must be positive, it is {chunks}")
    return _split(x, max(-(-tv.static_dim(x, dim) // chunks), 1), dim)


def _tensor_split(x: Expr, sections: TorchValue, dim: Axis = 0) -> list[Expr]:
    total, count = tv.static_dim(x, dim), tv.to_python_int(sections)
    require("torch-argument", count > 0, f"the number of sections must be positive, it is {count}")
    g.check_unroll_count(count, "a split")
    return g.split(x, [total // count + (k < total % count) for k in range(count)], dim)


def _unbind(x: Expr, dim: Axis = 0) -> list[Expr]:
    return [g.squeeze(part, [dim]) for part in g.split(x, g.equal_part_sizes(tv.static_dim(x, dim), 1), dim)]


def _slice(x: Expr, dim: Axis = 0, start: TorchValue = None, end: TorchValue = None, step: TorchValue = 1) -> Expr:
    """Convert slice: `x[start:end:step]` along an axis."""
    begin, stride = 0 if start is None else tv.to_python_int(start), tv.to_python_int(step)
    require("torch-argument", stride > 0, f"the step of a slice must be positive, it is {stride}")
    if end is None or end == g.dims(x)[dim] or tv.to_python_int(end) == _INT64_MAX:
        if begin == 0 and stride == 1:
            return x
        end = _INT64_MAX
    first, last, _ = slice(begin, tv.to_python_int(end)).indices(tv.static_dim(x, dim))
    return g.strided_slice(x, [first], [max(first, last)], [dim], [stride])


def _normalize_index(x: Expr, dim: int, index: TorchValue) -> int:
    """Convert a possibly negative position on an axis to one counted from 0."""
    place = tv.to_python_int(index)
    return place + tv.static_dim(x, dim) if place < 0 else place


def _narrow(x: Expr, dim: Axis, start: TorchValue, length: TorchValue) -> Expr:
    first, count, extent = _normalize_index(x, dim, start), tv.to_python_int(length), tv.static_dim(x, dim)
    fits = 0 <= first <= first + count <= extent and count >= 0
    text = f"{count} elements from {tv.to_python_int(start)} on are outside the {extent} elements of dimension {dim}"
    require("torch-index", fits, text)
    return _slice(x, dim, first, first + count)


def _select(x: Expr, dim: Axis, index: TorchValue) -> Expr:
    place, total = tv.to_python_int(index), g.dims(x)[dim]
    fits = not isinstance(total, int) or -total <= place < total
    require("torch-index", fits, f"index {place} is outside the {total} elements of dimension {dim}")
    return select_element(x, dim, _normalize_index(x, dim, index))


def _flip(x: Expr, dims: TorchValue) -> Expr:
    for axis in tv.normalize_distinct_axes(dims, g.rank(x)):
        x = g.call_op("reverse", x, axis=axis)
    return x


def _roll(x: Expr, shifts: TorchValue, dims: TorchValue = None) -> Expr:
    if not dims:
        return g.reshape(_roll(g.flatten(x), shifts, [0]), tv.static_dims(x))
    shifts, dims = tv.to_int_list(shifts), tv.to_int_list(dims)
    require("torch-argument", len(shifts) == len(dims), f"{len(shifts)} shifts do not fit {len(dims)} dimensions")
    for shift, dim in zip(shifts, dims, strict=True):
        axis = tv.normalize_axis(dim, x)
        total = tv.static_dim(x, axis)
        offset = shift % total if total else 0
        if offset:
            head, tail = g.split(x, [total - offset, offset], axis)
            x = g.concat([tail, head], axis)
    return x


def _pad_from_last_axis(x: Expr, pad: TorchValue, /, mode: str = "constant", value: TorchValue = None) -> Expr:
    """Convert torch's padding, whose widths are listed from the last axis on; negative widths
    remove elements.
    """
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    require("torch-pad", mode in modes, f"padding mode {mode!r} is not known")
    flat = tv.to_int_list(pad)
    text = f"{len(flat)} padding widths do not fit a tensor of {g.rank(x)} dimensions"
    require("torch-pad", len(flat) % 2 == 0 and len(flat) <= 2 * g.rank(x), text)
    widths = [(flat[k], flat[k + 1]) for k in range(0, len(flat), 2)]
    most = {"reflect": -1, "circular": 0}.get(mode)
    extents = g.dims(x)[g.rank(x) - len(widths) :][::-1]
    fits = most is None or all(max(w) <= n + most for w, n in zip(widths, extents, strict=True) if isinstance(n, int))
    require("torch-pad", fits, f"padding {flat} in mode {mode!r} is wider than a tensor of shape {g.dims(x)}")
    return pad_or_crop(x, [(0, 0)] * (g.rank(x) - len(widths)) + widths[::-1], value or 0, modes[mode])


def _pad_last_axes(axis_count: int, mode: str, x: Expr, padding: TorchValue, /) -> Expr:
    """Convert reflection_pad and replication_pad of `axis_count` axes."""
    count = len(padding)
    text = f"{count} padding widths do not fit {axis_count} spatial dimensions"
    require("torch-pad", count == 2 * axis_count, text)
    return _pad_from_last_axis(x, padding, mode=mode)


def _channel_shuffle(x: Expr, groups: int) -> Expr:
    n, c, *rest = tv.static_dims(x)
    fits = groups > 0 and c % groups == 0
    require("torch-shape", fits, f"{c} channels cannot be divided into {groups} groups")
    y = swap_axes(g.reshape(x, (n, groups, c // groups, *rest)), 1, 2)
    return g.reshape(y, (n, c, *rest))


def _unfold(x: Expr, dimension: Axis, size: int, step: int) -> Expr:
    """Convert unfold: slice windows of `size` elements along an axis and stack them; the elements
    of a window become the last axis.
    """
    extent = tv.static_dim(x, dimension)
    fits = 0 <= size <= extent and step > 0
    require("torch-shape", fits, f"windows of {size} elements in steps of {step} do not fit {extent} elements")
    g.check_unroll_count((extent - size) // step + 1, "unfold")
    starts = range(0, extent - size + 1, step)
    windows = (_slice(x, dimension, s, s + size) for s in starts)
    return g.stack([_movedim(window, dimension, -1) for window in windows], dimension)


def _broadcast_tensors(tensors: Sequence[Expr]) -> list[Expr]:
    common = np.broadcast_shapes(*map(tv.static_dims, tensors))
    return [g.broadcast_to(t, common) for t in tensors]


def _meshgrid(tensors: Sequence[Expr], indexing: str = "ij") -> list[Expr]:
    counts = [math.prod(tv.static_dims(t)) for t in tensors]
    grids = [g.broadcast_to(g.reshape_along_axis(t, k, len(counts)), counts) for k, t in enumerate(tensors)]
    return [swap_axes(g, 0, 1) for g in grids] if indexing == "xy" and len(grids) > 1 else grids


def _convert_dtype(x: Expr, dtype: str | None = None, other: Expr | None = None) -> Expr:
    target_dtype = dtype if other is None else g.dtype(other)
    return x if target_dtype is None else g.cast(x, target_dtype)


def _require_view_of_same_dtype(x: Expr, dtype: str | None) -> Expr:
    require("torch-op", dtype in (None, g.dtype(x)), f"a view of {g.dtype(x)} as {dtype} is not supported")
    return x


def _dropout(x: Expr, p: float = 0.5, train: bool = False) -> Expr:
    if train and p:
        raise tv.training_mode_error("dropout")
    return x


_IDENTITY_OPERATORS = (
    *("clone", "contiguous", "detach", "alias", "lift_fresh", "lift", "positive", "resolve_conj", "resolve_neg", "cpu"),
)


# --- gather and scatter


def _gather(x: Expr, dim: Axis, index: Expr) -> Expr:
    """Convert gather. Axes other than `dim` that are longer than those of the index are cut first,
    since no index refers to the remaining elements.
    """
    index_shape = tv.static_dims(index)
    require("torch-shape", len(index_shape) == g.rank(x), f"an index of shape {index_shape} does not fit {g.dims(x)}")
    axes = [k for k, n in enumerate(index_shape) if k != dim and n < tv.static_dim(x, k)]
    reached = g.strided_slice(x, [0] * len(axes), [index_shape[k] for k in axes], axes) if axes else x
    return g.call_op("gather", reached, index, axis=dim)


def _take_along_dim(x: Expr, indices: Expr, dim: int | None = None) -> Expr:
    if dim is None:
        return g.call_op("gather", g.flatten(x), g.flatten(indices), axis=0)
    axis = tv.normalize_axis(dim, x)
    unit_shapes = [tuple(1 if k == axis else d for k, d in enumerate(tv.static_dims(t))) for t in (x, indices)]
    common = np.broadcast_shapes(*unit_shapes)
    data, index = (
        g.broadcast_to(t, [tv.static_dim(t, k) if k == axis else n for k, n in enumerate(common)]) for t in (x, indices)
    )
    return g.call_op("gather", data, index, axis=axis)


# --- advanced indexing: x[i, :, j]


def _indexed_axes_and_positions(x: Expr, indices: Sequence[TorchValue]) -> tuple[list[int], list[Expr]]:
    """Return the axes that are indexed and their index tensors, which may hold negative positions;
    constant masks are converted to positions.

    Raises AotcError (code "torch-dynamic") for a mask that is not constant.
    """
    index_tensors: list[Expr | None] = []
    for index in indices:
        if index is None or not (g.dtype(index).is_bool or g.dtype(index) == "uint8"):
            index_tensors.append(None if index is None else g.cast(index, "int64"))
            continue
        if not isinstance(index, Constant):
            hint = "torch.where with three arguments has a result whose shape is known"
            raise AotcError(
                "torch-dynamic", "indexing by a mask that is computed at run time is not supported", hint=hint
            )
        index_tensors += [g.constant(places, "int64") for places in np.nonzero(index.data)]
    given = {axis: places for axis, places in enumerate(index_tensors) if places is not None}
    return list(given), list(given.values())


def _broadcast_and_stack_indices(index_tensors: Sequence[Expr]) -> tuple[Expr, tuple[int, ...]]:
    """Broadcast index tensors for several axes to one shape and stack them as (axes, *shape);
    return the stack and the shape.
    """
    common = np.broadcast_shapes(*map(tv.static_dims, index_tensors))
    return g.concat([g.unsqueeze(g.broadcast_to(p, common), [0]) for p in index_tensors], 0), common


def _permutation_to_front(axes: Sequence[int], rank: int) -> list[int]:
    return [*axes, *(k for k in range(rank) if k not in axes)]


def _result_position_of_indexed_dims(axes: Sequence[int]) -> int:
    """Return the position of the indexed dimensions in the result: that of the first indexed axis
    if the axes are adjacent, otherwise 0, as in numpy.
    """
    return axes[0] if list(axes) == list(range(axes[0], axes[0] + len(axes))) else 0


def _mask_and_axis(x: Expr, indices: Sequence[TorchValue]) -> tuple[Expr, int] | None:
    """Return the one index of `x` that is not None, if it is a mask that is computed, and its first axis."""
    given = [(index, axis) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or isinstance(given[0][0], Constant) or g.dtype(given[0][0]) not in ("bool", "uint8"):
        return None
    return given[0]


def _index(x: Expr, indices: Sequence[TorchValue]) -> Expr:
    if (found := _mask_and_axis(x, indices)) is not None:
        return elements_at_mask(x, *found)
    axes, places = _indexed_axes_and_positions(x, indices)
    if not axes:
        return x
    if len(axes) == 1:
        extent = g.dims(x)[axes[0]]
        size = extent if isinstance(extent, int) else g.extent(x, axes[0])
        return gather_slices(x, normalize_negative_indices(places[0], size), axes[0])
    index, common = _broadcast_and_stack_indices(places)
    data = g.transpose(x, _permutation_to_front(axes, g.rank(x)))
    y = g.call_op("gather_nd", data, index)
    start, n = _result_position_of_indexed_dims(axes), len(common)
    order = [*range(n, n + start), *range(n), *range(n + start, g.rank(y))]
    return g.transpose(y, order)


def _index_put(x: Expr, indices: Sequence[TorchValue], values: TorchValue, accumulate: bool = False) -> Expr:
    dtype = g.dtype(x)
    is_scalar = not tv.is_tensor(values) or math.prod(tv.static_dims(values)) == 1
    if is_scalar and len(indices) == 1 and tv.is_tensor(indices[0]) and g.dtype(indices[0]).is_bool:
        mask = g.reshape(indices[0], (*tv.static_dims(indices[0]), *[1] * (g.rank(x) - g.rank(indices[0]))))
        scalar = g.reshape(tv.to_tensor_expr_of_dtype(values, dtype), ())
        return g.call_op("where", mask, g.add(x, scalar) if accumulate else scalar, x)
    axes, places = _indexed_axes_and_positions(x, indices)
    index, common = _broadcast_and_stack_indices(places)
    order = _permutation_to_front(axes, g.rank(x))
    data = g.transpose(x, order)
    rest = tv.static_dims(data)[len(axes) :]
    start, n = _result_position_of_indexed_dims(axes), len(common)
    target = (*rest[:start], *common, *rest[start:])
    update = g.broadcast_to(tv.to_tensor_expr_of_dtype(values, dtype), target)
    update = g.transpose(update, [*range(start, start + n), *range(start), *range(start + n, len(target))])
    y = g.call_op("scatter_nd", data, index, update, mode="add" if accumulate else "update")
    return g.transpose(y, [order.index(k) for k in range(g.rank(x))])


def _embedding(weight: Expr, indices: Expr) -> Expr:
    require("torch-shape", g.rank(weight) == 2, f"an embedding table of shape {g.dims(weight)} is not a matrix")
    return gather_slices(weight, indices, 0)


def _index_select(x: Expr, dim: Axis, index: Expr) -> Expr:
    require("torch-shape", g.rank(index) <= 1, f"an index of shape {g.dims(index)} is not a vector")
    return gather_slices(x, g.flatten(index), dim)


# --- functional updates of slices


def _slice_scatter(
    x: Expr, src: Expr, dim: Axis = 0, start: TorchValue = None, end: TorchValue = None, step: TorchValue = 1
) -> Expr:
    first, last = (None if v is None else tv.to_python_int(v) for v in (start, end))
    require("torch-argument", tv.to_python_int(step) > 0, f"the step of a slice must be positive, it is {step}")
    positions: range = range(tv.static_dim(x, dim))[slice(first, last, tv.to_python_int(step))]
    update_shape = [len(positions) if k == dim else n for k, n in enumerate(tv.static_dims(x))]
    update = g.broadcast_to(g.cast(src, g.dtype(x)), update_shape)
    if len(positions) == tv.static_dim(x, dim):
        return update
    row = g.reshape_along_axis(g.constant(list(positions), "int64"), dim, g.rank(x))
    return g.call_op("scatter_elements", x, g.broadcast_to(row, update_shape), update, axis=dim, reduction="update")


def _select_scatter(x: Expr, src: Expr, dim: Axis, index: TorchValue) -> Expr:
    place, extent = _normalize_index(x, dim, index), tv.static_dim(x, dim)
    text = f"index {tv.to_python_int(index)} is outside the {extent} elements of dimension {dim}"
    require("torch-index", 0 <= place < extent, text)
    slice_shape = [n for k, n in enumerate(tv.static_dims(x)) if k != dim]
    return _slice_scatter(x, g.unsqueeze(g.broadcast_to(src, slice_shape), [dim]), dim, place, place + 1)


def _copy(x: Expr, src: TorchValue) -> Expr:
    return g.broadcast_to(tv.to_tensor_expr_of_dtype(src, g.dtype(x)), tv.static_dims(x))


def _index_put_along_axis(accumulate: bool, x: Expr, dim: Axis, index: Expr, source: Expr) -> Expr:
    return _index_put(x, [*[None] * dim, g.flatten(index)], source, accumulate)


# --- one-hot, diagonals


def _one_hot(x: Expr, num_classes: int = -1) -> Expr:
    require("torch-dynamic", num_classes >= 0, "one_hot needs num_classes: the shape would depend on the values")
    hit = g.equal(g.unsqueeze(x, [g.rank(x)]), g.iota(num_classes, g.dtype(x)))
    return g.cast(hit, "int64")


def _diagonal(x: Expr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Expr:
    """Return the diagonal of two axes as a new last axis, gathered with a constant stride from the
    flattened matrix.
    """
    rank = g.rank(x)
    axes = [tv.normalize_axis_for_rank(dim1, rank), tv.normalize_axis_for_rank(dim2, rank)]
    require("torch-axis", axes[0] != axes[1], f"dim1 {dim1} and dim2 {dim2} are one dimension")
    other_axes = [k for k in range(rank) if k not in axes]
    y = g.transpose(x, [*other_axes, *axes])
    *lead, rows, columns = tv.static_dims(y)
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    first = max(offset, 0) - min(offset, 0) * columns
    places = g.constant(first + np.arange(count) * (columns + 1), "int64")
    return gather_slices(g.reshape(y, (*lead, rows * columns)), places, len(lead))


OPS: Table = {
    **tv.converter_table_by_function_name(_broadcast_tensors, _flip, _meshgrid, _roll, _squeeze, _stack, _unbind),
    **tv.converter_table_by_function_name(_narrow, _select, _slice, _unflatten, _unfold),
    **dict.fromkeys(_IDENTITY_OPERATORS, lambda x: x),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _dropout),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), swap_axes),
    **dict.fromkeys(("movedim", "moveaxis"), _movedim),
    **dict.fromkeys(("to", "type_as"), _convert_dtype),
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), _channel_shuffle),
    **dict.fromkeys(("expand", "broadcast_to"), expand),
    **dict.fromkeys(("flatten", "ravel"), _flatten),
    **dict.fromkeys(("mT", "t"), lambda x: swap_axes(x, -2, -1) if g.rank(x) > 1 else x),
    "repeat": _repeat_all_axes,
    "tile": _repeat,
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(("view", "reshape"), _view),
    **dict.fromkeys(("view_as", "reshape_as"), lambda x, other: _view(x, g.dims(other))),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad_from_last_axis),
    **{f"reflection_pad{k}d": partial(_pad_last_axes, k, "reflect") for k in (1, 2, 3)},
    **{f"replication_pad{k}d": partial(_pad_last_axes, k, "replicate") for k in (1, 2, 3)},
    "expand_as": lambda x, other: expand(x, g.dims(other)),
    "numpy_T": lambda x: g.transpose(x, range(g.rank(x))[::-1]),
    "permute": lambda x, dims: g.transpose(x, [tv.normalize_axis(d, x) for d in dims]),
    "pixel_shuffle": depth_to_space,
    "pixel_unshuffle": space_to_depth,
    **dict.fromkeys(("repeat_interleave.self_int", "repeat_interleave.self_Tensor"), _repeat_interleave),
    "repeat_interleave.Tensor": _repeated_positions,
    "as_strided": _as_strided,
    "unfold_backward": _unfold_backward,
    "tensor_split.sections": _tensor_split,
    "unsqueeze": lambda x, dim: g.unsqueeze(x, [tv.normalize_axis_for_rank(dim, g.rank(x) + 1)]),
    "view.dtype": _require_view_of_same_dtype,
    **tv.converter_table_by_function_name(_chunk, _copy, _diagonal, _gather, _index, _index_put, _one_hot),
    **tv.converter_table_by_function_name(_select_scatter, _slice_scatter, _take_along_dim),
    "embedding": _embedding,
    "index_add": partial(_index_put_along_axis, True),
    "index_copy": partial(_index_put_along_axis, False),
    "index_fill": lambda x, dim, index, value: _index_put(x, [*[None] * tv.normalize_axis(dim, x), index], value),
    "index_select": _index_select,
    "take": lambda x, index: _index(g.flatten(x), [index]),
    "tril": lambda x, diagonal=0: g.call_op("trilu", x, g.constant(diagonal, "int64"), upper=False),
    "triu": lambda x, diagonal=0: g.call_op("trilu", x, g.constant(diagonal, "int64"), upper=True),
}
