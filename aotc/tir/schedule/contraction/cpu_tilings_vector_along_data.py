# SPDX-License-Identifier: Apache-2.0
"""CPU tilings with vectors along the data: 1x1 and depthwise convolutions, few input channels. From
a TilingRequest, candidates.

Vectors run along an axis of the data (image columns), and elements of the weights are broadcast.

    for 4 channels: for 3 vectors of columns: acc[3][4]; for k: acc[i][j] += x[i] * w[j]
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir import frozen
from aotc.tir import linear_form, te
from aotc.tir.schedule.contraction import tile_segments
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ChannelSplit,
    FusedDataAxes,
    are_indices_independent_of_var,
    fuse_data_axes,
    row_major_address,
)
from aotc.tir.schedule.contraction.operand_staging import StagedOperand
from aotc.tir.schedule.contraction.register_tiling_types import (
    MultiplyAddStep,
    OutputStores,
    ReductionLoops,
    RegisterTiling,
)
from aotc.tir.schedule.contraction.tile_segments import TileAxis
from aotc.tir.schedule.contraction.tiling_completion import (
    RegisterTilingCandidate,
    TilingRequest,
    complete_tiling_candidate,
    feasible_candidates,
)
from aotc.tir.schedule.contraction.tiling_cost import CANDIDATE_VECTORS_PER_TILE


def tilings_vectorized_along_data(request: TilingRequest) -> list[RegisterTilingCandidate]:
    """Return every tiling with vectors along the data whose accumulators fit in the registers."""
    channels: list[te.Axis | None] = [a for a in reversed(request.analysis.channel) if a[1] > 1]
    sizes = [(vectors, count) for vectors in CANDIDATE_VECTORS_PER_TILE for count in (8, 6, 4, 3, 2, 1)]
    fitting = [(v, n) for v, n in sizes if (v + 1) * (n + 1) <= request.target.registers or v * n == 1]
    return feasible_candidates(
        _tiling_for_columns_and_channels, request, ((axis, v, n) for v, n in fitting for axis in channels or [None])
    )


def _tiling_for_columns_and_channels(
    request: TilingRequest, channel_axis: te.Axis | None, column_vectors: int, channel_positions: int
) -> RegisterTilingCandidate | None:
    """Return the CPU tiling with tiles of `column_vectors` vectors of columns and
    `channel_positions` positions of the channel axis; None if it is wider than the channels, if the
    data depends on the channel, or if it cannot be read.
    """
    block = request.contraction.block
    channels = 1 if channel_axis is None else channel_axis[1]
    if channel_positions > channels or (channel_axis is not None and block and block % channel_positions):
        return None
    split = ChannelSplit.split_channel_axis(request.analysis, channel_axis, channel_positions)
    if not are_indices_independent_of_var(split.a, split.lane) or not request.analysis.pixel:
        return None
    data = _tile_data_read_in_place(request, split) or _tile_data_as_padded_copy(request, split)
    needs_copy = not request.is_broadcastable_without_cast(request.b)
    weights = _weights_in_accumulator_dtype(request, split) if needs_copy else None
    if data is None or (needs_copy and weights is None):
        return None
    pixels, staging = data.pixels, data.staging
    lanes = request.lanes
    while lanes > 4 and pixels.axes[-1][1] * 2 <= lanes:
        lanes //= 2
    axes = _split_output_axes_into_tile_axes(request, split, data, column_vectors, lanes)
    if axes is None:
        return None
    x = request.operand_or_scratch_copy(request.a, pixels.position.to_expr(), staging)
    y = (
        request.operand_or_scratch_copy(request.b, row_major_address(split.b).to_expr(), None)
        if weights is None
        else weights.operand
    )
    tiling = RegisterTiling(
        axes,
        MultiplyAddStep(x, y, request.contraction.dtype, lanes),
        ReductionLoops((), data.written),
        OutputStores(request.contraction.axes, request.store, pixels.unfuse),
    )
    name = request.candidate_name("pixels", channel_axis, vectors=column_vectors, count=channel_positions)
    return complete_tiling_candidate(request, name, tiling, (staging, weights), unrolls_short_axes=True)


@frozen(eq=False)
class _TileData:
    """The data of a contraction as a tile reads it: in place, or a scratch copy.

    pixels    its axes and addresses
    staging   the copy; None for the data in place
    written   reduction axes that must be unrolled to read the copy
    """

    pixels: FusedDataAxes
    staging: StagedOperand | None = None
    written: Sequence[te.Axis] = ()


def _tile_data_read_in_place(request: TilingRequest, split: ChannelSplit) -> _TileData | None:
    """Return the data of a contraction in place if vectors can be loaded from it, else None."""
    pixels = fuse_data_axes(request.analysis, split.a, row_major_address(split.a))
    var, extent = pixels.axes[-1]
    if not all(d.inside for d in split.a):
        return None
    if request.lanes > 1 and (extent < request.lanes or pixels.position.coefficient(var) != 1):
        return None
    return _TileData(pixels)


def _tile_data_as_padded_copy(request: TilingRequest, split: ChannelSplit) -> _TileData | None:
    """Return a copy of the data with its border, columns contiguous; None if it cannot be copied."""
    *rows, (column, _) = request.analysis.pixel
    # an axis that is a dimension of the data by itself, such as the batch, stays an outer loop
    lone = {v for v, _ in rows for d in split.a if d.inside and d.index.terms == {v: 1} and d.index.const == 0}
    of_column = [d for d in split.a if column in d.variables_of_index]
    if len(of_column) != 1 or not request.can_pad_with_zeros(split.a):
        return None
    inner = (request.output_axis_vars_of_data_only - lone) | request.reduction_axis_vars
    staging = request.operand_scratch_copy(
        "rows",
        request.a,
        split.a,
        split,
        inner=inner,
        vector=column,
        slack=request.lanes,
        fill=request.contraction.fill,
    )
    if staging is None:
        return None
    position = linear_form(staging.operand.flat, split.ranges)
    if staging.phases == 1:
        return _TileData(fuse_data_axes(request.analysis, (), position), staging)
    # columns are addressed through quotients: keep the axes, and unroll the taps along them
    names = of_column[0].variables_of_index
    written = [(v, n) for v, n in request.contraction.reduce_axes if v in names]
    return _TileData(FusedDataAxes(request.analysis.pixel, position, {}), staging, written)


def _weights_in_accumulator_dtype(request: TilingRequest, split: ChannelSplit) -> StagedOperand | None:
    """Return a copy of the weights in the accumulator type; None if they cannot be copied."""
    return request.operand_scratch_copy(
        "weights", request.b, split.b, split, inner={split.tile, split.lane} | request.reduction_axis_vars
    )


def _split_output_axes_into_tile_axes(
    request: TilingRequest, split: ChannelSplit, data: _TileData, max_vectors: int, lanes: int
) -> list[TileAxis] | None:
    """Return the loops of a tiling; tiles have at most `max_vectors` vectors, or fewer if that
    divides the columns more evenly. Return None if a tile is wider than the image.
    """
    staging, axes = data.staging, data.pixels.axes
    column, extent = axes[-1]
    vectors = -(-extent // lanes)
    if max_vectors > vectors:
        return None
    vectors_per_tile = -(-vectors // -(-vectors // max_vectors))
    segments = tile_segments.tiles_of_vectors(
        extent, vectors_per_tile, lanes, staging is not None, merges_last_tile=False
    )
    inner = [tile_segments.untiled_axis(v, n) for v, n in axes[:-1]]
    var, rows = axes[-2:][0]
    # True if there is a separate copy for each position of this axis
    copied = staging is not None and var in staging.needs
    if split.size == 1 and len(axes) > 1 and not copied:
        budget = max(1, request.target.registers // 2 // vectors_per_tile)
        inner[-1] = TileAxis(var, rows, tile_segments.evenly_sized_tiles(rows, min(budget, rows)), "x")
    inner.append(TileAxis(column, extent, segments, "x", lanes))
    outer_axes = request.output_axes_outside_of_tile(split.axis)
    if split.axis is None:
        return [*outer_axes, *inner]
    var, extent = split.axis
    channel = TileAxis(
        var,
        extent,
        tile_segments.tiles_with_smaller_last(extent, split.size),
        "y",
        1,
        split.tile_and_lane_vars_and_size,
    )
    if (staging is not None and split.tile in staging.needs) or request.b.nbytes > request.target.l2 // 2:
        return [*outer_axes, channel, *inner]
    return [*outer_axes, *inner, channel]
