# SPDX-License-Identifier: Apache-2.0
"""Data of memory micro-kernels that is gathered (im2col), such as that of `ARM_DSP` and `ARM_MVE`: the
data of an output position, as contiguous bytes.

A run is the elements of data that are contiguous in memory at one kernel offset. The runs of some positions are
gathered, then each call computes the sums of some outputs:

    for positions:
      for taps: col[...] = pack(data of the positions)        # bytes of `fill` outside of the data
      for outputs: tile = multiply(col, weights of the outputs); for output: for position: store(tile[...])

A single position whose data is contiguous is not copied. In depthwise convolutions, a run holds the
channels at one kernel offset, and each call gathers its own channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotc.ir import DType, frozen
from aotc.tir import Buffer, Expr, Load, Var, as_expr, const, minimum, new_private_scratch_buffer, substitute, te
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    are_axes_row_major_contiguous,
    contiguous_weight_reduction_axis_index,
    fuse_data_axes,
    iteration_space_point_count,
    row_major_address,
    split_reduction_into_dot_groups,
    variables_of_dimensions,
)
from aotc.tir.schedule.contraction.epilogue import LayoutOfSums
from aotc.tir.schedule.contraction.memory_call_data import ContractionData, PaddingBuffers
from aotc.tir.schedule.contraction.memory_call_types import CallData, CallOperands, outputs_in_calls
from aotc.tir.schedule.contraction.operand_packing import CopyShare, PackedOperand
from aotc.tir.schedule.contraction.operand_staging import CopyFn
from aotc.tir.schedule.contraction.tile_loops import OutputTile
from aotc.tir.schedule.contraction.tile_segments import TileAxis, TileSegment, untiled_axis
from aotc.tir.schedule.contraction.tiling_completion import TilingRequest
from aotc.tir.schedule.contraction.tiling_cost import memory_kernel_cycles
from aotc.tir.simplify import LinearForm, simplify
from aotc.tir.stmt import Stmt


def gathered_data(contraction: te.Contraction, request: TilingRequest) -> dict[str, CallData]:
    """Return the gathered data of a contraction by the suffix "" of a candidate's name; nothing if the
    operands do not have the layouts of the micro-kernel.

    request    the contraction with its reduction in groups of the micro-kernel
    """
    channel = request.output_channel_axis
    if channel is None:
        return {}
    if channel[0] in variables_of_dimensions(request.analysis.a):
        data = _depthwise_data(request, channel) if request.kernel.multiply_depthwise else None
    else:
        data = _data_of_all_channels(contraction, request, channel)
    return {} if data is None else {"": data}


def _data_of_all_channels(
    contraction: te.Contraction, request: TilingRequest, channel: te.Axis
) -> _GatheredData | None:
    """Return the data of a contraction in which each output has weights for the whole data of a
    position; None if the weights are not contiguous, or if the data cannot be copied.
    """
    kernel, number = request.kernel, contiguous_weight_reduction_axis_index(contraction)
    if number is None:
        return None
    run, group_size = contraction.reduce_axes[number][1], kernel.group
    if kernel.weights == "rows":
        # a group is a whole run
        grouped_analysis = split_reduction_into_dot_groups(replace(contraction, group=run))
        if grouped_analysis is None:
            return None
        request = replace(request, analysis=grouped_analysis[0], group=grouped_analysis[1])
        group_size = run
    block = kernel.outputs_per_weight_block
    split, group = request.split_output_channels(block), request.group
    if split is None or group is None:
        return None
    step_var = request.contraction.reduce_axes[number][0]
    taps = [axis for axis in request.contraction.reduce_axes if axis[0] is not step_var]
    weights = row_major_address(split.b)
    axes = [*taps, (step_var, -(-run // group_size))]
    if kernel.weights == "rows":
        axes = [(split.tile, channel[1]), *axes, (group, group_size)]
    data = ContractionData.direct_or_padded_data(request, split, step_var, run)
    distance = 1 if kernel.weights == "rows" else kernel.block * group_size
    if data is None or not are_axes_row_major_contiguous(weights, axes, distance):
        return None
    outputs = TileAxis(*channel, outputs_in_calls(request, channel[1], block), split=split.tile_and_lane_vars_and_size)
    return _make_data(request, outputs, weights, data, taps, run)


def _depthwise_data(request: TilingRequest, channel_axis: te.Axis) -> _GatheredData | None:
    """Return the data of a depthwise convolution, in which each output has a channel of the data;
    None if the channels are not contiguous.
    """
    channel, outputs = channel_axis
    position, weights = row_major_address(request.analysis.a), row_major_address(request.analysis.b)
    borders = [d for d in request.analysis.a if not d.inside]
    lies = position.coefficient(channel) == weights.coefficient(channel) == 1
    if (outputs > 1 and not lies) or channel in variables_of_dimensions(borders):
        return None
    taps = request.contraction.reduce_axes
    steps = (weights.coefficient(v) for v, n in reversed(taps) if n > 1)
    tap_stride = next(steps, outputs) or outputs
    if not are_axes_row_major_contiguous(weights, taps, tap_stride):
        return None
    data = ContractionData(request.a, position, borders)
    in_calls = TileAxis(*channel_axis, outputs_in_calls(request, outputs, 1))
    return _make_data(request, in_calls, weights, data, taps, 0, tap_stride)


def _make_data(
    request: TilingRequest,
    channel: TileAxis,
    weights: LinearForm,
    data: ContractionData,
    taps: Sequence[te.Axis],
    run: int,
    tap_stride: int = 0,
) -> _GatheredData:
    """Return the data of a contraction with its positions in tiles and with its buffers; the arguments
    are fields of `_GatheredData`.
    """
    kernel = request.kernel
    axes, names, position = _output_positions(request, data)
    multiply = kernel.multiply_in_place if run else kernel.multiply_depthwise
    is_contiguous = iteration_space_point_count(taps) == 1 and not data.possibly_out_of_range_dims
    is_in_place = bool(multiply) and is_contiguous and (kernel.positions == 1 or axes[-1][1] == 1)
    size = 1 if is_in_place else kernel.positions
    last = TileAxis(*axes[-1], (TileSegment(0, -(-axes[-1][1] // size), size, (0,), clip=axes[-1][1] % size > 0),))
    longest_run = run or channel.segments[0].size
    return _GatheredData(
        request=request,
        positions=[*(untiled_axis(*axis) for axis in axes[:-1]), last],
        channel=channel,
        unfuse=names,
        weights=weights,
        data=data,
        position=position,
        taps=taps,
        run=run,
        tap_stride=tap_stride,
        is_in_place=is_in_place,
        col=new_private_scratch_buffer(
            "col",
            DType(kernel.packed),
            iteration_space_point_count(taps) * -(-longest_run // kernel.group) * kernel.group * size,
        ),
        padding=data.allocate_padding_buffers(longest_run, size),
    )


def _output_positions(request: TilingRequest, data: ContractionData) -> tuple[list[te.Axis], Mapping[Var, Expr], Expr]:
    """Return the axes that output positions are counted along, at least one; the data's axes as expressions
    of them; and the address of an element of the data. Short rows are fused with the next outer axis.
    """
    pixels = fuse_data_axes(request.analysis, data.possibly_out_of_range_dims, data.position)
    axes = [axis for axis in pixels.axes if axis[1] > 1]
    names: dict[Var, Expr] = {v: as_expr(0) for v, n in request.contraction.axes if n == 1}
    kernel = request.kernel
    if len(axes) > 1 and axes[-1][1] % kernel.positions and axes[-1][1] < kernel.min_row_positions:
        (high, height), (low, width) = axes[-2:]
        both = Var("q")
        names |= {high: both // width, low: both % width}
        axes[-2:] = [(both, height * width)]
    whole = {v: substitute(e, names) for v, e in pixels.unfuse.items()}
    position = substitute(pixels.position.to_expr(), names)
    return axes or [(Var("none"), 1)], {**names, **whole}, position


@frozen(eq=False, kw_only=True)
class _GatheredData(CallData):
    """The gathered data of a contraction.

    data          the data
    position      address of an element of the data
    taps          reduction axes for each point of which a run is gathered
    run           contiguous bytes of the data at one kernel offset; 0 if a run consists of channels
    tap_stride    elements between the weights of consecutive taps, for depthwise convolutions
    is_in_place   True if the data of a position is contiguous and read where it is, one position at a time
    col           buffer of the gathered runs of a call
    padding       buffers for runs outside of the data
    """

    data: ContractionData
    position: Expr
    taps: Sequence[te.Axis]
    run: int
    tap_stride: int
    is_in_place: bool
    col: Buffer
    padding: PaddingBuffers

    @property
    def _tap_count(self) -> int:
        """Number of runs of an output position."""
        return iteration_space_point_count(self.taps)

    @property
    def _positions_per_tile(self) -> int:
        """Number of output positions of a tile."""
        return self.positions[-1].segments[0].size

    def _gathered_elements(self, run: int) -> int:
        """Return the elements of the gathered runs of `run` bytes of all positions of a tile."""
        padded_run = -(-run // self.kernel.group) * self.kernel.group
        return self._tap_count * padded_run * self._positions_per_tile

    @property
    def sum_count(self) -> int:
        """Number of sums of the largest call."""
        return self._positions_per_tile * self.channel.segments[0].size

    @property
    def before(self) -> Sequence[Stmt]:
        """Statements before all loops."""
        return [*self.data.before, *self.padding.fill_padding_buffer(self.request.contraction.fill)]

    @property
    def workspace(self) -> Sequence[Buffer]:
        """Buffers of copies of the data."""
        gathered = [] if self.is_in_place else [self.col, *self.padding.all_padding_buffers]
        return [*self.data.workspace, *gathered]

    @property
    def copies(self) -> Mapping[TileAxis | None, CopyFn]:
        """The runs of a tile of positions are gathered before all calls for its outputs."""
        gathers = self.run > 0 and not self.is_in_place
        return {self.positions[-1]: lambda values: self._gather(values, self.run)} if gathers else {}

    @property
    def estimated_cycles(self) -> float:
        """Estimated cycles of the whole contraction."""
        kernel, outputs, taps, last = self.kernel, self.channel.extent, self._tap_count, self.positions[-1].extent
        positions = iteration_space_point_count([(axis.var, axis.extent) for axis in self.positions])
        tiles = positions // last * -(-last // self._positions_per_tile)
        calls = tiles * -(-outputs // kernel.max_outputs)
        bytes_of_position = self._gathered_elements(self.run) // self._positions_per_tile
        steps = -(-outputs // kernel.outputs) * -(-bytes_of_position // kernel.depth)
        # a run of a depthwise convolution consists of channels, which are computed together
        steps = steps if self.run else taps * -(-outputs // kernel.depth)
        gathered = 0 if self.is_in_place else tiles if self.run else calls
        elements_of_run = self._gathered_elements(self.run or outputs) // taps
        return memory_kernel_cycles(
            self.request.target,
            kernel,
            calls=calls,
            tiles=tiles * steps,
            runs=gathered * taps,
            copies=gathered * taps * -(-elements_of_run // kernel.pack_lanes) + self.data.copy_cycles,
            sums=positions * outputs,
        )

    def operands(self, tile: OutputTile) -> CallOperands:
        """Return the operands of the call that computes a tile."""
        kernel, taps, values = self.kernel, self._tap_count, tile.operand_var_values()
        block = kernel.outputs_per_weight_block if self.run else 1
        count = -(-tile.segments[self.channel].size // block) * block
        run = self.run or count
        gathers_in_call = not self.run and not self.is_in_place
        before = [self._gather(values, run)] if gathers_in_call else []
        if self.is_in_place:
            data = Load(self.data.buffer, self._address({**values, **{v: as_expr(0) for v, _ in self.taps}}), run)
        else:
            data = Load(self.col, as_expr(0), self._gathered_elements(run))
        if not self.run:
            sizes = const(taps, "int32"), const(self.tap_stride, "int32")
            extent = (taps - 1) * self.tap_stride + count
            return CallOperands(kernel.multiply_depthwise, data, extent, sizes, before)
        extent = self._gathered_elements(run) // self._positions_per_tile * count
        return CallOperands(kernel.multiply_in_place if self.is_in_place else kernel.multiply, data, extent)

    def layout_of_sums(self, tile: OutputTile) -> LayoutOfSums:
        """Return the layout of the sums of a call: those of the positions of an output are contiguous."""
        return LayoutOfSums(0, {self.channel: self._positions_per_tile, self.positions[-1]: 1})

    def _address(self, values: Mapping[Var, Expr]) -> Expr:
        """Return the address of the first element of the runs of an output position, for given values of
        the operands' variables.
        """
        in_run = self.request.reduction_axis_vars - {v for v, _ in self.taps}
        return simplify(substitute(self.position, {**dict.fromkeys(in_run, as_expr(0)), **values}), {})

    def _gather(self, values: Mapping[Var, Expr], run: int) -> Stmt:
        """Return the statements that gather runs of `run` bytes of all positions of a tile.

        values    values of the operands' variables at its first position
        """
        last, size = self.positions[-1], self._positions_per_tile
        run_starts = []
        for k in range(size):
            place = values[last.var] + k
            if k > 0 and last.segments[0].clip:
                place = minimum(place, last.extent - 1)  # a position that does not exist reads the data of the last one
            names = {**values, last.var: place}
            run_starts.append((self._address(names), {**names, **self._unfused(names)}))
        index = te.flat_index([n for _, n in self.taps], [v for v, _ in self.taps])
        begin = simplify(index * (self._gathered_elements(run) // self._tap_count), {})
        share = CopyShare(self.taps, tuple(v for v, _ in self.taps), kind="independent")
        packed = PackedOperand(share, (), self.col, begin, self.kernel.pack)
        fill = self.request.contraction.fill
        return self.data.gather_runs_over_taps(run_starts, self.padding, run, self.taps, packed, fill)

    def _unfused(self, values: Mapping[Var, Expr]) -> dict[Var, Expr]:
        """Return the values of the data's axes at an output position."""
        return {v: substitute(e, values) for v, e in self.unfuse.items()}
