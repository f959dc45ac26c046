# SPDX-License-Identifier: Apache-2.0
"""Data that memory micro-kernels read at constant distances, such as that of `X86_AMX` (batch-reduce
GEMM).

One call multiplies the data of consecutive positions, of one or several rows, by some blocks of outputs,
over the whole reduction; data with a border is copied with its padding before:

    for part of the positions: for some blocks of outputs:
      tile = multiply(data, weights, sizes, distances)
      for position: for outputs: store(tile[...sums of the outputs])

The positions between the rows of an image (padding) are computed where that is faster than a call
for each row, but not stored. All sizes of a call are those of the micro-kernel's row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotc.ir import frozen
from aotc.tir import Buffer, Expr, Load, Var, as_expr, const, substitute, te
from aotc.tir.micro_kernels import MicroKernel
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ChannelSplit,
    contiguous_weight_reduction_axis_index,
    fuse_data_axes,
    iteration_space_point_count,
    row_major_address,
)
from aotc.tir.schedule.contraction.epilogue import LayoutOfSums
from aotc.tir.schedule.contraction.memory_call_data import ContractionData
from aotc.tir.schedule.contraction.memory_call_types import CallData, CallOperands, outputs_in_calls
from aotc.tir.schedule.contraction.operand_staging import pack_operand_in_axis_order
from aotc.tir.schedule.contraction.tile_loops import OutputTile
from aotc.tir.schedule.contraction.tile_segments import TileAxis, TileSegment, tiles_with_smaller_last, untiled_axis
from aotc.tir.schedule.contraction.tiling_completion import TilingRequest
from aotc.tir.schedule.contraction.tiling_cost import memory_kernel_cycles
from aotc.tir.simplify import LinearForm, simplify
from aotc.tir.stmt import Stmt

#: Loops of a call over reduction axes whose elements are not contiguous.
MAX_STRIDED_REDUCTION_AXES = 2


def strided_data(contraction: te.Contraction, request: TilingRequest) -> dict[str, CallData]:
    """Return the strided data of a contraction by the suffix of a candidate's name: "" for the data in
    place, or with its padding in a copy, and " columns" for an im2col copy; nothing if the operands do not
    have the layouts of the micro-kernel.

    request    the contraction with its reduction in groups of the micro-kernel
    """
    number, channel = contiguous_weight_reduction_axis_index(contraction), request.output_channel_axis
    last = next((v for v, n in reversed(contraction.axes) if n > 1), None)
    block = request.kernel.block
    if number is None or channel is None or channel[1] < block or last is not channel[0]:
        return {}
    split = request.split_output_channels(block)
    if split is None:
        return {}
    step_axis = request.contraction.reduce_axes[number]
    found: dict[str, CallData] = {}
    for kind, copy in (("", _data_with_adjacent_groups), (" columns", _im2col_copy)):
        data = copy(request, split, step_axis)
        positions = None if data is None else _strided_positions(request, split, step_axis, data)
        if positions is not None:
            found[kind] = positions
    return found


def _strided_positions(
    request: TilingRequest, split: ChannelSplit, step_axis: te.Axis, data: ContractionData
) -> _StridedData | None:
    """Return the positions of data or of a copy of it; None if their distances are not constant, or if
    they or the reduction are too short for the micro-kernel.
    """
    (var, extent), weights, kernel = step_axis, row_major_address(split.b), request.kernel
    taps = _other_reduction_axes_with_strides(request, data.position, weights, var)
    if taps is None or (extent > 1 and weights.coefficient(var) != kernel.block * kernel.group):
        return None
    run = extent * kernel.group
    while contiguous_taps := [tap for tap in taps if tap[1:] == (run, run * kernel.block)]:
        taps.remove(contiguous_taps[0])
        run *= contiguous_taps[0][0]
    depth, step = run * math.prod(n for n, *_ in taps), _step_dividing_run(kernel, run)
    too_short = depth < kernel.min_reduction_bytes or step < kernel.min_run_bytes
    if len(taps) > MAX_STRIDED_REDUCTION_AXES or too_short:
        return None
    pixels = fuse_data_axes(request.analysis, (), data.position)
    long_axes = [axis for axis in pixels.axes if axis[1] > 1]
    axes: list[te.Axis] = [*((Var("one"), 1) for _ in range(2 - len(long_axes))), *long_axes]
    outer, high, wide = axes[:-2], axes[-2], axes[-1]
    row, pitch = (pixels.position.coefficient(v) for v, _ in (high, wide))
    if row is None or not pitch or pitch < 0 or row % pitch or (high[1] > 1 and row < wide[1] * pitch):
        return None
    channel, row_stride = request.output_channel_axis, row // pitch
    if channel is None or high[1] * wide[1] < kernel.min_positions:
        return None
    rows_per_call = _best_rows_per_call(kernel, high[1], wide[1], row_stride)
    short = {v: as_expr(0) for v, n in request.contraction.axes if n == 1}
    return _StridedData(
        request=request,
        positions=[*(untiled_axis(*axis) for axis in outer), *_position_tiles(kernel, high, wide, rows_per_call)],
        channel=TileAxis(
            *channel, outputs_in_calls(request, channel[1], kernel.block), split=split.tile_and_lane_vars_and_size
        ),
        unfuse={**short, **pixels.unfuse},
        weights=weights,
        data=data,
        position=pixels.position,
        pitch=pitch,
        row_stride=row_stride,
        rows_per_call=rows_per_call,
        run=run,
        taps=taps,
        block_stride=weights.coefficient(split.tile) or 0,
    )


def _position_tiles(kernel: MicroKernel, high: te.Axis, wide: te.Axis, rows_per_call: int) -> list[TileAxis]:
    """Return the last two axes of positions in tiles of calls: whole rows, or parts of one row.

    A last part that is shorter than a tile of the micro-kernel overlaps the part before.
    """
    most = kernel.max_positions
    if wide[1] <= most:
        rows = TileAxis(*high, tiles_with_smaller_last(high[1], rows_per_call))
        return [rows, TileAxis(*wide, (TileSegment(0, 1, wide[1], (0,)),))]
    parts, rest = divmod(wide[1], most)
    segments = [TileSegment(0, parts, most, (0,))]
    if rest:
        segments.append(TileSegment(wide[1] - rest, 1, rest, (-max(0, kernel.positions - rest),)))
    return [untiled_axis(*high), TileAxis(*wide, tuple(segments))]


@frozen(eq=False, kw_only=True)
class _StridedData(CallData):
    """The strided data of a contraction. Its last two axes of positions are rows and positions of a row.

    data            the data or its copy
    position        address of an element of the data
    pitch           elements of data from one position to the next
    row_stride      positions from one row to the next
    rows_per_call   rows of a call
    run             number of elements along the reduction that are contiguous in the data
    taps            for each other reduction axis, such as the rows and columns of a window: its extent, its
                    stride in the data, and its stride in the weights
    block_stride    number of elements between blocks of weights
    """

    data: ContractionData
    position: LinearForm
    pitch: int
    row_stride: int
    rows_per_call: int
    run: int
    taps: Sequence[tuple[int, int, int]]
    block_stride: int

    @property
    def sum_count(self) -> int:
        """Number of sums of the largest call."""
        wide = min(self.positions[-1].extent, self.kernel.max_positions)
        positions = (self.rows_per_call - 1) * self.row_stride + wide
        return positions * self._padded_outputs(self.channel.segments[0])

    @property
    def before(self) -> Sequence[Stmt]:
        """Statements before all loops."""
        return self.data.before

    @property
    def workspace(self) -> Sequence[Buffer]:
        """Buffers of copies of the data."""
        return self.data.workspace

    @property
    def estimated_cycles(self) -> float:
        """Estimated cycles of the whole contraction."""
        *outer_axes, high, wide = self.positions
        outer, kernel = math.prod(axis.extent for axis in outer_axes), self.kernel
        steps = self.run // _step_dividing_run(kernel, self.run) * math.prod(n for n, *_ in self.taps)
        blocks = -(-self.channel.extent // kernel.block)
        row_groups = -(-high.extent // self.rows_per_call)
        calls = outer * row_groups * -(-blocks // (kernel.max_outputs // kernel.block))
        calls *= -(-wide.extent // kernel.max_positions)
        time = _time_in_positions(kernel, high.extent, wide.extent, self.row_stride, self.rows_per_call)
        positions = outer * (time - kernel.call_positions * row_groups) * self.data.slowdown
        return memory_kernel_cycles(
            self.request.target,
            kernel,
            calls=calls,
            tiles=positions / kernel.positions * blocks * steps,
            runs=0,
            copies=self.data.copy_cycles,
            sums=outer * high.extent * wide.extent * self.channel.extent,
        )

    def operands(self, tile: OutputTile) -> CallOperands:
        """Return the operands of the call that computes a tile."""
        wide, kernel, run = self.positions[-1], self.kernel, self.run
        values = {**tile.operand_var_values(), wide.var: tile.starts[wide] - self._skipped_positions(tile)}
        positions = self._computed_positions(tile)
        reach = run + sum((n - 1) * x for n, x, _ in self.taps)
        data = Load(self.data.buffer, self._address(values), (positions - 1) * self.pitch + reach)
        blocks = self._padded_outputs(tile.segments[self.channel]) // kernel.block
        deep = run * kernel.block + sum((n - 1) * w for n, _, w in self.taps)
        step = _step_dividing_run(kernel, run)
        taps = [*self.taps, *((1, 0, 0) for _ in range(MAX_STRIDED_REDUCTION_AXES - len(self.taps)))]
        sizes = (positions, self.pitch, blocks, self.block_stride, step, run // step, *(n for tap in taps for n in tap))
        return CallOperands(
            kernel.multiply_name(self.data.buffer.dtype, self.request.b.dtype),
            data,
            (blocks - 1) * self.block_stride + deep,
            [const(n, "int32") for n in sizes],
        )

    def layout_of_sums(self, tile: OutputTile) -> LayoutOfSums:
        """Return the layout of the sums of a call: those of the outputs of a position are contiguous."""
        high, wide = self.positions[-2:]
        outputs = self._padded_outputs(tile.segments[self.channel])
        strides = {high: self.row_stride * outputs, wide: outputs, self.channel: 1}
        return LayoutOfSums(self._skipped_positions(tile) * outputs, strides)

    def _address(self, values: Mapping[Var, Expr]) -> Expr:
        """Return the address of the first element of the data of a call, for given values of the operands'
        variables.
        """
        first = (*self.request.reduction_axis_vars, *(v for v, n in self.request.contraction.axes if n == 1))
        return simplify(substitute(self.position.to_expr(), {**dict.fromkeys(first, as_expr(0)), **values}), {})

    def _padded_outputs(self, outputs: TileSegment) -> int:
        """Return the outputs of a call, including those that pad its last block."""
        return -(-outputs.size // self.kernel.block) * self.kernel.block

    def _skipped_positions(self, tile: OutputTile) -> int:
        """Return the number of positions of a call before the first one that is stored."""
        return tile.segments[self.positions[-1]].elements_overlapping_previous_tile

    def _computed_positions(self, tile: OutputTile) -> int:
        """Return the number of positions that a call computes."""
        rows, columns = (tile.segments[axis].size for axis in self.positions[-2:])
        return (rows - 1) * self.row_stride + columns + self._skipped_positions(tile)


def _step_dividing_run(kernel: MicroKernel, run: int) -> int:
    """Return the elements of a reduction step: the largest multiple of a group up to the depth of a tile
    that divides a run.
    """
    return max(n for n in range(kernel.group, kernel.depth + 1, kernel.group) if run % n == 0)


def _data_with_adjacent_groups(
    request: TilingRequest, split: ChannelSplit, step_axis: te.Axis
) -> ContractionData | None:
    """Return the data, or a padded copy, in which the groups of a run are adjacent; None if it cannot be
    copied.
    """
    position, place, (var, extent) = row_major_address(split.a), request.group, step_axis
    assert place is not None
    near = position.coefficient(place) == 1 and (extent == 1 or position.coefficient(var) == request.kernel.group)
    if near and all(d.inside for d in split.a):
        return ContractionData(request.a, position, ())
    return ContractionData.padded_contraction_data_copy(request, split)


def _im2col_copy(request: TilingRequest, split: ChannelSplit, step_axis: te.Axis) -> ContractionData | None:
    """Return an im2col copy, in which all data of a position is contiguous; None if it exceeds the
    cache, or if few elements of the data are contiguous.
    """
    c, place = request.contraction, request.group
    assert place is not None
    taps = [axis for axis in c.reduce_axes if axis is not step_axis]
    axes = (*request.analysis.pixel, *taps, step_axis, (place, c.group))
    few = step_axis[1] * c.group < request.kernel.min_reduction_bytes
    if few or iteration_space_point_count(axes) > request.target.l2:
        return None
    columns = pack_operand_in_axis_order("columns", request.a, split.a, axes, c.fill)
    data = ContractionData.contraction_data_from_scratch_copy(columns, split)
    # the slowdown includes the time of the copy
    return replace(data, slowdown=request.kernel.im2col_slowdown, copy_cycles=0)


def _other_reduction_axes_with_strides(
    request: TilingRequest, data_address: LinearForm, weight_address: LinearForm, step_var: Var
) -> list[tuple[int, int, int]] | None:
    """Return the reduction axes other than `step_var`: extent, distance in the data, distance in
    the weights; inner axes first. Return None if a distance is not constant.
    """
    axes = []
    for var, extent in request.contraction.reduce_axes:
        x, w = data_address.coefficient(var), weight_address.coefficient(var)
        if x is None or w is None or x < 0:
            return None
        if var is not step_var and extent > 1:
            axes.append((extent, x, w))
    # the second of two taps is the outer loop of a micro-kernel
    return axes[::-1]


def _best_rows_per_call(kernel: MicroKernel, high: int, wide: int, row_stride: int) -> int:
    """Return the number of rows of a call with the least estimated time; 1 if a row is too long."""
    fitting = [r for r in range(1, high + 1) if (r - 1) * row_stride + wide <= kernel.max_positions]
    return min(fitting, key=lambda r: _time_in_positions(kernel, high, wide, row_stride, r)) if fitting else 1


def _time_in_positions(kernel: MicroKernel, high: int, wide: int, row_stride: int, rows_per_call: int) -> int:
    """Estimate the time of `high` rows of `wide` positions with `rows_per_call` rows per call, in output
    positions computed.

    Counts whole tiles of positions, the weights for each pair of tiles, and the call itself.
    """
    positions = (rows_per_call - 1) * row_stride + wide
    tile = kernel.positions
    call = -(-positions // tile) * tile + -(-positions // (2 * tile)) * tile + kernel.call_positions
    return -(-high // rows_per_call) * call
