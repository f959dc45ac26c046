# SPDX-License-Identifier: Apache-2.0
"""Graph builders that move elements without arithmetic: slicing of single elements, removal of all
axes of extent 1, depth-to-space and its inverse, padding with negative widths.

select_element(x, 1, 3)                 # x[:, 3]
depth_to_space(x, 2)                    # (n, 4 * c, h, w) to (n, c, 2 * h, 2 * w)
pad_or_crop(x, [(0, 0), (-1, 2)])       # removes the first column, appends two

These functions expect channels before the spatial axes. For data in NHWC the caller transposes
before and after; a later pass merges the transposes.
"""

from collections.abc import Sequence

import numpy as np

from aotc.ir import AotcError, Dim, SymDim, equality_of_dims, is_static, require, require_static_shape
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.size_conditions import require_equal_dims


def check_and_normalize_constant_indices(indices: Expr, axis_extent: int | Sequence[int]) -> Expr:
    """Check constant indices of a gather into an axis of extent `axis_extent`, and replace negative
    ones by their equivalents counted from the start. If `axis_extent` is a sequence, the last axis
    of `indices` holds index tuples, one index per extent.

    Indices that are not constant are returned unchanged. Raises AotcError (code "graph-index") for
    a constant index that is out of range.
    """
    if not isinstance(indices, Constant):
        return indices
    extent, array = np.array(axis_extent), indices.data.astype(np.int64)
    if np.any((array < -extent) | (array >= extent)):
        raise AotcError("graph-index", "a constant index is outside the axis")
    return indices if not np.any(array < 0) else Constant(np.where(array < 0, array + extent, array))


def gather_slices(x: Expr, indices: Expr, axis: int) -> Expr:
    """Gather slices of `x` along `axis` at non-negative positions. Constant indices are checked
    against the extent, others are clipped at run time.
    """
    size = g.dims(x)[axis] if 0 <= axis < g.rank(x) else None
    places = check_and_normalize_constant_indices(indices, size) if isinstance(size, int) else indices
    return g.call_op("take", x, places, axis=axis, mode="clip")


def normalize_negative_indices(indices: Expr, extent: int | Expr) -> Expr:
    """Convert indices into an axis of extent `extent` so that negative indices, which count from
    the end, count from the start.

    extent    a number, or an int64 scalar if it is known at run time only
    """
    if isinstance(extent, int) and isinstance(indices, Constant):
        return check_and_normalize_constant_indices(indices, extent)
    if isinstance(indices, Constant) and not np.any(indices.data < 0):
        return indices
    if not isinstance(extent, int):
        indices = g.cast(indices, "int64")
    return g.where(g.less(indices, 0), g.add(indices, extent), indices)


def normalize_indices_into_axis(x: Expr, indices: Expr, axis: int) -> Expr:
    """Convert indices into an axis of a tensor, whose extent may be known at run time only, so that
    negative indices, which count from the end, count from the start.
    """
    size = g.dims(x)[axis]
    return normalize_negative_indices(indices, size if isinstance(size, int) else g.extent(x, axis))


def select_element(x: Expr, axis: int, index: int) -> Expr:
    """Return `x[..., index, ...]`: select one element of an axis and remove that axis."""
    return g.squeeze(g.strided_slice(x, [index], [index + 1], [axis]), [axis])


def squeeze_all_unit_axes(x: Expr, operator: str) -> Expr:
    """Remove all axes of `x` of extent 1, for an operator that names no axes.

    The rank of the result must be known at compile time: an axis of a size that is known at run time only stays, under
    the condition that this size is not 1. Raises AotcError (code "graph-dynamic") if such a condition cannot be stated.
    """
    sizes = g.dims(x)
    for axis, size in enumerate(sizes):
        if isinstance(size, SymDim):
            text = f"axis {axis} of the data of {operator}, which names no axes, has the extent {size}"
            require_equal_dims("graph-dynamic", equality_of_dims(size, 1), 0, text)
    return g.squeeze(x, [k for k, size in enumerate(sizes) if size == 1])


def _divide_exactly_by_block_size_power(value: int, block_size: int, power: int = 1) -> int:
    """Divide `value` by `block_size**power`, where `block_size` is a block size. Raises AotcError
    (code "graph-shape") if there is a remainder.
    """
    whole: int = block_size**power
    if block_size <= 0 or value % whole:
        divisor = (
            f"{whole}, the blocksize {block_size} to the power of {power}"
            if power > 1
            else f"the blocksize {block_size}"
        )
        raise AotcError("graph-shape", f"{value} is not a multiple of {divisor}")
    return value // whole


def _spatial_block_permutation(start: int, spatial_rank: int, blocks_first: bool) -> list[int]:
    """Return the permutation of axes that puts each spatial extent directly before the block axis
    that belongs to it; the axes before `start` stay in place. The input order is (depth, *blocks,
    *extents), or with `blocks_first` (*blocks, depth, *extents).
    """
    depth, first = (start + spatial_rank, start) if blocks_first else (start, start + 1)
    pairs = (axis for k in range(spatial_rank) for axis in (start + 1 + spatial_rank + k, first + k))
    return [*range(start), depth, *pairs]


def depth_to_space(x: Expr, block_size: int, /, spatial_rank: int = 2, blocks_first: bool = False) -> Expr:
    """Rearrange channels into blocks of the last `spatial_rank` axes, as ONNX DepthToSpace does: (...,
    depth * size**spatial, *extents) becomes (..., depth, *(size * extents)).

    blocks_first   the channel axis is split as (*blocks, depth) (mode DCR of ONNX), not as (depth,
                   *blocks) (mode CRD)
    """
    *lead, channels = (shape := g.shape(x))[: len(shape) - spatial_rank]
    extents = shape[len(lead) + 1 :]
    depth, blocks = (
        _divide_exactly_by_block_size_power(channels, block_size, spatial_rank),
        (block_size,) * spatial_rank,
    )
    parts = (*blocks, depth) if blocks_first else (depth, *blocks)
    y = g.transpose(
        g.reshape(x, (*lead, *parts, *extents)), _spatial_block_permutation(len(lead), spatial_rank, blocks_first)
    )
    return g.reshape(y, (*lead, depth, *(d * block_size for d in extents)))


def space_to_depth(x: Expr, block_size: int, /, spatial_rank: int = 2, blocks_first: bool = False) -> Expr:
    """Rearrange blocks of the spatial axes into channels: the inverse of `depth_to_space`."""
    *lead, channels = (shape := g.shape(x))[: len(shape) - spatial_rank]
    small = [_divide_exactly_by_block_size_power(d, block_size) for d in shape[len(lead) + 1 :]]
    y = g.reshape(x, (*lead, channels, *(v for d in small for v in (d, block_size))))
    y = g.transpose(y, np.argsort(_spatial_block_permutation(len(lead), spatial_rank, blocks_first)).tolist())
    return g.reshape(y, (*lead, channels * block_size**spatial_rank, *small))


def pad_or_crop(x: Expr, widths: Sequence[tuple[Dim, Dim]], value: g.Operand = 0, mode: str = "constant") -> Expr:
    """Pad each axis of `x` by its (before, after) widths in elements; a negative width removes
    elements instead.

    Raises AotcError (code "graph-pad") if negative widths remove more elements than the axis has.
    """
    if not all(map(is_static, widths)) or not is_static(g.dims(x)):
        return g.pad(x, widths, value, mode)
    known = [require_static_shape(pair) for pair in widths]
    return _pad_or_crop_known(x, [(before, after) for before, after in known], value, mode)


def _pad_or_crop_known(x: Expr, widths: Sequence[tuple[int, int]], value: g.Operand, mode: str) -> Expr:
    axes = [k for k, pair in enumerate(widths) if min(pair) < 0]
    if axes:
        begin = [max(-widths[k][0], 0) for k in axes]
        end = [g.dim(x, k) + min(widths[k][1], 0) for k in axes]
        fits = all(b <= e for b, e in zip(begin, end, strict=True))
        require("graph-pad", fits, "negative padding removes more elements than the axis has")
        x = g.strided_slice(x, begin, end, axes)
    return g.pad(x, [(max(b, 0), max(a, 0)) for b, a in widths], value, mode)
