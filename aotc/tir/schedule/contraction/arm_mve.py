# SPDX-License-Identifier: Apache-2.0
"""int8 GEMM and depthwise schedule for Cortex-M with Helium (MVE): calls of
`aotc.tir.arm_mve_kernels`.

The data of a position is one row, gathered run by run (im2col) if it is not contiguous, and the
weights of an output are one row; in depthwise convolutions, a run holds the channels at one kernel
offset:

    for position:
      for taps: col[...] = bytes(data)                     # bytes of `fill` outside of the data
      tile[0:n] = byte_rows(col, weights of n outputs); y[0:n] = requantize(tile[0:n], ...)

The sums are requantized to bytes by an instruction of the micro-kernel (`MicroKernel.finish`) if one
computes the epilogue, else one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotc.ir import DType, frozen
from aotc.tir import Buffer, Expr, Load, as_expr, const, fill_buffer_loop, new_private_scratch_buffer, substitute, te
from aotc.tir.expr import Var
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.micro_kernels import MicroKernel
from aotc.tir.schedule.contraction import contraction_index_analysis
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ChannelSplit,
    FusedDataAxes,
    are_axes_row_major_contiguous,
    contiguous_weight_reduction_axis_index,
    fuse_data_axes,
    iteration_space_point_count,
    row_major_address,
    split_reduction_into_dot_groups,
)
from aotc.tir.schedule.contraction.im2col_packing import ContractionData, PaddingBuffers
from aotc.tir.schedule.contraction.instruction_selection import RepeatedValues, select_elementwise_instruction
from aotc.tir.schedule.contraction.tiling_completion import MemoryKernelCandidate, TilingRequest
from aotc.tir.schedule.contraction.tiling_cost import memory_kernel_cycles
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Block, Stmt, forall, loop_nest


def arm_mve_candidates(contraction: te.Contraction, request: TilingRequest) -> list[MemoryKernelCandidate]:
    """Return the candidate that computes a contraction by a micro-kernel that reads rows of data and
    weights, such as `ARM_MVE`; none if operands are not in rows.
    """
    channel = request.output_channel_axis
    if channel is None:
        return []
    is_depthwise = channel[0] in contraction_index_analysis.variables_of_dimensions(request.analysis.a)
    if is_depthwise and not request.kernel.multiply_depthwise:
        return []
    make_schedule = _schedule_depthwise_convolution if is_depthwise else _schedule_full_row_contraction
    schedule = make_schedule(request, channel)
    if schedule is None:
        return []
    return [MemoryKernelCandidate(schedule.estimated_cycles, request.kernel.name, schedule.build_loop_nest)]


def _schedule_full_row_contraction(request: TilingRequest, channel: te.Axis) -> _ArmMveSchedule | None:
    """Return the MVE schedule of a contraction in which each output has weights for a whole row of
    data; None if the weights are not in rows, or if the data cannot be copied.
    """
    c = request.contraction
    number = contiguous_weight_reduction_axis_index(c)
    if number is None:
        return None
    axis = c.reduce_axes[number]
    taps = [tap for tap in c.reduce_axes if tap is not axis]
    grouped_analysis = split_reduction_into_dot_groups(replace(c, group=axis[1]))
    weights = row_major_address(request.analysis.b)
    if grouped_analysis is None or not are_axes_row_major_contiguous(weights, [channel, *taps, axis], 1):
        return None
    analysis, group = grouped_analysis
    grouped = replace(request, analysis=analysis, group=group)
    steps, split = (
        grouped.contraction.reduce_axes[number][0],
        ChannelSplit.split_channel_axis(grouped.analysis, channel, 1),
    )
    data = ContractionData.direct_or_padded_data(grouped, split, steps, axis[1])
    if data is None:
        return None
    at = fuse_data_axes(grouped.analysis, data.possibly_out_of_range_dims, data.position)
    return _ArmMveSchedule(grouped, channel, data, at, taps, axis[1], (steps, group, split.tile, split.lane))


def _schedule_depthwise_convolution(request: TilingRequest, channel_axis: te.Axis) -> _ArmMveSchedule | None:
    """Return the MVE schedule of a depthwise convolution, in which each output has a channel of the
    data; None if the channels are not contiguous.
    """
    channel, outputs = channel_axis
    position, weights = row_major_address(request.analysis.a), row_major_address(request.analysis.b)
    borders = [d for d in request.analysis.a if not d.inside]
    lies = position.coefficient(channel) == weights.coefficient(channel) == 1
    if (outputs > 1 and not lies) or channel in contraction_index_analysis.variables_of_dimensions(borders):
        return None
    taps = request.contraction.reduce_axes
    steps = (weights.coefficient(v) for v, n in reversed(taps) if n > 1)
    tap_stride = next(steps, outputs) or outputs
    if not are_axes_row_major_contiguous(weights, taps, tap_stride):
        return None
    at = fuse_data_axes(request.analysis, borders, position)
    data = ContractionData(request.a, position, borders)
    return _ArmMveSchedule(request, channel_axis, data, at, taps, 0, (channel,), tap_stride)


@frozen(eq=False)
class _ArmMveSchedule:
    """The MVE schedule of one contraction.

    req, channel, data    the contraction, the axis of its outputs, and its data
    at                 the axes that positions are counted along
    taps               reduction axes for each point of which a run is gathered
    run                contiguous bytes of the data at one kernel offset; 0 if a run consists of channels
    inner              variables that count the elements of a run
    tap_stride_bytes   bytes between the weights of consecutive taps, for depthwise convolutions
    """

    req: TilingRequest
    channel: te.Axis
    data: ContractionData
    at: FusedDataAxes
    taps: Sequence[te.Axis]
    run: int
    inner: Sequence[Var]
    tap_stride_bytes: int = 0

    @property
    def kernel(self) -> MicroKernel:
        """The micro-kernel."""
        return self.req.kernel

    @property
    def needs_im2col(self) -> bool:
        """True if the data of an output position must be gathered (im2col), as it is not
        contiguous.
        """
        return contraction_index_analysis.iteration_space_point_count(self.taps) > 1 or bool(
            self.data.possibly_out_of_range_dims
        )

    @property
    def estimated_cycles(self) -> float:
        """Estimated cycles of the whole contraction."""
        outputs, positions = self.channel[1], iteration_space_point_count(self.at.axes)
        taps = iteration_space_point_count(self.taps)
        # a run of a depthwise convolution consists of channels, 16 of which are computed together
        tiles = -(-outputs // self.kernel.outputs) * -(-taps * self.run // self.kernel.depth)
        tiles = tiles if self.run else taps * -(-outputs // self.kernel.depth)
        calls = positions * -(-outputs // self.kernel.max_outputs)
        runs = (positions if self.run else calls) * taps * self.needs_im2col
        return memory_kernel_cycles(
            self.req.target,
            self.kernel,
            calls=calls,
            tiles=positions * tiles,
            runs=runs,
            copies=runs * -(-(self.run or outputs) // self.kernel.depth) + self.data.copy_cycles,
            sums=positions * outputs,
        )

    def build_loop_nest(self) -> ContractionNest:
        """Return the loop nest of an int8 contraction on Cortex-M Helium with the buffers it needs."""
        outputs, block = self.channel[1], Var("o")
        width = min(self.kernel.max_outputs, outputs)
        run = self.run or width
        tile = new_private_scratch_buffer("tile", DType("int32"), width, "stack")
        col = new_private_scratch_buffer(
            "col", DType(self.kernel.packed), contraction_index_analysis.iteration_space_point_count(self.taps) * run
        )
        spare = self.data.allocate_padding_buffers(run, 1)
        repeated = RepeatedValues(width)
        first: list[Stmt] = (
            [self._gather_im2col_of_position(col, spare, as_expr(0), run)] if self.needs_im2col and self.run else []
        )

        def compute_output_channels(first_channel: Expr, channel_count: int) -> Stmt:
            gather_stmts = (
                [self._gather_im2col_of_position(col, spare, first_channel, channel_count)]
                if self.needs_im2col and not self.run
                else []
            )
            sums = self._compute_sums_of_output_channels(tile, col, first_channel, channel_count)
            finish = self._finish_and_store_sums(tile, first_channel, channel_count, repeated)
            return Block((*gather_stmts, sums, finish))

        parts: list[Stmt] = [forall(block, outputs // width, compute_output_channels(block * width, width))]
        if rest := outputs % width:
            parts.append(compute_output_channels(as_expr(outputs - rest), rest))
        nest = loop_nest(self.at.axes, Block((*first, *parts)), "independent")
        start = spare.fill_padding_buffer(self.req.contraction.fill)
        start += [fill_buffer_loop(buffer, value) for value, buffer in repeated.buffers.items()]
        scratch = [col] * self.needs_im2col + spare.all_padding_buffers
        whole = Block((*self.data.before, *start, nest))
        return ContractionNest(whole, (tile, *repeated.buffers.values()), (*self.data.workspace, *scratch))

    def _data_address_of_run(self, first_channel: Expr, tap_values: Mapping[Var, Expr]) -> Expr:
        """Return the address in the data of a run (contiguous bytes) of an output position at a
        kernel offset.
        """
        inner = dict.fromkeys(self.inner, as_expr(0))
        if not self.run:
            inner[self.inner[0]] = first_channel
        return simplify(substitute(self.at.position.to_expr(), {**inner, **tap_values}), {})

    def _gather_im2col_of_position(
        self, im2col_buffer: Buffer, padding: PaddingBuffers, first_channel: Expr, run_bytes: int
    ) -> Stmt:
        """Return the statements that gather the data of an output position, run by run, into a
        buffer.
        """
        place = te.flat_index([n for _, n in self.taps], [v for v, _ in self.taps]) * run_bytes

        def store_runs_to_im2col(runs: list[Expr]) -> Stmt:
            return execute_to_memory(self.kernel.pack, im2col_buffer, simplify(place, {}), *runs)

        run_starts = [(self._data_address_of_run(first_channel, {}), self.at.unfuse)]
        return self.data.gather_runs_over_taps(
            run_starts, padding, run_bytes, self.taps, store_runs_to_im2col, self.req.contraction.fill
        )

    def _compute_sums_of_output_channels(
        self, sums_buffer: Buffer, im2col_buffer: Buffer, first_channel: Expr, channel_count: int
    ) -> Stmt:
        """Return the micro-kernel that computes the int32 sums of `channel_count` output channels
        from `first_channel` on.
        """
        size, weights = contraction_index_analysis.iteration_space_point_count(self.taps), self.req.b
        zero = {v: as_expr(0) for v, _ in self.taps}
        run = self.run or channel_count
        data = (
            Load(im2col_buffer, as_expr(0), size * run)
            if self.needs_im2col
            else Load(self.data.buffer, self._data_address_of_run(first_channel, zero), run)
        )
        if self.run:
            rows = Load(weights, first_channel * (size * run), channel_count * size * run)
            return execute_to_memory(self.kernel.multiply, sums_buffer, 0, data, rows)
        weight_load = Load(weights, first_channel, (size - 1) * self.tap_stride_bytes + channel_count)
        numbers = const(size, "int32"), const(self.tap_stride_bytes, "int32")
        return execute_to_memory(self.kernel.multiply_depthwise, sums_buffer, 0, data, weight_load, *numbers)

    def _finish_and_store_sums(
        self, sums_buffer: Buffer, first_channel: Expr, channel_count: int, repeated: RepeatedValues
    ) -> Stmt:
        """Return the statement that finishes and stores int32 sums of some outputs: an instruction of
        the micro-kernel that does so, or a loop.
        """
        output, channel = Var("o"), self.channel[0]
        names = {**self.at.unfuse, channel: first_channel + output}
        index = tuple(names.get(v, as_expr(0) if n == 1 else v) for v, n in self.req.contraction.axes)
        stmt = self.req.store(index, Load(sums_buffer, output))
        finish = select_elementwise_instruction(stmt, output, channel_count, self.kernel.finish, repeated)
        return finish or forall(output, channel_count, stmt)
