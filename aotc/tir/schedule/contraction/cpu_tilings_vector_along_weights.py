# SPDX-License-Identifier: Apache-2.0
"""CPU tilings with vectors along the weights, for convolutions and matrix products: from a
TilingRequest, candidates.

Vectors run along an axis of the weights (output channels), and elements of the data are broadcast.
In depthwise convolutions with the channels last, data and weights have that axis in common, and
both are read as vectors.

    for tile of 32 channels: for 14 columns: acc[2][14]; for k: acc[i][j] += w[i] * x[j]
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotc.ir import frozen
from aotc.tir import Expr, Var, as_expr, linear_form, substitute, te
from aotc.tir.schedule.contraction import contraction_index_analysis, tile_segments
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    AddressedOperand,
    ChannelSplit,
    FusedDataAxes,
    OperandDimension,
    are_indices_independent_of_var,
    fuse_data_axes,
    row_major_address,
    variables_of_dimensions,
)
from aotc.tir.schedule.contraction.operand_staging import StagedOperand, pack_operand_in_axis_order
from aotc.tir.schedule.contraction.register_tiling_types import (
    MultiplyAddStep,
    OutputStores,
    ReductionLoops,
    RegisterTiling,
)
from aotc.tir.schedule.contraction.tile_loop_nest import estimated_multiply_add_code_size
from aotc.tir.schedule.contraction.tile_segments import BorderSignature, TileAxis
from aotc.tir.schedule.contraction.tiling_completion import (
    RegisterTilingCandidate,
    TilingRequest,
    complete_tiling_candidate,
    feasible_candidates,
)
from aotc.tir.schedule.contraction.tiling_cost import CANDIDATE_VECTORS_PER_TILE, max_tile_columns


def tilings_vectorized_along_weights(request: TilingRequest) -> list[RegisterTilingCandidate]:
    """Return the tilings with vectors along the weights, for the first axis of the weights that
    permits any.
    """
    c = request.contraction
    axes = [a for a in c.axes if a[0] is c.lane] if c.lane is not None else list(reversed(request.analysis.channel))
    for axis in axes:
        if request.run_time_extent(axis[0]) is not None:
            continue
        lanes = request.lanes if not c.block else math.gcd(request.lanes, c.block)
        while lanes > max(4, axis[1]) and not are_indices_independent_of_var(request.analysis.a, axis[0]):
            lanes //= 2
        if request.run_time is not None and not request.run_time.are_weights_static and not c.block:
            # no copy pads these weights, so that a vector must fit
            while lanes > max(4, axis[1]):
                lanes //= 2
            if lanes > axis[1]:
                continue
        whole = math.gcd(lanes, axis[1])
        lengths = {lanes, whole} if request.group is not None and whole in request.kernel.lanes else {lanes}
        tiles = ((axis, vectors, length) for length in sorted(lengths) for vectors in CANDIDATE_VECTORS_PER_TILE)
        if candidates := feasible_candidates(_tiling_for_weight_vectors, request, tiles):
            return candidates
    return []


@frozen(eq=False)
class _TileAttempt:
    """A tile of `vectors` vectors of `lanes` elements along `axis` of the weights; `is_vector_along_weights` as in
    Product.
    """

    req: TilingRequest
    axis: te.Axis
    vectors: int
    lanes: int
    split: ChannelSplit
    is_vector_along_weights: bool

    @property
    def are_weights_contiguous(self) -> bool:
        """True if the weights of a vector are contiguous."""
        return self.req.group is not None or row_major_address(self.split.b).coefficient(self.split.lane) == 1

    def multiply_add_step(self, x: AddressedOperand, y: AddressedOperand) -> MultiplyAddStep:
        """Return the operation of a reduction step of this tile, on weights `x` and data `y`."""
        c = self.req.contraction
        return MultiplyAddStep(x, y, c.dtype, self.lanes, self.is_vector_along_weights, c.fill, self.req.kernel)


def _tiling_for_weight_vectors(
    request: TilingRequest, axis: te.Axis, vectors: int, lanes: int
) -> RegisterTilingCandidate | None:
    """Return the CPU tiling for a tile of `vectors` vectors of weights; None if it is wider than
    the weights, or if an operand does not permit it.
    """
    block, size = request.contraction.block, vectors * lanes
    whole = block and block % size and not (request.group is not None and size % block == 0)
    if vectors > max(1, -(-axis[1] // lanes)) or whole:
        return None
    split = ChannelSplit.split_channel_axis(request.analysis, axis, size)
    along = not are_indices_independent_of_var(split.a, split.lane)
    attempt = _TileAttempt(request, axis, vectors, lanes, split, along)
    if along:
        lane = split.lane
        alone = all(
            d.index.coefficient(lane) == d.stride == 1 or are_indices_independent_of_var([d], lane) for d in split.a
        )
        if not alone or vectors > 1 or lanes == 1 or request.group is not None:
            return None
    if block and lanes > 1 and not attempt.are_weights_contiguous:
        return None
    return _preferred_tiling_for_tile_size(attempt)


def _preferred_tiling_for_tile_size(attempt: _TileAttempt) -> RegisterTilingCandidate | None:
    """Return the best tiling for one tile size, None if there is none.

    Tried in order: the data itself in tiles of several image rows; if their borders take too much
    code, tiles of one row, or a padded copy of the data, whichever is cheaper.
    """
    ready = attempt.is_vector_along_weights or _is_data_broadcastable_in_place(attempt.req, attempt.split)
    direct_tiling = _build_tiling_of_data_or_padded_copy(attempt, None) if ready else None
    if attempt.is_vector_along_weights:
        return _cheaper_of_direct_and_padded_tiling(
            attempt, direct_tiling or _build_tiling_of_data_or_padded_copy(attempt, None, tiles_rows=False)
        )
    if direct_tiling is not None:
        return direct_tiling
    single = _build_tiling_of_data_or_padded_copy(attempt, None, tiles_rows=False) if ready else None
    copy = _padded_data_copy(attempt)
    padded = None if copy is None else _build_tiling_of_data_or_padded_copy(attempt, copy)
    if padded is None:
        return single
    return single if single is not None and single.cost < padded.cost else padded


def _cheaper_of_direct_and_padded_tiling(
    attempt: _TileAttempt, direct: RegisterTilingCandidate | None
) -> RegisterTilingCandidate | None:
    """Return the cheaper one of a tiling of the data with channels last and a tiling of a padded
    copy.

    Positions map to few sets of the L1 cache if their distance, the number of channels, is a
    multiple of a large power of two. If a tile reads many more cache lines than these sets hold,
    products wait for the L2 cache. In the copy, the vectors of neighboring positions are contiguous
    and use all sets.
    """
    if direct is None or not _does_tile_data_exceed_its_l1_cache_sets(attempt, direct.tiling):
        return direct
    direct = replace(direct, cost=direct.cost * attempt.req.target.tiles.evicted_data)
    padded = _padded_data_copy(attempt)
    fits = padded is not None and padded.operand.buffer.nbytes <= attempt.req.target.l2 // 4
    copied = _build_tiling_of_data_or_padded_copy(attempt, padded) if fits else None
    return copied if copied is not None and copied.cost < direct.cost else direct


def _does_tile_data_exceed_its_l1_cache_sets(attempt: _TileAttempt, tiling: RegisterTiling) -> bool:
    """Return True if a tile reads more cache lines than the L1 cache sets that they map to can
    hold.
    """
    target, dims, dtype = attempt.req.target, attempt.split.a, attempt.req.a.dtype
    tile = {axis.var: max(s.size for s in axis.segments) for axis in tiling.levels if axis.role == "y"}
    if not tile or _data_bytes_read_by_output_positions(attempt, tile) <= target.l1:
        return False
    position = row_major_address(dims)
    pitch = min(abs(position.coefficient(var) or 0) for var in tile) * dtype.itemsize
    available_lines = target.l1_ways * (target.l1_stride // math.gcd(pitch, target.l1_stride))
    lines = contraction_index_analysis.estimated_elements_read(
        dims, {**dict(attempt.req.contraction.reduce_axes), **tile}
    )
    return pitch > target.line and lines > target.tiles.evicting_lines * available_lines


def _is_data_broadcastable_in_place(request: TilingRequest, split: ChannelSplit) -> bool:
    """Return True if the data can be broadcast from its buffer, apart from its borders."""
    if request.contraction.fill and not request.target.bare and not all(d.inside for d in split.a):
        return False
    if request.group is None:
        return request.is_broadcastable_without_cast(request.a)
    whole = all(d.inside for d in split.a if request.group in d.variables_of_index)
    return whole and row_major_address(split.a).coefficient(request.group) == 1


def _padded_data_copy(attempt: _TileAttempt) -> StagedOperand | None:
    """Return a copy of the data in scratch memory, with its border of zeros (or `fill`); None if
    the data cannot be copied, or not be padded.
    """
    req, split = attempt.req, attempt.split
    if req.run_time is not None or not req.can_pad_with_zeros(split.a):
        return None
    inner, vector = req.output_axis_vars_of_data_only | req.reduction_axis_vars, req.group
    if attempt.is_vector_along_weights:
        inner, vector = inner | {split.lane}, split.lane
    how = {} if vector is None else {"vector": vector}
    return req.operand_scratch_copy("padded", req.a, split.a, split, inner=inner, fill=req.contraction.fill, **how)


def _build_tiling_of_data_or_padded_copy(
    attempt: _TileAttempt, padded_copy: StagedOperand | None, tiles_rows: bool = True
) -> RegisterTilingCandidate | None:
    """Return the candidate tiling for the data or its padded copy; None if the data's borders take
    too much code, or if the weights cannot be packed.

    `tiles_rows` allows tiles of several rows of an image.
    """
    req, split = attempt.req, attempt.split
    dims = split.a if padded_copy is None else ()
    position = (
        row_major_address(split.a) if padded_copy is None else linear_form(padded_copy.operand.flat, split.ranges)
    )
    pixels = fuse_data_axes(req.analysis, dims, position, () if req.run_time is None else req.run_time.unfusible_axes)
    tiles = _register_tile_sizes(attempt, pixels, tiles_rows)
    open_dims = [d for d in dims if not d.inside]
    borders = [d for d in open_dims if d.variables_of_index & set(tiles)]
    taps = [(v, n) for v, n in req.contraction.reduce_axes if v in variables_of_dimensions(borders)]
    written = attempt.vectors * math.prod(tiles.values()) * math.prod(n for _, n in taps)
    long = written > 2 * req.target.budget.unrolled
    if borders and (
        long or not all(_is_border_known_statically(d, set(tiles), req.reduction_axis_vars) for d in borders)
    ):
        return None
    if taps and req.must_sum_floats_in_reduction_order:
        before = list(req.contraction.reduce_axes[: req.contraction.reduce_axes.index(taps[-1]) + 1])
        if len(before) > len(taps) and not attempt.is_vector_along_weights:
            return None
        taps = before
    needs_panel = _needs_weight_panel(attempt, math.prod(n for _, n in pixels.axes))
    panel = _pack_weights_into_panel(attempt) if needs_panel else None
    if needs_panel and panel is None:
        return None
    weights = req.weight_address(split.b) if panel is None else linear_form(panel.operand.flat, {}).to_expr()
    x = req.operand_or_scratch_copy(req.b, weights, panel)
    y = req.operand_or_scratch_copy(req.a, _data_address(req, split, pixels, padded_copy), padded_copy)
    tiling = RegisterTiling(
        _order_tile_loops(attempt, _split_data_axes_into_tiles(req, pixels, tiles, borders, taps), panel, padded_copy),
        attempt.multiply_add_step(x, y),
        ReductionLoops(
            (),
            (),
            taps,
            borders,
            [d for d in open_dims if d not in borders],
            ordered=req.must_sum_floats_in_reduction_order,
        ),
        OutputStores(req.contraction.axes, req.store, pixels.unfuse),
    )
    parameters = {"vectors": attempt.vectors, "lanes": attempt.lanes}
    name = req.candidate_name("lanes", attempt.axis, **parameters)
    candidate = complete_tiling_candidate(req, name, tiling, (padded_copy, panel))
    if candidate is None or not borders:
        return candidate
    return None if estimated_multiply_add_code_size(candidate.tiling) > req.target.budget.written else candidate


def _data_address(
    request: TilingRequest, split: ChannelSplit, pixels: FusedDataAxes, padded_copy: StagedOperand | None
) -> Expr:
    """Return the address of an element of the data, or of its padded copy, in the fused axes."""
    if request.run_time is None or padded_copy is not None:
        return pixels.position.to_expr()
    fused = request.output_axis_vars_of_data_only - {var for var, _ in pixels.axes}
    return substitute(request.data_address(split.a), dict.fromkeys(fused, as_expr(0)))


def _register_tile_sizes(attempt: _TileAttempt, pixels: FusedDataAxes, tiles_rows: bool) -> dict[Var, int]:
    """Return the register-tile size along each tiled axis of the data: columns, and rows if an
    image is narrow.
    """
    target = attempt.req.target
    budget = max_tile_columns(target, attempt.vectors, attempt.lanes, attempt.req.step_kernel)
    wide = [(v, n) for v, n in pixels.axes if n > 1]
    if not wide:
        return {}
    column, extent = wide[-1]
    if attempt.req.run_time_extent(column) is not None:
        most = tile_segments.MAX_RUN_TIME_TILE_POSITIONS
        if attempt.vectors == 1:
            most = tile_segments.MAX_RUN_TIME_POSITIONS_OF_ONE_VECTOR
        return {column: min(budget, most)}
    sizes = {column: min(budget, extent)}
    if attempt.is_vector_along_weights and len(wide) > 1:
        fitting = (
            n
            for n in range(sizes[column], target.tiles.narrowed_columns, -1)
            if _data_bytes_read_by_output_positions(attempt, {column: n}) <= target.l1
        )
        sizes[column] = next(fitting, sizes[column])
    is_row_known = len(wide) > 1 and attempt.req.run_time_extent(wide[-2][0]) is None
    if tiles_rows and is_row_known and extent * 2 <= budget:
        sizes[wide[-2][0]] = min(budget // extent, wide[-2][1])
    return sizes


def _is_border_known_statically(dim: OperandDimension, tiled_vars: set[Var], reduction_vars: set[Var]) -> bool:
    """Return True if a border is known at code generation: its index depends on one tiled axis and
    reduction axes only.
    """
    used = dim.variables_of_index
    plain = all(isinstance(t, Var) for t in dim.index.terms)
    return plain and len(used & tiled_vars) == 1 and used <= tiled_vars | reduction_vars


def _needs_weight_panel(attempt: _TileAttempt, rows: int) -> bool:
    """Return True if the weights must be copied, or are better copied where `rows` rows of data use
    them, so that the lanes are contiguous.
    """
    req = attempt.req
    if req.contraction.block:
        return False
    if req.group is not None:
        return True
    if req.run_time is not None and not req.run_time.are_weights_static:
        return attempt.lanes > 1 and not attempt.are_weights_contiguous
    few_rows = rows < req.target.tiles.min_panel_rows or attempt.is_vector_along_weights
    in_place = attempt.are_weights_contiguous and few_rows and attempt.axis[1] >= attempt.lanes
    return attempt.lanes > 1 and not in_place


def _pack_weights_into_panel(attempt: _TileAttempt) -> StagedOperand | None:
    """Return a copy of the weights in which the lanes are contiguous; None if they cannot be copied."""
    req, split = attempt.req, attempt.split
    if req.run_time is not None and not req.run_time.are_weights_static:
        return None
    if req.group is not None:
        axes = ((split.lane, split.size), (req.group, req.contraction.group))
        return pack_operand_in_axis_order("panel", req.b, split.b, (*req.contraction.reduce_axes, *axes))
    if attempt.is_vector_along_weights:
        return None
    inner = {split.lane} | req.reduction_axis_vars
    return req.operand_scratch_copy("panel", req.b, split.b, split, inner=inner, vector=split.lane, clipped=True)


def _split_data_axes_into_tiles(
    request: TilingRequest,
    pixels: FusedDataAxes,
    tile_sizes: Mapping[Var, int],
    borders: Sequence[OperandDimension],
    taps: Sequence[te.Axis],
) -> list[TileAxis]:
    """Return the axes that only the data depends on, split into tiles; tiled axes are innermost."""
    tile_axes: list[TileAxis] = []
    for var, extent in pixels.axes:
        run_time_extent = request.run_time_extent(var)
        if var not in tile_sizes:
            part = request.part_of_longer_axis(var)
            tile_axes.append(tile_segments.untiled_axis(var, extent, run_time_extent, part))
            continue
        if run_time_extent is not None:
            segments = (tile_segments.whole_tiles(extent, tile_sizes[var]),)
            tile_axes.append(TileAxis(var, extent, segments, "y", run_time_extent=run_time_extent))
            continue
        signature = BorderSignature.signature_for_axis(borders, var, taps)
        tile_axes.append(
            TileAxis(
                var,
                extent,
                tile_segments.even_tiles_grouped_by_border_signature(extent, tile_sizes[var], signature),
                "y",
            )
        )
    return sorted(tile_axes, key=lambda axis: axis.role == "y")


def _order_tile_loops(
    attempt: _TileAttempt, data_axes: Sequence[TileAxis], panel: StagedOperand | None, padded_copy: StagedOperand | None
) -> list[TileAxis]:
    """Return the loops of a tiling; the weights' loop is outside of the data's if the weights are
    copied or exceed the cache.
    """
    req, (var, extent) = attempt.req, attempt.axis
    whole, merge = bool(req.contraction.block) or panel is not None, var is not req.contraction.axes[-1][0]
    segments = tile_segments.tiles_of_vectors(extent, attempt.vectors, attempt.lanes, whole, merge)
    lane = TileAxis(var, extent, segments, "x", attempt.lanes, attempt.split.tile_and_lane_vars_and_size)
    if attempt.is_vector_along_weights and padded_copy is None and len(data_axes) > 1:
        return [
            *req.output_axes_outside_of_tile(attempt.axis),
            *data_axes[:-2],
            *_cache_friendly_loop_order(attempt, lane, *data_axes[-2:]),
        ]
    early = panel is not None or (padded_copy is not None and attempt.split.tile in padded_copy.needs)
    if early or req.b.nbytes > req.target.l2 // 2 or not data_axes:
        return [*req.output_axes_outside_of_tile(attempt.axis), lane, *data_axes]
    return [*req.output_axes_outside_of_tile(attempt.axis), *data_axes[:-1], lane, data_axes[-1]]


def _cache_friendly_loop_order(
    attempt: _TileAttempt, lane_axis: TileAxis, row_axis: TileAxis, column_axis: TileAxis
) -> list[TileAxis]:
    """Return the loops of a tiling in an order in which the data of one row of tiles stays in the
    first-level cache.
    """
    row, tile = ({axis.var: max(s.size for s in axis.segments)} for axis in (row_axis, column_axis))
    l1 = attempt.req.target.l1
    if _data_bytes_read_by_output_positions(attempt, {**row, column_axis.var: column_axis.extent}) <= l1:
        return [row_axis, lane_axis, column_axis]
    if _data_bytes_read_by_output_positions(attempt, {**row, **tile}) <= l1:
        return [column_axis, row_axis, lane_axis]
    return (
        [column_axis, lane_axis, row_axis]
        if _do_data_and_output_fit_l2_cache(attempt)
        else [row_axis, lane_axis, column_axis]
    )


def _data_bytes_read_by_output_positions(attempt: _TileAttempt, position_counts: Mapping[Var, int]) -> int:
    """Return the bytes of data that all channels read, for given numbers of output positions along
    each axis.
    """
    split = attempt.split
    channels = {split.tile: -(-attempt.axis[1] // split.size), split.lane: split.size}
    extents = {**dict(attempt.req.contraction.reduce_axes), **channels, **position_counts}
    return contraction_index_analysis.estimated_elements_read(split.a, extents) * attempt.req.a.dtype.itemsize


def _do_data_and_output_fit_l2_cache(attempt: _TileAttempt) -> bool:
    """Return True if data and output of a contraction fit in the second-level cache."""
    c = attempt.req.contraction
    return (
        attempt.req.a.nbytes + contraction_index_analysis.iteration_space_point_count(c.axes) * c.dtype.itemsize
        <= attempt.req.target.l2
    )
