# SPDX-License-Identifier: Apache-2.0
"""int8 contractions by memory micro-kernels that read the data of an output position as contiguous
bytes, such as `ARM_DSP` and `ARM_MVE`: from a TilingRequest, calls of functions.

The data of some positions is gathered run by run (im2col); a run is what is contiguous at one kernel
offset. Then each call computes the sums of some outputs:

    for positions:
      for taps: col[...] = pack(data of the positions)        # bytes of `fill` outside of the data
      for outputs: tile = multiply(col, weights of the outputs); for output: for position: store(tile[...])

A single position whose data is contiguous is not copied. In depthwise convolutions, a run holds the
channels at one kernel offset, and each call gathers its own channels.

The row of the micro-kernel states what differs: the positions of a tile, the layout of weights
(blocks, padded to whole blocks, or rows), outputs of a call, instructions that pack, multiply and
finish. Sizes are arguments of the functions, so that all layers share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotc.ir import DType, frozen
from aotc.tir import (
    Buffer,
    Expr,
    Load,
    Var,
    as_expr,
    const,
    fill_buffer_loop,
    minimum,
    new_private_scratch_buffer,
    substitute,
    te,
)
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.micro_kernels import MicroKernel
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    are_axes_row_major_contiguous,
    contiguous_weight_reduction_axis_index,
    fuse_data_axes,
    iteration_space_point_count,
    row_major_address,
    split_reduction_into_dot_groups,
    variables_of_dimensions,
)
from aotc.tir.schedule.contraction.im2col_packing import ContractionData, PaddingBuffers
from aotc.tir.schedule.contraction.instruction_selection import RepeatedValues, select_elementwise_instruction
from aotc.tir.schedule.contraction.tiling_completion import MemoryKernelCandidate, TilingRequest
from aotc.tir.schedule.contraction.tiling_cost import memory_kernel_cycles
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest
from aotc.tir.simplify import LinearForm, simplify
from aotc.tir.stmt import Block, If, Stmt, forall, loop_nest


def im2col_kernel_candidates(contraction: te.Contraction, request: TilingRequest) -> list[MemoryKernelCandidate]:
    """Return the candidate that computes a contraction by the micro-kernel of `request`; none if the
    operands do not have its layouts.

    request    the contraction with its reduction in groups of the micro-kernel
    """
    channel = request.output_channel_axis
    if channel is None:
        return []
    is_depthwise = channel[0] in variables_of_dimensions(request.analysis.a)
    if is_depthwise:
        schedule = _depthwise_schedule(request, channel) if request.kernel.multiply_depthwise else None
    else:
        schedule = _full_schedule(contraction, request, channel)
    if schedule is None:
        return []
    return [MemoryKernelCandidate(schedule.estimated_cycles, request.kernel.name, schedule.build_loop_nest)]


def _full_schedule(contraction: te.Contraction, request: TilingRequest, channel: te.Axis) -> _Im2colSchedule | None:
    """Return the schedule of a contraction in which each output has weights for the whole data of a
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
    split, group = request.split_output_channels(kernel.outputs_per_weight_block), request.group
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
    at = _OutputPositions.fuse_output_positions(request, data)
    return _Im2colSchedule(request, channel, data, at, taps, run, split.tile, (split.lane, step_var, group), weights)


def _depthwise_schedule(request: TilingRequest, channel_axis: te.Axis) -> _Im2colSchedule | None:
    """Return the schedule of a depthwise convolution, in which each output has a channel of the data;
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
    at = _OutputPositions.fuse_output_positions(request, data)
    return _Im2colSchedule(request, channel_axis, data, at, taps, 0, channel, (), weights, tap_stride)


@frozen(eq=False)
class _OutputPositions:
    """The output positions of a contraction.

    axes       the axes that positions are counted along; the last one is tiled
    names      the data's axes as expressions of them
    position   address of an element of the data
    """

    axes: Sequence[te.Axis]
    names: Mapping[Var, Expr]
    position: Expr

    @staticmethod
    def fuse_output_positions(request: TilingRequest, data: ContractionData) -> _OutputPositions:
        """Return the output positions of a contraction; short rows are fused with the next outer
        axis.
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
        return _OutputPositions(axes, {**names, **whole}, substitute(pixels.position.to_expr(), names))

    @property
    def tiled_axis_extent(self) -> int:
        """Extent of the tiled axis of output positions."""
        return self.axes[-1][1] if self.axes else 1

    def data_axis_values(self, position: Mapping[Var, Expr]) -> dict[Var, Expr]:
        """Return the values of the data's axes at an output position."""
        return {**position, **{v: substitute(e, position) for v, e in self.names.items()}}


@frozen(eq=False)
class _PositionTile:
    """The output positions of a tile.

    places     for each position, the value of the tiled axis; no value if the tile is one position
    exists     for each position, the condition that it exists; None if it does in any case
    """

    places: Sequence[Mapping[Var, Expr]]
    exists: Sequence[Expr | None]


@frozen(eq=False)
class _Buffers:
    """The buffers of a schedule: sums of a call, gathered data, padding, and values for instructions
    that finish sums.
    """

    sums: Buffer
    col: Buffer
    padding: PaddingBuffers
    repeated: RepeatedValues


@frozen(eq=False)
class _Im2colSchedule:
    """The schedule of one contraction.

    req, channel        the contraction, and the axis of its outputs
    data, at            its data and positions
    taps                reduction axes for each point of which a run is gathered
    run                 contiguous bytes of the data at one kernel offset; 0 if a run consists of channels
    block               variable that counts blocks of weights (channels of depthwise convolutions)
    inner               variables that count outputs of a block and elements of a run
    weights             address of a weight
    tap_stride_bytes    bytes between the weights of consecutive taps, for depthwise convolutions
    """

    req: TilingRequest
    channel: te.Axis
    data: ContractionData
    at: _OutputPositions
    taps: Sequence[te.Axis]
    run: int
    block: Var
    inner: Sequence[Var]
    weights: LinearForm
    tap_stride_bytes: int = 0

    @property
    def kernel(self) -> MicroKernel:
        """The micro-kernel."""
        return self.req.kernel

    @property
    def tap_count(self) -> int:
        """Number of runs of an output position."""
        return iteration_space_point_count(self.taps)

    @property
    def is_in_place(self) -> bool:
        """True if the data of a position is contiguous and read where it is, one position at a time."""
        multiply = self.kernel.multiply_in_place if self.run else self.kernel.multiply_depthwise
        is_contiguous = self.tap_count == 1 and not self.data.possibly_out_of_range_dims
        is_alone = self.kernel.positions == 1 or self.at.tiled_axis_extent == 1
        return bool(multiply) and is_contiguous and is_alone

    @property
    def positions_per_tile(self) -> int:
        """Number of output positions of a tile."""
        return 1 if self.is_in_place else self.kernel.positions

    @property
    def blocks_per_call(self) -> int:
        """Number of blocks of weights of a call."""
        block = self.kernel.outputs_per_weight_block if self.run else 1
        return min(self.kernel.max_outputs // block, -(-self.channel[1] // block))

    @property
    def outputs_per_call(self) -> int:
        """Number of outputs of a call, including those that pad its last block."""
        return self.blocks_per_call * (self.kernel.outputs_per_weight_block if self.run else 1)

    def gathered_elements(self, run: int) -> int:
        """Return the elements of the gathered runs of `run` bytes of all positions of a tile."""
        padded_run = -(-run // self.kernel.group) * self.kernel.group
        return self.tap_count * padded_run * self.positions_per_tile

    @property
    def estimated_cycles(self) -> float:
        """Estimated cycles of the whole contraction."""
        kernel, outputs, taps = self.kernel, self.channel[1], self.tap_count
        positions = iteration_space_point_count(self.at.axes)
        tiles = positions // self.at.tiled_axis_extent * -(-self.at.tiled_axis_extent // self.positions_per_tile)
        calls = tiles * -(-outputs // kernel.max_outputs)
        bytes_of_position = self.gathered_elements(self.run) // self.positions_per_tile
        steps = -(-outputs // kernel.outputs) * -(-bytes_of_position // kernel.depth)
        # a run of a depthwise convolution consists of channels, which are computed together
        steps = steps if self.run else taps * -(-outputs // kernel.depth)
        gathered = 0 if self.is_in_place else tiles if self.run else calls
        elements_of_run = self.gathered_elements(self.run or outputs) // taps
        return memory_kernel_cycles(
            self.req.target,
            kernel,
            calls=calls,
            tiles=tiles * steps,
            runs=gathered * taps,
            copies=gathered * taps * -(-elements_of_run // kernel.pack_lanes) + self.data.copy_cycles,
            sums=positions * outputs,
        )

    def build_loop_nest(self) -> ContractionNest:
        """Return the loop nest of the contraction with the buffers it needs."""
        outputs_per_call = self.outputs_per_call
        run = self.run or outputs_per_call
        sums = self.positions_per_tile * outputs_per_call
        buffers = _Buffers(
            new_private_scratch_buffer("tile", self.req.contraction.dtype, sums, "stack"),
            new_private_scratch_buffer("col", DType(self.kernel.packed), self.gathered_elements(run)),
            self.data.allocate_padding_buffers(run, self.positions_per_tile),
            RepeatedValues(outputs_per_call),
        )
        axes, tile = self._loops_over_tiles()
        first = [self._gather(buffers, tile, as_expr(0), run)] if self.run and not self.is_in_place else []
        nest = loop_nest(axes, Block((*first, *self._loops_over_outputs(buffers, tile))), "independent")
        start = buffers.padding.fill_padding_buffer(self.req.contraction.fill)
        start += [fill_buffer_loop(buffer, value) for value, buffer in buffers.repeated.buffers.items()]
        scratch = [] if self.is_in_place else [buffers.col, *buffers.padding.all_padding_buffers]
        return ContractionNest(
            Block((*self.data.before, *start, nest)),
            (buffers.sums, *buffers.repeated.buffers.values()),
            (*self.data.workspace, *scratch),
        )

    def _loops_over_tiles(self) -> tuple[Sequence[te.Axis], _PositionTile]:
        """Return the loops over tiles of output positions, and the positions of a tile."""
        size = self.positions_per_tile
        if size == 1:
            return self.at.axes, _PositionTile(({},), (None,))
        count, number = self.at.tiled_axis_extent, Var("t")
        column = self.at.axes[-1][0] if self.at.axes else Var("none")
        places = [number * size + k for k in range(size)]
        tests = [None if count % size == 0 or k == 0 else place < count for k, place in enumerate(places)]
        tile = _PositionTile([{column: place} for place in places], tests)
        return [*self.at.axes[:-1], (number, -(-count // size))], tile

    def _loops_over_outputs(self, buffers: _Buffers, tile: _PositionTile) -> list[Stmt]:
        """Return the calls for all outputs of a tile of positions, each followed by its stores.

        Blocks are padded to their size, so that all calls compute whole blocks; rows are not.
        """
        outputs, size, number = self.channel[1], self.outputs_per_call, Var("o")
        body = self._call_and_stores(buffers, tile, number * self.blocks_per_call, size)
        if self.run and self.kernel.outputs_per_weight_block > 1:
            return [forall(number, -(-outputs // size), body)]
        parts: list[Stmt] = [forall(number, outputs // size, body)]
        if rest := outputs % size:
            parts.append(self._call_and_stores(buffers, tile, as_expr(outputs - rest), rest))
        return parts

    def _call_and_stores(self, buffers: _Buffers, tile: _PositionTile, first_block: Expr, count: int) -> Stmt:
        """Return the call that computes `count` outputs, those of block `first_block` first, and the
        stores of their sums.
        """
        own = [self._gather(buffers, tile, first_block, count)] if not self.run and not self.is_in_place else []
        call = self._multiply(buffers, first_block, count)
        return Block((*own, call, self._finish_and_store(buffers, tile, first_block, count)))

    def _run_begin(self, position: Mapping[Var, Expr], first_block: Expr) -> Expr:
        """Return the address of the first element of the runs of an output position."""
        zero = dict.fromkeys(self.inner, as_expr(0))
        return substitute(self.at.position, {**zero, self.block: first_block, **position})

    def _gather(self, buffers: _Buffers, tile: _PositionTile, first_block: Expr, run: int) -> Stmt:
        """Return the statements that gather runs of `run` bytes of all positions of a tile."""
        count = self.at.tiled_axis_extent
        places = [
            # a position that does not exist reads the data of the last one
            place if test is None else {v: minimum(e, count - 1) for v, e in place.items()}
            for place, test in zip(tile.places, tile.exists, strict=True)
        ]
        run_starts = [(self._run_begin(place, first_block), self.at.data_axis_values(place)) for place in places]
        index = te.flat_index([n for _, n in self.taps], [v for v, _ in self.taps])
        begin = simplify(index * (self.gathered_elements(run) // self.tap_count), {})

        def store_runs(runs: list[Expr]) -> Stmt:
            return execute_to_memory(self.kernel.pack, buffers.col, begin, *runs)

        return self.data.gather_runs_over_taps(
            run_starts, buffers.padding, run, self.taps, store_runs, self.req.contraction.fill
        )

    def _multiply(self, buffers: _Buffers, first_block: Expr, count: int) -> Stmt:
        """Return the call that computes the sums of `count` outputs."""
        kernel, taps, run = self.kernel, self.tap_count, self.run or count
        if self.is_in_place:
            zero = {v: as_expr(0) for v, _ in self.taps}
            data = Load(self.data.buffer, simplify(self._run_begin(zero, first_block), {}), run)
        else:
            data = Load(buffers.col, as_expr(0), self.gathered_elements(run))
        begin = {self.block: first_block, **dict.fromkeys((*(v for v, _ in self.taps), *self.inner), as_expr(0))}
        first = simplify(substitute(self.weights.to_expr(), begin), {})
        if not self.run:
            weights = Load(self.req.b, first, (taps - 1) * self.tap_stride_bytes + count)
            numbers = const(taps, "int32"), const(self.tap_stride_bytes, "int32")
            return execute_to_memory(kernel.multiply_depthwise, buffers.sums, 0, data, weights, *numbers)
        bytes_of_position = self.gathered_elements(run) // self.positions_per_tile
        rows = Load(self.req.b, first, bytes_of_position * count)
        name = kernel.multiply_in_place if self.is_in_place else kernel.multiply
        return execute_to_memory(name, buffers.sums, 0, data, rows)

    def _finish_and_store(self, buffers: _Buffers, tile: _PositionTile, first_block: Expr, count: int) -> Stmt:
        """Return the statement that finishes and stores the sums of a call: an instruction of the
        micro-kernel that does so, or a loop.
        """
        output, outputs = Var("o"), self.channel[1]
        block = self.kernel.outputs_per_weight_block if self.run else 1
        first = first_block * block
        stored: list[Stmt] = []
        for k, (place, exists) in enumerate(zip(tile.places, tile.exists, strict=True)):
            values = {**self.at.data_axis_values(place), self.channel[0]: first + output}
            sums = Load(buffers.sums, output * self.positions_per_tile + k)
            element = self.req.store(tuple(values.get(v, v) for v, _ in self.req.contraction.axes), sums)
            stored.append(element if exists is None else If(exists, element))
        stmt = stored[0] if len(stored) == 1 else Block(stored)
        if outputs % block:
            return forall(output, minimum(count, outputs - first), stmt)
        finish = select_elementwise_instruction(stmt, output, count, self.kernel.finish, buffers.repeated)
        return finish or forall(output, count, stmt)
