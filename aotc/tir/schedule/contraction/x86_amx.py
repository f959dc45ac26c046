# SPDX-License-Identifier: Apache-2.0
"""int8 GEMM schedule for x86 AMX: call micro-kernels that multiply matrices in memory
(`aotc.tir.amx_kernels`). All sizes of a call are those of the micro-kernel's row.

From a TilingRequest, statements. One call multiplies the data of consecutive positions, of one or
several rows, by some blocks of outputs, over the whole reduction; data with a border is copied with
its padding before:

    for part of the positions: for some blocks of outputs:
      tile = matrices(data, weights, sizes, distances)
      for position: for block: store(tile[...sums of the block])

The positions between the rows of an image (padding) are computed where that is faster than a call
for each row, but not stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from aotc.ir import DType, frozen
from aotc.tir import BYTES_PER_DOT, Buffer, Expr, Load, Var, as_expr, const, new_private_scratch_buffer, substitute, te
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.loops.statement_vectorization import MAX_OPERATIONS_IN_TILE, vectorize_stmt_or_none
from aotc.tir.micro_kernels import MicroKernel
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ChannelSplit,
    FusedDataAxes,
    contiguous_weight_reduction_axis_index,
    fuse_data_axes,
    iteration_space_point_count,
    row_major_address,
)
from aotc.tir.schedule.contraction.im2col_packing import ContractionData
from aotc.tir.schedule.contraction.operand_staging import pack_operand_in_axis_order
from aotc.tir.schedule.contraction.register_tiling_types import OutputStores
from aotc.tir.schedule.contraction.tiling_completion import MemoryKernelCandidate, TilingRequest
from aotc.tir.schedule.contraction.tiling_cost import memory_kernel_cycles
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest
from aotc.tir.simplify import LinearForm, linear_form, simplify
from aotc.tir.stmt import Block, Stmt, forall, loop_nest


def x86_amx_candidates(contraction: te.Contraction, request: TilingRequest) -> list[MemoryKernelCandidate]:
    """Return the candidates that compute an int8 contraction by a micro-kernel that multiplies
    matrices, such as `X86_AMX`: with the data in place (or with its padding in a copy), and with an
    im2col copy of it.

    request    the contraction with its reduction in groups of four
    """
    number, channel = contiguous_weight_reduction_axis_index(contraction), request.output_channel_axis
    last = next((v for v, n in reversed(contraction.axes) if n > 1), None)
    block = request.kernel.block
    if number is None or channel is None or channel[1] < block or last is not channel[0]:
        return []
    split = request.split_output_channels(block)
    if split is None:
        return []
    step_axis = request.contraction.reduce_axes[number]
    candidates: list[MemoryKernelCandidate] = []
    for kind, make_data in (("", _data_with_adjacent_byte_groups), (" columns", _im2col_copy)):
        data = make_data(request, split, step_axis)
        schedule = None if data is None else _AmxSchedule.amx_schedule_for_data(request, split, step_axis, data)
        if schedule is not None:
            candidates.append(
                MemoryKernelCandidate(schedule.estimated_cycles, request.kernel.name + kind, schedule.build_loop_nest)
            )
    return candidates


@frozen(eq=False)
class _CallPositions:
    """The output positions of one AMX call.

    row, rows      first row, number of rows
    begin, count   first position in each row, number of positions in each row
    skipped        positions before `begin` that are computed, but not stored
    """

    row: Expr
    rows: int
    begin: Expr
    count: int
    skipped: int = 0


@frozen(eq=False)
class _AmxSchedule:
    """A contraction by AMX calls.

    req, channel the contraction, and the axis of its outputs
    split        the operands, with outputs in blocks
    data         the data or its copy
    pixels       axes of the data
    axes         axes that positions are counted along, at least two
    pitch        bytes of data from one position to the next
    row_stride   positions from one row to the next
    run          bytes of the reduction that are contiguous
    taps         the other reduction axes: extent, distance in the data, distance in the weights
    weights      address of a weight
    """

    req: TilingRequest
    channel: te.Axis
    split: ChannelSplit
    data: ContractionData
    pixels: FusedDataAxes
    axes: Sequence[te.Axis]
    pitch: int
    row_stride: int
    run: int
    taps: Sequence[tuple[int, int, int]]
    weights: LinearForm

    @staticmethod
    def amx_schedule_for_data(
        request: TilingRequest, split: ChannelSplit, step_axis: te.Axis, data: ContractionData
    ) -> _AmxSchedule | None:
        """Return the schedule for a given layout of the data; None if the layout is unsuitable."""
        (var, extent), weights, kernel = step_axis, row_major_address(split.b), request.kernel
        taps = _other_reduction_axes_with_strides(request, data.position, weights, var)
        if taps is None or (extent > 1 and weights.coefficient(var) != kernel.block * BYTES_PER_DOT):
            return None
        run = extent * BYTES_PER_DOT
        while contiguous_taps := [tap for tap in taps if tap[1:] == (run, run * kernel.block)]:
            taps.remove(contiguous_taps[0])
            run *= contiguous_taps[0][0]
        depth = run * iteration_space_point_count([(var, n) for n, *_ in taps])
        if (
            len(taps) > 2
            or depth < kernel.min_reduction_bytes
            or _step_bytes_dividing_contiguous_run(run, kernel.depth) < kernel.min_run_bytes
        ):
            return None
        pixels = fuse_data_axes(request.analysis, (), data.position)
        long_axes = [axis for axis in pixels.axes if axis[1] > 1]
        axes = [*((Var("one"), 1) for _ in range(2 - len(long_axes))), *long_axes]
        (high, rows), (wide, count) = axes[-2:]
        row, pitch = (pixels.position.coefficient(v) for v in (high, wide))
        if row is None or not pitch or pitch < 0 or row % pitch or (rows > 1 and row < count * pitch):
            return None
        channel = request.output_channel_axis
        if channel is None or rows * count < kernel.min_positions:
            return None
        return _AmxSchedule(request, channel, split, data, pixels, axes, pitch, row // pitch, run, taps, weights)

    @property
    def kernel(self) -> MicroKernel:
        """The micro-kernel that the calls run."""
        return self.req.kernel

    @property
    def best_output_rows_per_amx_call(self) -> int:
        """Rows of a call."""
        (_, high), (_, wide) = self.axes[-2:]
        most = self.kernel.max_positions
        fitting = [r for r in range(1, high + 1) if (r - 1) * self.row_stride + wide <= most]
        return min(fitting, key=self._time_in_positions_for_rows_per_call) if fitting else 1

    @property
    def estimated_time_in_output_positions(self) -> int:
        """Estimated time of the last two position axes, in output positions computed."""
        return self._time_in_positions_for_rows_per_call(self.best_output_rows_per_amx_call)

    def _time_in_positions_for_rows_per_call(self, rows_per_call: int) -> int:
        """Estimate the time of the last two position axes with `rows_per_call` rows per AMX call,
        in output positions computed.
        """
        (_, high), (_, wide) = self.axes[-2:]
        positions = (rows_per_call - 1) * self.row_stride + wide
        return -(-high // rows_per_call) * _amx_call_time_in_output_positions(self.kernel, positions)

    @property
    def estimated_cycles(self) -> float:
        """Estimated cycles of the whole contraction."""
        outer, kernel = iteration_space_point_count(self.axes[:-2]), self.kernel
        step_bytes = _step_bytes_dividing_contiguous_run(self.run, kernel.depth)
        steps = self.run // step_bytes * math.prod(n for n, *_ in self.taps)
        blocks = -(-self.channel[1] // kernel.block)
        (_, high), (_, wide) = self.axes[-2:]
        rows = self.best_output_rows_per_amx_call
        calls = outer * -(-high // rows) * -(-blocks // self.max_output_blocks_per_call)
        calls *= -(-wide // kernel.max_positions)
        overhead = kernel.call_positions * -(-high // rows)
        positions = outer * (self.estimated_time_in_output_positions - overhead) * self.data.slowdown
        sums = outer * iteration_space_point_count(self.axes[-2:]) * self.channel[1]
        return memory_kernel_cycles(
            self.req.target,
            kernel,
            calls=calls,
            tiles=positions / kernel.positions * blocks * steps,
            runs=0,
            copies=self.data.copy_cycles,
            sums=sums,
        )

    def build_loop_nest(self) -> ContractionNest:
        """Return the loop nest of an int8 contraction on AMX with the buffers it needs."""
        rows, (_, wide) = self.best_output_rows_per_amx_call, self.axes[-1]
        positions = min(wide, self.kernel.max_positions) if rows == 1 else (rows - 1) * self.row_stride + wide
        tile = new_private_scratch_buffer(
            "tile", DType("int32"), positions * self.output_blocks_per_call * self.kernel.block
        )
        parts = Block(
            self._loops_over_equal_amx_calls(tile, part) for part in self._groups_of_equally_shaped_amx_calls(rows)
        )
        nest = loop_nest(self.axes[:-2], parts, "independent")
        return ContractionNest(Block((*self.data.before, nest)), (), (*self.data.workspace, tile))

    @property
    def max_output_blocks_per_call(self) -> int:
        """Largest number of output-channel blocks of a call."""
        return self.kernel.max_outputs // self.kernel.block

    @property
    def output_blocks_per_call(self) -> int:
        """Number of output-channel blocks of an AMX call."""
        return min(self.max_output_blocks_per_call, -(-self.channel[1] // self.kernel.block))

    def _groups_of_equally_shaped_amx_calls(self, rows_per_call: int) -> Iterator[tuple[Var, int, _CallPositions]]:
        """Yield groups of AMX calls of equal shape: loop variable, number of calls, and the output
        positions of one call.
        """
        (_, high), (_, wide) = self.axes[-2:]
        number, left, most = Var("p"), Var("p"), self.kernel.max_positions
        if wide <= most:
            yield number, high // rows_per_call, _CallPositions(number * rows_per_call, rows_per_call, as_expr(0), wide)
            yield (
                left,
                int(high % rows_per_call > 0),
                _CallPositions(as_expr(high - high % rows_per_call), high % rows_per_call, as_expr(0), wide),
            )
            return
        row, rest = Var("r"), wide % most
        each = wide // most
        yield number, high * each, _CallPositions(number // each, 1, number % each * most, most)
        skipped = max(0, self.kernel.positions - rest)
        yield row, high * (rest > 0), _CallPositions(row, 1, as_expr(wide - rest), rest, skipped)

    def _loops_over_equal_amx_calls(self, sums_buffer: Buffer, call_group: tuple[Var, int, _CallPositions]) -> Stmt:
        """Return the loops over AMX calls of equal shape, and over the blocks of output channels."""
        var, count, positions = call_group
        if not count:
            return Block(())
        block, size = Var("o"), self.output_blocks_per_call
        outputs = self.channel[1]
        whole, rest = divmod(-(-outputs // self.kernel.block), size)
        last = outputs % self.kernel.block
        # if the last block is partial and alone in its call, all other blocks are full
        alone = int(bool(last) and not rest)
        calls: list[Stmt] = [
            forall(block, whole - alone, self._amx_call_and_stores(sums_buffer, positions, block * size, size))
        ]
        if alone or rest:
            calls.append(
                self._amx_call_and_stores(sums_buffer, positions, as_expr((whole - alone) * size), rest or size)
            )
        return forall(var, count, Block(calls))

    def _amx_call_and_stores(
        self, sums_buffer: Buffer, call_positions: _CallPositions, first_block: Expr, block_count: int
    ) -> Stmt:
        """Return an AMX call that computes the sums of some output positions and blocks of
        channels, followed by the stores.
        """
        split, run = self.split, self.run
        zero = dict.fromkeys((*(v for v, _ in self.req.contraction.reduce_axes), split.lane, split.tile), as_expr(0))
        assert self.req.group is not None
        zero[self.req.group] = as_expr(0)
        (high, _), (wide, _) = self.axes[-2:]
        names = {**zero, high: call_positions.row, wide: call_positions.begin - call_positions.skipped}
        positions = (call_positions.rows - 1) * self.row_stride + call_positions.count + call_positions.skipped
        reach = run + sum((n - 1) * x for n, x, _ in self.taps)
        data = Load(
            self.data.buffer, _substitute_in_address(self.pixels.position, names), (positions - 1) * self.pitch + reach
        )
        block_stride = self.weights.coefficient(split.tile) or 0
        deep = run * self.kernel.block + sum((n - 1) * w for n, _, w in self.taps)
        weights = Load(
            self.req.b,
            _substitute_in_address(self.weights, {**zero, split.tile: first_block}),
            (block_count - 1) * block_stride + deep,
        )
        width = _step_bytes_dividing_contiguous_run(run, self.kernel.depth)
        taps = [*self.taps, *((1, 0, 0) for _ in range(2 - len(self.taps)))]
        numbers = (
            positions,
            self.pitch,
            block_count,
            block_stride,
            width,
            run // width,
            *(n for tap in taps for n in tap),
        )
        name = self.kernel.multiply_name(self.data.buffer.dtype, self.req.b.dtype)
        sums = execute_to_memory(name, sums_buffer, 0, data, weights, *(const(n, "int32") for n in numbers))
        return Block((sums, self._store_loops_of_amx_call(sums_buffer, call_positions, first_block, block_count)))

    def _store_loops_of_amx_call(
        self, sums_buffer: Buffer, positions: _CallPositions, first_block: Expr, block_count: int
    ) -> Stmt:
        """Return the loops that finish and store the int32 sums of an AMX call."""
        below, column = Var("r"), Var("x")
        (high, _), (wide, _) = self.axes[-2:]
        position = below * self.row_stride + column + positions.skipped
        values = {v: as_expr(0) for v, n in self.req.contraction.axes if n == 1}
        values |= {high: positions.row + below, wide: positions.begin + column}
        stmts = [
            self._store_sums_of_channel_block(
                sums_buffer,
                values,
                (position * block_count + k) * self.kernel.block,
                (first_block + k) * self.kernel.block,
            )
            for k in range(block_count)
        ]
        return loop_nest([(below, positions.rows), (column, positions.count)], Block(stmts), "independent")

    def _store_sums_of_channel_block(
        self, sums_buffer: Buffer, axis_values: dict[Var, Expr], sums_index: Expr, first_channel: Expr
    ) -> Stmt:
        """Return the statement that finishes and stores the sums of one block of channels, as a
        vector where possible.
        """
        lane, scalar = Var("lane"), Var("done", sums_buffer.dtype)
        end = linear_form(first_channel, {})
        (channel, outputs), block = self.channel, self.kernel.block
        count = block if end.terms else min(block, outputs - end.const)
        output = OutputStores(self.req.contraction.axes, self.req.store, self.pixels.unfuse)
        axis_values = {**axis_values, channel: first_channel + lane}
        if count == block:
            sums = Load(sums_buffer, sums_index, block)
            vector_store = vectorize_stmt_or_none(
                output.store_element(axis_values, scalar),
                lane,
                block,
                {scalar: sums},
                max_operations=MAX_OPERATIONS_IN_TILE,
            )
            if vector_store is not None:
                return vector_store
        return forall(lane, count, output.store_element(axis_values, Load(sums_buffer, sums_index + lane)))


def _substitute_in_address(address: LinearForm, values_of_vars: dict[Var, Expr]) -> Expr:
    """Return an address, a linear form, for given values of its variables."""
    return simplify(substitute(address.to_expr(), values_of_vars), {})


def _step_bytes_dividing_contiguous_run(contiguous_bytes: int, max_bytes: int) -> int:
    """Return the bytes of a reduction step: the largest multiple of four up to `max_bytes` that divides
    a run.
    """
    return max(n for n in range(BYTES_PER_DOT, max_bytes + 1, BYTES_PER_DOT) if contiguous_bytes % n == 0)


def _data_with_adjacent_byte_groups(
    request: TilingRequest, split: ChannelSplit, step_axis: te.Axis
) -> ContractionData | None:
    """Return the data, or a padded copy, in which groups of four bytes are adjacent; None if it
    cannot be copied.
    """
    position, place, (var, extent) = row_major_address(split.a), request.group, step_axis
    assert place is not None
    near = position.coefficient(place) == 1 and (extent == 1 or position.coefficient(var) == BYTES_PER_DOT)
    if near and all(d.inside for d in split.a):
        return ContractionData(request.a, position, ())
    return ContractionData.padded_contraction_data_copy(request, split)


def _im2col_copy(request: TilingRequest, split: ChannelSplit, step_axis: te.Axis) -> ContractionData | None:
    """Return an im2col copy, in which all data of a position is contiguous; None if it exceeds the
    cache, or if few bytes of the data are contiguous.
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


def _amx_call_time_in_output_positions(kernel: MicroKernel, positions: int) -> int:
    """Estimate the time of an AMX call, in output positions.

    Counts whole tile registers of positions, the weights for each pair of registers, and the call
    itself.
    """
    return (
        -(-positions // kernel.positions) * kernel.positions
        + -(-positions // (2 * kernel.positions)) * kernel.positions
        + kernel.call_positions
    )
