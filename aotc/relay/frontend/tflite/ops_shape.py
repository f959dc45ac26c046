# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of operators that move elements without arithmetic.

OPS["RESHAPE"](x, [1, -1], node=node)   # g.reshape(x, (1, -1))
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import Dim, SymDim, is_static, maximum_of_dims, product_of_dims, require, require_static_shape, sum_of_dims
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import reductions
from aotc.relay.frontend.run_time_slices import largest_of_dims
from aotc.relay.frontend.size_conditions import require_at_least, require_equal_dims
from aotc.relay.frontend.slice_pad_depth_to_space import (
    check_and_normalize_constant_indices,
    gather_slices,
    squeeze_all_unit_axes,
)
from aotc.relay.frontend.tflite.integer_elementwise_functions import requantize_uint8_by_table
from aotc.relay.frontend.tflite.node import (
    KnownArray,
    KnownInts,
    SizeInput,
    Table,
    TfliteNode,
    check_quantization_support,
    has_equal_quantization,
)
from aotc.relay.frontend.tflite.strided_slice import SliceIndex, apply_slice_index
from aotc.relay.graph_api import compile_time_elements


def _convert_reshape_node(x: Expr, shape: SizeInput | None = None, *, new_shape: Any = None, node: TfliteNode) -> Expr:
    """Convert RESHAPE. The shape is an input, an option, or both; the entry -1 is any extent. The
    option [0] is the shape of a scalar, as in LiteRT.
    """
    stated = [] if new_shape == [0] else new_shape
    if shape is None:
        require("tflite-input", stated is not None, "RESHAPE has no shape")
        return g.reshape(x, stated)
    values = shape.within(0, largest_of_dims((product_of_dims(g.dims(x)), *g.dims(x))))
    # LiteRT ignores the option if the shape is an input; a computed shape may differ from it, since the
    # option was written for another batch size
    if stated and node.input_declaration(1).data is not None:
        same = len(stated) == len(values) and all(-1 in (a, b) or a == b for a, b in zip(stated, values, strict=True))
        text = f"the option new_shape {stated} contradicts the shape {values} that is an input of RESHAPE"
        require("graph-shape", same, text)
    both = 0 in values and -1 in values and not is_static(g.dims(x))
    require("graph-reshape", not both, f"the shape {values} has both 0 and -1, which is not supported")
    return g.reshape(x, values)


def _convert_squeeze_node(x: Expr, *, squeeze_dims: Any = None) -> Expr:
    rank = g.rank(x)
    axes = {g.normalize_axis(a, rank) for a in squeeze_dims or ()}
    return g.squeeze(x, sorted(axes)) if axes else squeeze_all_unit_axes(x, "SQUEEZE")


def _convert_expand_dims_node(x: Expr, axis: KnownInts) -> Expr:
    return g.unsqueeze(x, [g.normalize_axis(a, g.rank(x) + 1) for a in axis])


def _convert_transpose_node(x: Expr, order: KnownInts) -> Expr:
    axes = [g.normalize_axis(a, g.rank(x)) for a in order]
    require("graph-shape", sorted(axes) == list(range(g.rank(x))), f"{order} is not a permutation of {g.rank(x)} axes")
    return g.transpose(x, axes)


# --- concatenation and slicing


def _convert_concatenation_node(*parts: Expr, axis: int, node: TfliteNode) -> Expr:
    """Convert CONCATENATION. Quantized inputs must have the scale of the result, except uint8
    inputs, which are requantized to it.
    """
    if node.has_quantized_output and node.first_output_declaration.dtype == "uint8":
        tensors = [node.input_declaration(k) for k in range(len(parts))]
        parts = tuple(
            x
            if has_equal_quantization(t, node.first_output_declaration)
            else requantize_uint8_by_table(node.per_tensor_quantized_input(k), node.output_quantization())
            for k, (x, t) in enumerate(zip(parts, tensors, strict=True))
        )
    elif node.has_quantized_output:
        check_quantization_support(node, True)
    place = g.normalize_axis(axis, g.rank(node[0]))
    return node.apply_fused_activation(g.concat(parts, place))


def _require_stated_count(node: TfliteNode, option: str, stated: int, actual: int, subject: str) -> None:
    """Raise AotcError (code "tflite-options") unless an option that repeats a number of tensors or
    elements agrees with it.
    """
    require("tflite-options", stated == actual, f"{node.op.name} has {option} {stated}, but {actual} {subject}")


def _convert_pack_node(*parts: Expr, axis: int = 0, values_count: int, node: TfliteNode) -> Expr:
    require("tflite-input", bool(parts), "PACK has no inputs")
    _require_stated_count(node, "values_count", values_count, len(parts), "inputs")
    return g.stack(parts, g.normalize_axis(axis, g.rank(parts[0]) + 1))


def _convert_unpack_node(x: Expr, *, axis: int = 0, num: int, node: TfliteNode) -> list[Expr]:
    place = g.normalize_axis(axis, g.rank(x))
    count = g.dim(x, place)
    _require_stated_count(node, "num", num, count, f"elements along axis {axis}")
    _require_stated_count(node, "num", num, len(node.results), "outputs")
    g.check_unroll_count(count, "UNPACK")
    return [g.squeeze(part, [place]) for part in g.split(x, [1] * count, place)]


def _convert_split_node(axis: KnownInts, x: Expr, *, num_splits: int, node: TfliteNode) -> list[Expr]:
    require("tflite-input", len(axis) == 1, "SPLIT needs one axis")
    _require_stated_count(node, "num_splits", num_splits, len(node.results), "outputs")
    place = g.normalize_axis(axis[0], g.rank(x))
    size = g.dims(x)[place]
    text = f"{size} elements cannot be split into {num_splits} parts"
    require("graph-split", num_splits > 0, text)
    part = size // num_splits
    require_equal_dims("graph-split", part * num_splits, size, text)
    return g.split(x, [part] * num_splits, place)


def _convert_split_v_node(
    x: Expr, sizes: SizeInput, axis: KnownInts, *, num_splits: int, node: TfliteNode
) -> list[Expr]:
    require("tflite-input", len(axis) == 1, "SPLIT_V needs one axis")
    _require_stated_count(node, "num_splits", num_splits, len(node.results), "outputs")
    _require_stated_count(node, "num_splits", num_splits, sizes.count, "sizes")
    place = g.normalize_axis(axis[0], g.rank(x))
    size = g.dims(x)[place]
    given = sizes.within(0, largest_of_dims((size,)))
    rest = size - sum_of_dims([v for v in given if isinstance(v, SymDim) or v >= 0])
    parts: list[Dim] = [rest if v == -1 else v for v in given]
    text = f"parts {given} do not add up to {size} elements"
    fits = parts and all(isinstance(v, SymDim) or v >= 0 for v in parts) and given.count(-1) <= 1
    require("graph-split", bool(fits), text)
    if isinstance(rest, SymDim):
        require_at_least("graph-split", rest, 0, text)
    require_equal_dims("graph-split", sum_of_dims(parts), size, text)
    return g.split(x, parts, place)


def _convert_slice_node(x: Expr, begin: SizeInput, size: SizeInput) -> Expr:
    shape = g.dims(x)
    most = largest_of_dims(shape)
    first, given = begin.within(0, most), size.within(0, most)
    fits = len(first) == len(given) == len(shape)
    require("graph-shape", fits, f"a slice from {first} of {given} does not fit rank {len(shape)}")
    counts = [d - b if n == -1 else n for b, n, d in zip(first, given, shape, strict=True)]
    end = [b + n for b, n in zip(first, counts, strict=True)]
    text = f"a slice from {first} of size {given} exceeds the shape {shape}"
    for b, n, e, d in zip(first, counts, end, shape, strict=True):
        require_at_least("graph-shape", b, 0, text)
        require_at_least("graph-shape", n, 0, text)
        require_at_least("graph-shape", d, e, text)
    if is_static((*first, *counts, *shape)):
        return g.strided_slice(x, first, end, range(len(shape)))
    return g.counted_slice(x, first, counts, [1] * len(shape))


def _convert_strided_slice_node(
    x: Expr,
    begin: SizeInput,
    end: SizeInput,
    strides: KnownInts,
    *,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    offset: bool = False,
) -> Expr:
    masks = (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    # one more than an extent, and one less than its negative, stand for all that is farther away
    most = largest_of_dims(g.dims(x))
    farthest = None if most is None else most + 1
    least = -np.iinfo(np.int64).max if farthest is None else -farthest
    first, last = begin.within(least, farthest, clipped=True), end.within(least, farthest, clipped=True)
    return apply_slice_index(x, SliceIndex(first, last, strides, *masks, bool(offset)))


# --- padding and repeating


def _checked_padding_pairs(x: Expr, pads: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """Return (before, after) of each axis from TFLite's flat list before 0, after 0, before 1, ...;
    raise AotcError if the number of widths is wrong or one is negative.
    """
    fits = len(pads) == 2 * g.rank(x) and all(isinstance(w, SymDim) or w >= 0 for w in pads)
    require("graph-shape", fits, f"padding {pads} does not fit rank {g.rank(x)}")
    return list(zip(pads[::2], pads[1::2], strict=True))


def _output_zero_point_or_zero(node: TfliteNode) -> int:
    """Return the integer that represents the real number 0 in the first output of a TFLite
    operator; 0 if it is not quantized.
    """
    return int(node.first_output_declaration.zero[0]) if node.has_quantized_output else 0


def _convert_pad_node(x: Expr, pads: SizeInput, *, node: TfliteNode) -> Expr:
    return g.pad(x, _checked_padding_pairs(x, pads.within(0, None)), _output_zero_point_or_zero(node))


def _convert_padv2_node(x: Expr, pads: SizeInput, value: Expr) -> Expr:
    return g.pad(x, _checked_padding_pairs(x, pads.within(0, None)), value)


def _convert_dilate_node(x: Expr, dilations: KnownInts, value: Expr) -> Expr:
    """Convert DILATE: `dilations[k]` - 1 elements `value` between the elements along axis k."""
    fits = len(dilations) == g.rank(x) and min(dilations, default=1) > 0
    require("graph-shape", fits, f"dilations {dilations} do not fit rank {g.rank(x)}")
    return dilated(x, dilations, value)


def dilated(x: Expr, dilations: Sequence[int], value: Expr) -> Expr:
    """Return `x` with `dilations[k]` - 1 elements `value` between the elements along axis k."""
    for axis, step in enumerate(dilations):
        count = g.dim(x, axis)
        size = max(0, (count - 1) * step + 1)
        g.checked_shape((*g.shape(x)[:axis], size, *g.shape(x)[axis + 1 :]), g.dtype(x), "a dilated tensor")
        if step > 1 and count > 0:
            widths = [(0, (step - 1) * (k == axis + 1)) for k in range(g.rank(x) + 1)]
            spread = g.pad(g.unsqueeze(x, (axis + 1,)), widths, g.reshape(value, ()))
            joined = g.reshape(spread, (*g.shape(x)[:axis], count * step, *g.shape(x)[axis + 1 :]))
            x = g.strided_slice(joined, [0], [size], [axis])
    return x


def _convert_mirror_pad_node(x: Expr, pads: KnownInts, *, mode: int = 0) -> Expr:
    require("tflite-options", mode in (0, 1), f"mode {mode} is not supported (0, REFLECT, and 1, SYMMETRIC, are)")
    name, widths = ("REFLECT", "SYMMETRIC")[mode], iter(pads)
    _checked_padding_pairs(x, pads)
    pairs = list(zip(widths, widths, strict=True))
    text = f"padding {pads} in the mode {name} is wider than data of shape {g.dims(x)}"
    for pair, d in zip(pairs, g.dims(x), strict=True):
        if any(pair):
            require_at_least("graph-shape", d, max(pair) + (name == "REFLECT"), text)
    return g.call_op("nn.mirror_pad", x, mode=name, pad_width=tuple(pairs))


def _convert_tile_node(x: Expr, reps: SizeInput) -> Expr:
    repeats = reps.within(0, None)
    fits = len(repeats) == g.rank(x) and all(isinstance(r, SymDim) or r >= 0 for r in repeats)
    require("graph-shape", fits, f"{repeats} repeats do not fit rank {g.rank(x)}")
    return g.call_op("tile", x, reps=tuple(repeats))


def _convert_broadcast_to_node(x: Expr, shape: SizeInput) -> Expr:
    return g.broadcast_to(x, g.checked_dims(shape.within(0, None), g.dtype(x), "the result of BROADCAST_TO"))


def _convert_broadcast_args_node(a: SizeInput, b: SizeInput, *, node: TfliteNode) -> Expr:
    if a.known() is not None and b.known() is not None:
        shapes = [tuple(v.known() or ()) for v in (a, b)]
        return g.constant(np.asarray(np.broadcast_shapes(*shapes), g.dtype(node[0]).numpy))
    # one of two sizes that are not known is 1, or both are equal
    rank = max(a.count, b.count)
    first, second = (
        g.concat([g.full(1, (rank - v.count,), str(g.dtype(node[k]))), node[k]], 0) for k, v in enumerate((a, b))
    )
    return g.where(g.equal(first, 1), second, first)


# --- rearranging blocks


def checked_nhwc_dims(x: Expr) -> tuple[Dim, ...]:
    """Return batch, height, width and channels of `x`. Raises AotcError (code "graph-rank") unless
    its rank is 4.
    """
    require("graph-rank", g.rank(x) == 4, f"data of rank {g.rank(x)} is not supported (4 is)")
    return g.dims(x)


def _convert_space_to_depth_node(x: Expr, *, block_size: int) -> Expr:
    n, h, w, c = checked_nhwc_dims(x)
    b = block_size
    text = f"an image of {h} x {w} is not a multiple of the block size {b}"
    require("graph-shape", b > 0, text)
    for d in (h, w):
        require_equal_dims("graph-shape", d % b, 0, text)
    y = g.reshape(x, (n, h // b, b, w // b, b, c))
    return g.reshape(g.transpose(y, (0, 1, 3, 2, 4, 5)), (n, h // b, w // b, b * b * c))


def _convert_depth_to_space_node(x: Expr, *, block_size: int) -> Expr:
    n, h, w, _ = checked_nhwc_dims(x)
    b, c = block_size, g.dim(x, 3)
    require("graph-shape", b > 0 and c % (b * b) == 0, f"{c} channels are not a multiple of {b} * {b}")
    y = g.reshape(x, (n, h, w, b, b, c // (b * b)))
    return g.reshape(g.transpose(y, (0, 1, 3, 2, 4, 5)), (n, h * b, w * b, c // (b * b)))


def _convert_space_to_batch_nd_node(x: Expr, block: KnownInts, pads: KnownInts, *, node: TfliteNode) -> Expr:
    rest = g.rank(x) - 1 - len(block)
    require("graph-shape", rest >= 0 and min(block, default=1) > 0, f"blocks {block} do not fit {g.dims(x)}")
    y = g.pad(x, _checked_padding_pairs(x, [0, 0, *pads, *(0, 0) * rest]), _output_zero_point_or_zero(node))
    n, *spatial = g.dims(y)[: len(block) + 1]
    for d, b in zip(spatial, block, strict=True):
        require_equal_dims("graph-shape", d % b, 0, f"blocks {block} do not fit {spatial}")
    pairs = [v for d, b in zip(spatial, block, strict=True) for v in (d // b, b)]
    tail = g.dims(y)[len(block) + 1 :]
    y = g.reshape(y, (n, *pairs, *tail))
    inner, outer = range(2, 2 * len(block) + 1, 2), range(1, 2 * len(block), 2)
    last = range(2 * len(block) + 1, 2 * len(block) + 1 + rest)
    y = g.transpose(y, (*inner, 0, *outer, *last))
    return g.reshape(y, (n * math.prod(block), *pairs[::2], *tail))


def _convert_batch_to_space_nd_node(x: Expr, block: KnownInts, crops: KnownInts) -> Expr:
    n, *spatial = g.dims(x)[: len(block) + 1]
    tail, count = g.dims(x)[len(block) + 1 :], math.prod(block)
    fits = len(spatial) == len(block) and min(block, default=1) > 0 and len(crops) == 2 * len(block)
    text = f"blocks {block} and crops {crops} do not fit {g.dims(x)}"
    require("graph-shape", fits, text)
    require_equal_dims("graph-shape", n % count, 0, text)
    y = g.reshape(x, (*block, n // count, *spatial, *tail))
    k = len(block)
    order = [k, *(v for i in range(k) for v in (k + 1 + i, i)), *range(2 * k + 1, 2 * k + 1 + len(tail))]
    full = [d * b for d, b in zip(spatial, block, strict=True)]
    y = g.reshape(g.transpose(y, order), (n // count, *full, *tail))
    begin, end = crops[::2], [d - c for d, c in zip(full, crops[1::2], strict=True)]
    text = f"crops {crops} leave an empty image of {full}"
    require("graph-shape", min(crops, default=0) >= 0, text)
    for b, e in zip(begin, end, strict=True):
        require_at_least("graph-shape", e, b, text)
    return g.strided_slice(y, begin, end, range(1, k + 1))


# --- gather and scatter


def _convert_gather_node(x: Expr, indices: Expr, *, axis: int = 0, batch_dims: int = 0) -> Expr:
    place = g.normalize_axis(axis, g.rank(x))
    if not batch_dims:
        return gather_slices(x, indices, place)
    return g.call_op(
        "take", x, _checked_constant_indices(x, indices, place), batch_dims=batch_dims, axis=place, mode="clip"
    )


def _checked_constant_indices(x: Expr, indices: Expr, axis: int) -> Expr:
    """Return indices into an axis; constant ones are checked against the extent if that is known."""
    size = g.dims(x)[axis]
    return check_and_normalize_constant_indices(indices, size) if isinstance(size, int) else indices


def _move_index_tuples_to_first_axis(indices: Expr) -> Expr:
    """Transpose index tuples from the last axis to the first."""
    last = g.rank(indices) - 1
    return g.transpose(indices, (last, *range(last)))


def _convert_gather_nd_node(x: Expr, indices: Expr) -> Expr:
    depth = g.dim(indices, -1, "the indices")
    sizes = g.dims(x)[:depth]
    require(
        "graph-index", len(sizes) == depth, f"index tuples of {depth} numbers are longer than the rank of {g.dims(x)}"
    )
    return g.call_op(
        "gather_nd",
        x,
        _move_index_tuples_to_first_axis(
            check_and_normalize_constant_indices(indices, require_static_shape(sizes)) if is_static(sizes) else indices
        ),
        batch_dims=0,
    )


def _convert_densify_node(x: Expr) -> Expr:
    """Convert DENSIFY, whose input is a sparse constant, which is dense when the file is read."""
    return x


def _convert_scatter_nd_node(indices: Expr, updates: Expr, shape: KnownInts, *, node: TfliteNode) -> Expr:
    """Convert SCATTER_ND; quantized tensors must have the zero point 0, since both interpreters
    start from the integer 0 and add integers unchanged.
    """
    centered = not node.has_quantized_output or _output_zero_point_or_zero(node) == 0
    require("tflite-quant", centered, "SCATTER_ND of integers needs the zero point 0")
    sizes = g.checked_shape(shape, g.dtype(updates), "the result of SCATTER_ND")
    zeros, depth = g.full(0, sizes, g.dtype(updates)), g.dim(indices, -1, "the indices")
    places = _move_index_tuples_to_first_axis(check_and_normalize_constant_indices(indices, sizes[:depth]))
    return g.call_op("scatter_nd", zeros, places, updates, mode="add")


def _convert_embedding_lookup_node(ids: Expr, table: Expr) -> Expr:
    return gather_slices(table, ids, 0)


def _convert_reverse_v2_node(x: Expr, axes: KnownInts) -> Expr:
    for a in axes:
        x = g.call_op("reverse", x, axis=g.normalize_axis(a, g.rank(x)))
    return x


def _convert_reverse_sequence_node(x: Expr, lengths: Expr, *, seq_dim: int = 0, batch_dim: int = 0) -> Expr:
    return g.call_op("reverse_sequence", x, lengths, seq_axis=seq_dim, batch_axis=batch_dim)


def _convert_topk_v2_node(x: Expr, k: KnownInts) -> list[Expr]:
    require("tflite-input", len(k) == 1, "TOPK_V2 needs one k")
    values, places = reductions.top_k(x, k[0], g.rank(x) - 1, False)
    return [values, g.cast(places, "int32")]


def _convert_one_hot_node(indices: Expr, depth: KnownInts, on: Expr, off: Expr, *, axis: int = -1) -> Expr:
    fits = len(depth) == 1 and depth[0] >= 0
    require("tflite-input", fits, f"ONE_HOT has the depth {depth}; it needs one that is not negative")
    rank = g.rank(indices) + 1
    place = g.normalize_axis(axis, rank)
    positions = g.reshape_along_axis(g.iota(depth[0], str(g.dtype(indices))), place, rank)
    hot = g.equal(g.unsqueeze(indices, [place]), positions)
    return g.where(hot, g.reshape(on, ()), g.reshape(off, ()))


# --- constants and ranges


def _convert_shape_node(x: Expr, *, node: TfliteNode) -> Expr:
    dtype = node.first_output_declaration.dtype
    if is_static(g.dims(x)):
        return g.constant(g.shape(x), dtype)
    return g.call_op("shape_of", x, dtype=str(dtype))


def _convert_rank_node(x: Expr) -> Expr:
    return g.constant(g.rank(x), "int32")


def _convert_fill_node(shape: SizeInput, value: Expr) -> Expr:
    return g.broadcast_to(
        g.reshape(value, ()), g.checked_dims(shape.within(0, None), g.dtype(value), "the result of FILL")
    )


def _convert_range_node(start: SizeInput, limit: SizeInput, delta: KnownArray, *, node: TfliteNode) -> Expr:
    """Convert RANGE. Of integers that are sizes, the number of elements is a formula."""
    known = [compile_time_elements(node[k]) for k in (0, 1)]
    step = np.asarray(g.require_single_element(delta, "a number of RANGE"))
    if any(value is None for value in known) and g.dtype(node[0]).is_integer:
        return _range_of_sizes(start, limit, int(step), node)
    values = (node.compile_time_input_value(k) for k in (0, 1))
    first, last = (np.asarray(g.require_single_element(v, "a number of RANGE")) for v in values)
    finite = bool(np.isfinite([first, last, step]).all()) and step != 0
    require("graph-shape", finite, f"a range from {first} to {last} with step {step} is not possible")
    count = max(0, math.ceil((float(last) - float(first)) / float(step)))
    g.check_materialization_cost((count,), str(first.dtype), "RANGE")
    return g.constant((first + np.arange(count).astype(first.dtype) * step).astype(first.dtype))


def _range_of_sizes(start: SizeInput, limit: SizeInput, step: int, node: TfliteNode) -> Expr:
    """Return a range of integers whose ends are known at run time only."""
    require("graph-shape", start.count == limit.count == 1 and step != 0, f"a range with step {step} is not possible")
    (first,), (last,) = start.within(None, None), limit.within(None, None)
    span = last - first if step > 0 else first - last
    count = maximum_of_dims(((span + (abs(step) - 1)) // abs(step), 0))
    dtype = str(g.dtype(node[0]))
    steps = g.mul(g.cast(g.positions_up_to(count), dtype), step)
    return steps if first == 0 else g.add(steps, g.reshape(node[0], ()))


OPS: Table = {
    "BATCH_TO_SPACE_ND": _convert_batch_to_space_nd_node,
    "BROADCAST_ARGS": _convert_broadcast_args_node,
    "BROADCAST_TO": _convert_broadcast_to_node,
    "CONCATENATION": _convert_concatenation_node,
    "DENSIFY": _convert_densify_node,
    "DEPTH_TO_SPACE": _convert_depth_to_space_node,
    "DILATE": _convert_dilate_node,
    "EMBEDDING_LOOKUP": _convert_embedding_lookup_node,
    "EXPAND_DIMS": _convert_expand_dims_node,
    "FILL": _convert_fill_node,
    "GATHER": _convert_gather_node,
    "GATHER_ND": _convert_gather_nd_node,
    "MIRROR_PAD": _convert_mirror_pad_node,
    "ONE_HOT": _convert_one_hot_node,
    "PACK": _convert_pack_node,
    "PAD": _convert_pad_node,
    "PADV2": _convert_padv2_node,
    "RANGE": _convert_range_node,
    "RANK": _convert_rank_node,
    "RESHAPE": _convert_reshape_node,
    "REVERSE_SEQUENCE": _convert_reverse_sequence_node,
    "REVERSE_V2": _convert_reverse_v2_node,
    "SCATTER_ND": _convert_scatter_nd_node,
    "SHAPE": _convert_shape_node,
    "SLICE": _convert_slice_node,
    "SPACE_TO_BATCH_ND": _convert_space_to_batch_nd_node,
    "SPACE_TO_DEPTH": _convert_space_to_depth_node,
    "SPLIT": _convert_split_node,
    "SPLIT_V": _convert_split_v_node,
    "SQUEEZE": _convert_squeeze_node,
    "STRIDED_SLICE": _convert_strided_slice_node,
    "TILE": _convert_tile_node,
    "TOPK_V2": _convert_topk_v2_node,
    "TRANSPOSE": _convert_transpose_node,
    "UNPACK": _convert_unpack_node,
}
#: Operators whose converters compute with quantized integers.
INTEGERS: Final = frozenset({"BROADCAST_ARGS", "CONCATENATION", "RANK", "SHAPE"})
#: Operators that move quantized integers unchanged.
MOVES: Final = frozenset(OPS) - INTEGERS - {"DILATE", "RANGE"}
