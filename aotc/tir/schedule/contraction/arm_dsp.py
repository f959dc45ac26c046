# SPDX-License-Identifier: Apache-2.0
"""int8 GEMM schedule for Cortex-M with the DSP extension (SMLAD): from a TilingRequest, calls of
`aotc.tir.arm_dsp_kernels`.

im2col for two positions at a time, in runs (the bytes that are contiguous at one kernel offset),
widened to int16; then one micro-kernel call per block of outputs. Sizes are arguments of the
micro-kernel, so that all layers share it:

    for two positions:
      for taps: col[...] = pairs2(data of position 0, 1)      # bytes of `fill` outside of the data
      for block of outputs: tile = pairs2x4(col, weights); for output: for position: store(tile[...])

A single position, as in a vector-matrix product, is not copied: `bytes1x4`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from aotc.ir import DType, frozen
from aotc.tir import Buffer, Expr, Load, Var, as_expr, minimum, new_private_scratch_buffer, te
from aotc.tir.expr import substitute
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.micro_kernels import MicroKernel
from aotc.tir.schedule.contraction import contraction_index_analysis
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ChannelSplit,
    are_axes_row_major_contiguous,
    contiguous_weight_reduction_axis_index,
    fuse_data_axes,
    row_major_address,
)
from aotc.tir.schedule.contraction.im2col_packing import ContractionData, PaddingBuffers
from aotc.tir.schedule.contraction.tiling_completion import MemoryKernelCandidate, TilingRequest
from aotc.tir.schedule.contraction.tiling_cost import memory_kernel_cycles
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest
from aotc.tir.simplify import LinearForm, simplify
from aotc.tir.stmt import Block, If, Stmt, forall, loop_nest


def arm_dsp_candidates(contraction: te.Contraction, request: TilingRequest) -> list[MemoryKernelCandidate]:
    """Return the candidate that computes a contraction by a micro-kernel that reads packed positions
    and blocks of weights, such as `ARM_DSP`; none if data or weights are not contiguous.

    request    the contraction with its reduction in groups, and the micro-kernel
    """
    number = contiguous_weight_reduction_axis_index(contraction)
    if number is None:
        return []
    step_var, run_bytes = request.contraction.reduce_axes[number][0], contraction.reduce_axes[number][1]
    schedule = _ArmDspSchedule.build_arm_dsp_schedule(request, step_var, run_bytes)
    if schedule is None:
        return []
    return [MemoryKernelCandidate(schedule.estimated_cycles, request.kernel.name, schedule.build_loop_nest)]


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


@frozen(eq=False)
class _ArmDspSchedule:
    """The Cortex-M DSP schedule of one contraction.

    req, channel           the contraction, and the axis of its outputs
    split, data, at        blocks of outputs, data and positions
    steps                  variable that counts the groups of a run
    run                    contiguous bytes of the data at one kernel offset
    taps                   the other reduction axes
    weights                address of a weight, by block, output in it, taps and steps
    """

    req: TilingRequest
    channel: te.Axis
    split: ChannelSplit
    data: ContractionData
    at: _OutputPositions
    steps: Var
    run: int
    taps: Sequence[te.Axis]
    weights: LinearForm

    @staticmethod
    def build_arm_dsp_schedule(request: TilingRequest, step_var: Var, run_bytes: int) -> _ArmDspSchedule | None:
        """Return the Cortex-M DSP schedule of a contraction; None if the data depends on the output
        channel or cannot be copied, or if the weights are not contiguous.
        """
        kernel = request.kernel
        split = request.split_output_channels(kernel.block)
        if split is None or request.output_channel_axis is None:
            return None
        data = ContractionData.direct_or_padded_data(request, split, step_var, run_bytes)
        taps = [axis for axis in request.contraction.reduce_axes if axis[0] is not step_var]
        weights = row_major_address(split.b)
        axes = [*taps, (step_var, -(-run_bytes // kernel.group))]
        if data is None or not are_axes_row_major_contiguous(weights, axes, kernel.block * kernel.group):
            return None
        return _ArmDspSchedule(
            request,
            request.output_channel_axis,
            split,
            data,
            _OutputPositions.fuse_output_positions(request, data),
            step_var,
            run_bytes,
            taps,
            weights,
        )

    @property
    def kernel(self) -> MicroKernel:
        """The micro-kernel."""
        return self.req.kernel

    @property
    def im2col_buffer_elements(self) -> int:
        """Elements of the im2col column buffer."""
        run_groups = -(-self.run // self.kernel.group)
        return math.prod(n for _, n in self.taps) * run_groups * self.kernel.group * self.kernel.positions

    @property
    def weight_bytes_per_output_block(self) -> int:
        """Bytes of the packed weights of a block of outputs."""
        return self.im2col_buffer_elements // self.kernel.positions * self.kernel.block

    @property
    def is_single_position(self) -> bool:
        """True if there is one output position (in each iteration of the outer loops) whose data is
        contiguous, and need not be gathered.
        """
        is_gathered = math.prod(n for _, n in self.taps) > 1 or self.data.possibly_out_of_range_dims
        return bool(self.kernel.multiply_single) and self.at.tiled_axis_extent == 1 and not is_gathered

    @property
    def estimated_cycles(self) -> float:
        """Estimated cycles of the whole contraction."""
        outer = math.prod(n for _, n in self.at.axes[:-1])
        tiles = outer * -(-self.at.tiled_axis_extent // self.kernel.positions)
        blocks = -(-self.channel[1] // self.kernel.block)
        bytes_per_position = self.im2col_buffer_elements // self.kernel.positions
        gathered = 0 if self.is_single_position else tiles
        return memory_kernel_cycles(
            self.req.target,
            self.kernel,
            calls=tiles * blocks,
            tiles=tiles * blocks * bytes_per_position / self.kernel.depth,
            runs=gathered * math.prod(n for _, n in self.taps),
            copies=gathered * self.im2col_buffer_elements + self.data.copy_cycles,
            sums=self.at.tiled_axis_extent * outer * self.channel[1],
        )

    def build_loop_nest(self) -> ContractionNest:
        """Return the loop nest of an int8 contraction on Cortex-M DSP with the buffers it needs."""
        alone = self.is_single_position
        tile = new_private_scratch_buffer(
            "tile",
            self.req.contraction.dtype,
            self.kernel.block if alone else self.kernel.block * self.kernel.positions,
            "stack",
        )
        if alone:
            body, scratch, start = self._loop_over_output_channel_blocks(tile), list[Buffer](), list[Stmt]()
        else:
            col = new_private_scratch_buffer("col", DType(self.kernel.packed), self.im2col_buffer_elements)
            spare = self.data.allocate_padding_buffers(self.run, self.kernel.positions)
            scratch = [col, *spare.all_padding_buffers]
            body = self._loop_over_output_position_tiles(tile, col, spare)
            start = spare.fill_padding_buffer(self.req.contraction.fill)
        nest = Block((*self.data.before, *start, loop_nest(self.at.axes[:-1], body, "independent")))
        return ContractionNest(nest, (tile,), (*self.data.workspace, *scratch))

    def _loop_over_output_position_tiles(
        self, tile_buffer: Buffer, im2col_buffer: Buffer, padding: PaddingBuffers
    ) -> Stmt:
        """Return the loop over tiles of output positions: gather, call the micro-kernel for each
        block of channels, store.
        """
        count, number, block, output = self.at.tiled_axis_extent, Var("t"), Var("o"), Var("o")
        column = self.at.axes[-1][0] if self.at.axes else Var("none")
        base, whole = number * self.kernel.positions, count % self.kernel.positions == 0
        places = [base + k if whole or k == 0 else minimum(base + k, count - 1) for k in range(self.kernel.positions)]
        gathered = self._gather_im2col_of_positions(im2col_buffer, padding, [{column: place} for place in places])
        sums = execute_to_memory(
            self.kernel.multiply,
            tile_buffer,
            0,
            Load(im2col_buffer, as_expr(0), self.im2col_buffer_elements),
            self._load_weights_of_block(block),
        )
        stored: list[Stmt] = []
        for k in range(self.kernel.positions):
            value = Load(tile_buffer, output * self.kernel.positions + k)
            element = self._store_output_element(block * self.kernel.block + output, {column: base + k}, value)
            stored.append(element if whole or k == 0 else If(base + k < count, element))
        finish = forall(output, self._output_channel_count_in_block(block), Block(stored))
        outputs = self.channel[1]
        body = forall(block, -(-outputs // self.kernel.block), Block((sums, finish)))
        return forall(number, -(-count // self.kernel.positions), Block((gathered, body)))

    def _gather_im2col_of_positions(
        self, im2col_buffer: Buffer, padding: PaddingBuffers, positions: Sequence[Mapping[Var, Expr]]
    ) -> Stmt:
        """Return the statements that gather the data of a tile's output positions into the im2col
        buffer.
        """
        zero = self._substitute_output_and_step_vars_by_zero()
        run_starts = [
            (substitute(self.at.position, {**zero, **place}), self._data_axis_values_at_position(place))
            for place in positions
        ]
        to = substitute(self.weights.to_expr(), zero)

        def store_interleaved_runs_to_im2col(runs: list[Expr]) -> Stmt:
            place = simplify(to * self.kernel.positions // self.kernel.block, {})
            return execute_to_memory(self.kernel.pack, im2col_buffer, place, *runs)

        return self.data.gather_runs_over_taps(
            run_starts, padding, self.run, self.taps, store_interleaved_runs_to_im2col, self.req.contraction.fill
        )

    def _output_channel_count_in_block(self, block: Expr) -> Expr:
        """Return the number of output channels in a block, which is smaller in the last block."""
        outputs = self.channel[1]
        return (
            as_expr(self.kernel.block)
            if outputs % self.kernel.block == 0
            else minimum(self.kernel.block, outputs - block * self.kernel.block)
        )

    def _load_weights_of_block(self, block: Expr) -> Load:
        """Return the load of the packed weights of a block of output channels."""
        names = dict.fromkeys((v for v, _ in self.taps), as_expr(0))
        names |= {**self._substitute_output_and_step_vars_by_zero(), self.split.tile: block}
        begin = substitute(self.weights.to_expr(), names)
        return Load(self.req.b, begin, self.weight_bytes_per_output_block)

    def _substitute_output_and_step_vars_by_zero(self) -> dict[Var, Expr]:
        """Return a substitution that sets the variables of outputs and of steps of a run to 0."""
        split, group = self.split, self.req.group
        assert group is not None
        return dict.fromkeys((split.tile, split.lane, self.steps, group), as_expr(0))

    def _loop_over_output_channel_blocks(self, tile_buffer: Buffer) -> Stmt:
        """Return the loop over blocks of output channels for a contraction with a single output
        position.
        """
        outputs, block, output = self.channel[1], Var("o"), Var("o")
        zero: dict[Var, Expr] = {
            v: as_expr(0) for v in contraction_index_analysis.variables_of_dimensions(self.split.a)
        }
        data = Load(self.data.buffer, substitute(self.data.position.to_expr(), zero), self.run)
        sums = execute_to_memory(self.kernel.multiply_single, tile_buffer, 0, data, self._load_weights_of_block(block))
        finish = forall(
            output,
            self._output_channel_count_in_block(block),
            self._store_output_element(block * self.kernel.block + output, {}, Load(tile_buffer, output)),
        )
        return forall(block, -(-outputs // self.kernel.block), Block((sums, finish)))

    def _store_output_element(self, output_channel: Expr, position: Mapping[Var, Expr], value: Expr) -> Stmt:
        """Return the statement that finishes and stores an output element."""
        names = {self.channel[0]: output_channel, **self._data_axis_values_at_position(position)}
        return self.req.store(tuple(names.get(v, v) for v, _ in self.req.contraction.axes), value)

    def _data_axis_values_at_position(self, position: Mapping[Var, Expr]) -> dict[Var, Expr]:
        """Return the values of the data's axes at an output position."""
        return {**position, **{v: substitute(e, position) for v, e in self.at.names.items()}}
