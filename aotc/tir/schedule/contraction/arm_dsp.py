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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import (
    BYTES_PER_DOT,
    Buffer,
    Expr,
    Load,
    Var,
    all_of,
    as_expr,
    fill_buffer_loop,
    minimum,
    new_private_scratch_buffer,
    te,
)
from aotc.tir.arm_dsp_kernels import OUTPUTS_PER_BLOCK, POSITIONS_PER_TILE, interleaved_int16_count
from aotc.tir.expr import Select, substitute
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.micro_kernels import ARM_DSP
from aotc.tir.schedule.contraction import contraction_index_analysis
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ChannelSplit,
    OperandDimension,
    are_axes_row_major_contiguous,
    contiguous_weight_reduction_axis_index,
    fuse_data_axes,
    row_major_address,
)
from aotc.tir.schedule.contraction.operand_staging import StagedOperand
from aotc.tir.schedule.contraction.tiling_completion import MemoryKernelCandidate, TilingRequest
from aotc.tir.schedule.contraction.tiling_cost import memory_kernel_cycles
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest
from aotc.tir.simplify import LinearForm, linear_form, simplify
from aotc.tir.stmt import Block, If, Stmt, Store, forall, loop_nest

#: Bytes of weights of a group of steps.
_WEIGHT_BYTES_PER_STEP_GROUP: Final = OUTPUTS_PER_BLOCK * BYTES_PER_DOT
#: Rows with fewer positions, unless they are whole tiles, are fused with the next outer axis.
MAX_NARROW_ROW_POSITIONS: Final = 4


def arm_dsp_candidates(contraction: te.Contraction, request: TilingRequest) -> list[MemoryKernelCandidate]:
    """Return the candidate that computes an int8 contraction by the micro-kernel `ARM_DSP`; none if
    data or weights are not contiguous.

    request    the contraction with its reduction in groups of four
    """
    number = contiguous_weight_reduction_axis_index(contraction)
    if number is None:
        return []
    step_var, run_bytes = request.contraction.reduce_axes[number][0], contraction.reduce_axes[number][1]
    schedule = _ArmDspSchedule.build_arm_dsp_schedule(request, step_var, run_bytes)
    if schedule is None:
        return []
    return [MemoryKernelCandidate(schedule.estimated_cycles, ARM_DSP.name, schedule.build_loop_nest)]


@frozen(eq=False)
class PaddingBuffers:
    """Buffers that replace runs (contiguous bytes of the data) which are outside of the data.

    blank   a run of padding; None if no run is completely outside
    edges   for each position, a buffer for a run that crosses a border
    """

    blank: Buffer | None
    edges: tuple[Buffer, ...]

    @property
    def all_padding_buffers(self) -> list[Buffer]:
        """All buffers for padding and border runs."""
        return [*([] if self.blank is None else [self.blank]), *self.edges]

    def fill_padding_buffer(self, value: int) -> list[Stmt]:
        """Return the statements that fill the padding buffer, before all runs are gathered."""
        return [] if self.blank is None else [fill_buffer_loop(self.blank, value)]


@frozen(eq=False)
class ContractionData:
    """The data of a contraction, or a copy of it with a border.

    buffer, position   the data, and the address of an element
    borders            indices that may be out of range, and are constant along a run
    crossed            indices that may be out of range for some elements of a run
    element            variable that counts the elements of a run
    workspace          buffers of the copy, filled by `before` in about `copy_cycles` cycles
    slowdown           factor of the time of the products, where the copy competes with them for caches
    """

    buffer: Buffer
    position: LinearForm
    borders: Sequence[OperandDimension]
    crossed: Sequence[OperandDimension] = ()
    element: Var | None = None
    workspace: Sequence[Buffer] = ()
    before: Sequence[Stmt] = ()
    copy_cycles: float = 0
    slowdown: float = 1

    @staticmethod
    def direct_or_padded_data(
        request: TilingRequest, split: ChannelSplit, step_var: Var, run_bytes: int
    ) -> ContractionData | None:
        """Return the data of a contraction itself if runs (bytes at one kernel offset) are
        contiguous in it, else a padded copy; None if it cannot be copied.

        A run that crosses a border is completed when it is gathered: a padded copy would take as
        much memory as the data.
        """
        place = request.group
        assert place is not None
        along = [d for d in split.a if place in d.variables_of_index]
        # elements of the last group beyond the end of a run are never read
        crossed = [
            d for d in along if not d.inside and not (d.variables_of_index <= {step_var, place} and not d.index.const)
        ]
        position = row_major_address(split.a)
        near = run_bytes <= request.contraction.group or position.coefficient(step_var) == request.contraction.group
        other_axis_vars = request.reduction_axis_vars - {step_var, place}
        regular = all(d.index.coefficient(place) == 1 and not d.variables_of_index & other_axis_vars for d in crossed)
        if near and position.coefficient(place) == 1 and regular:
            first: dict[Var, Expr] = {step_var: as_expr(0)}
            ends = [replace(d, index=linear_form(substitute(d.index.to_expr(), first), split.ranges)) for d in crossed]
            borders = [d for d in split.a if not d.inside and d not in along]
            return ContractionData(request.a, position, borders, ends, place)
        return ContractionData.padded_contraction_data_copy(request, split)

    @staticmethod
    def padded_contraction_data_copy(request: TilingRequest, split: ChannelSplit) -> ContractionData | None:
        """Return a copy of the data with its padding, in which the groups of a dot product are
        contiguous; None if it cannot be copied.
        """
        inner = request.output_axis_vars_of_data_only | request.reduction_axis_vars
        how = {"inner": inner, "fill": request.contraction.fill, "vector": request.group}
        staging = request.operand_scratch_copy("padded", request.a, split.a, split, **how)
        return None if staging is None else ContractionData.contraction_data_from_scratch_copy(staging, split)

    @staticmethod
    def contraction_data_from_scratch_copy(staging: StagedOperand, split: ChannelSplit) -> ContractionData:
        """Return a scratch copy of the data, filled before the loop nest."""
        before = [make({}) for make in (staging.zero, staging.copy) if make is not None]
        buffer = staging.operand.buffer
        position = linear_form(staging.operand.flat, split.ranges)
        cycles = staging.scratch_elements * staging.effort
        return ContractionData(buffer, position, (), workspace=(buffer,), before=before, copy_cycles=cycles)

    @property
    def possibly_out_of_range_dims(self) -> list[OperandDimension]:
        """All indices of the data that may be out of range."""
        return [*self.borders, *self.crossed]

    def allocate_padding_buffers(self, run_bytes: int, positions: int) -> PaddingBuffers:
        """Return padding buffers for runs (contiguous bytes of the data) of `run_bytes` bytes,
        `positions` runs at a time.
        """
        blank = new_private_scratch_buffer("blank", self.buffer.dtype, run_bytes) if self.borders else None
        edges = (
            new_private_scratch_buffer("edge", self.buffer.dtype, run_bytes)
            for _ in range(positions if self.crossed else 0)
        )
        return PaddingBuffers(blank, tuple(edges))

    def load_run_or_padding(
        self, index: Expr, padding: PaddingBuffers, byte_count: int, axis_values: Mapping[Var, Expr]
    ) -> Expr:
        """Return the load of `byte_count` contiguous bytes of data from `index` on, or of padding
        if they are out of range.

        axis_values    values of the data's axes
        """
        return self._load_or_padding_outside_of_data(
            Load(self.buffer, simplify(index, {}), byte_count), padding, axis_values
        )

    def conditions_for_run_in_bounds(self, byte_count: int, axis_values: Mapping[Var, Expr]) -> list[Expr]:
        """Return the conditions under which no run (contiguous bytes) of `byte_count` bytes crosses
        a border of the data.
        """
        first, last = (
            _conditions_for_indices_in_extents(
                self.crossed, {**axis_values, **self._substitution_for_run_element(as_expr(k))}
            )
            for k in (0, byte_count - 1)
        )
        return [first[k] if k % 2 == 0 else last[k] for k in range(len(first))]

    def load_and_complete_border_run(
        self,
        index: Expr,
        position_number: int,
        padding: PaddingBuffers,
        byte_count: int,
        axis_values: Mapping[Var, Expr],
    ) -> tuple[Stmt, Expr]:
        """Return the load of a run of data that crosses a border, and the statements that complete
        it with padding before.
        """
        k, edge = Var("k"), padding.edges[position_number]
        element = Store(edge, k, Load(self.buffer, simplify(index + k, {})))
        copy: Stmt = forall(
            k,
            byte_count,
            If(
                all_of(
                    *_conditions_for_indices_in_extents(
                        self.crossed, {**axis_values, **self._substitution_for_run_element(k)}
                    )
                ),
                element,
            ),
        )
        inside = _conditions_for_indices_in_extents(self.borders, axis_values)
        return If(all_of(*inside), copy) if inside else copy, self._load_or_padding_outside_of_data(
            Load(edge, as_expr(0), byte_count), padding, axis_values
        )

    def _load_or_padding_outside_of_data(
        self, load: Load, padding: PaddingBuffers, axis_values: Mapping[Var, Expr]
    ) -> Expr:
        """Return a load of data, replaced by a load of padding where the run is out of range."""
        inside = _conditions_for_indices_in_extents(self.borders, axis_values)
        return Select(all_of(*inside), load, Load(padding.blank, as_expr(0), load.lanes)) if padding.blank else load

    def _substitution_for_run_element(self, element: Expr) -> dict[Var, Expr]:
        """Return a substitution that sets the index within a run to `element`."""
        return {} if self.element is None else {self.element: element}

    def gather_runs_over_taps(
        self,
        positions: Sequence[tuple[Expr, Mapping[Var, Expr]]],
        padding: PaddingBuffers,
        run_bytes: int,
        taps: Sequence[te.Axis],
        stmt_from_runs: Callable[[list[Expr]], Stmt],
        fill: int,
    ) -> Stmt:
        """Return loops over kernel offsets (taps) around a statement that `stmt_from_runs` makes
        from the data runs of some positions.

        positions    for each position, the index of its first element, and the values of the data's axes
        padding      buffers for runs outside of the data
        run_bytes    bytes of a run
        taps         reduction axes outside of a run
        fill         the padding
        """
        plain = loop_nest(
            taps,
            stmt_from_runs([self.load_run_or_padding(index, padding, run_bytes, names) for index, names in positions]),
            "independent",
        )
        if not self.crossed:
            return plain
        parts = [
            self.load_and_complete_border_run(index, k, padding, run_bytes, names)
            for k, (index, names) in enumerate(positions)
        ]
        body = Block((*(copy for copy, _ in parts), stmt_from_runs([run for _, run in parts])))
        completed = Block(
            (*(fill_buffer_loop(edge, fill) for edge in padding.edges), loop_nest(taps, body, "independent"))
        )
        whole = [test for _, names in positions for test in self.conditions_for_run_in_bounds(run_bytes, names)]
        return If(all_of(*whole), plain, completed)


def _conditions_for_indices_in_extents(dims: Sequence[OperandDimension], axis_values: Mapping[Var, Expr]) -> list[Expr]:
    """Return, for each index, the conditions that it is at least 0 and less than its extent."""
    places = ((substitute(dim.index.to_expr(), dict(axis_values)), dim.extent) for dim in dims)
    return [test for place, end in places for test in (place >= 0, place < end)]


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
        if len(axes) > 1 and axes[-1][1] % POSITIONS_PER_TILE and axes[-1][1] < MAX_NARROW_ROW_POSITIONS:
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
        split = request.split_output_channels(OUTPUTS_PER_BLOCK)
        if split is None or request.output_channel_axis is None:
            return None
        data = ContractionData.direct_or_padded_data(request, split, step_var, run_bytes)
        taps = [axis for axis in request.contraction.reduce_axes if axis[0] is not step_var]
        weights = row_major_address(split.b)
        axes = [*taps, (step_var, -(-run_bytes // BYTES_PER_DOT))]
        if data is None or not are_axes_row_major_contiguous(weights, axes, _WEIGHT_BYTES_PER_STEP_GROUP):
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
    def im2col_buffer_elements(self) -> int:
        """Elements of the im2col column buffer."""
        return math.prod(n for _, n in self.taps) * interleaved_int16_count(self.run)

    @property
    def weight_bytes_per_output_block(self) -> int:
        """Bytes of the packed weights of a block of outputs."""
        return self.im2col_buffer_elements // POSITIONS_PER_TILE * OUTPUTS_PER_BLOCK

    @property
    def is_single_position(self) -> bool:
        """True if there is one output position (in each iteration of the outer loops) whose data is
        contiguous, and need not be gathered.
        """
        is_gathered = math.prod(n for _, n in self.taps) > 1 or self.data.possibly_out_of_range_dims
        return self.at.tiled_axis_extent == 1 and not is_gathered

    @property
    def estimated_cycles(self) -> float:
        """Estimated cycles of the whole contraction."""
        outer = math.prod(n for _, n in self.at.axes[:-1])
        tiles = outer * -(-self.at.tiled_axis_extent // POSITIONS_PER_TILE)
        blocks = -(-self.channel[1] // OUTPUTS_PER_BLOCK)
        bytes_per_position = self.im2col_buffer_elements // POSITIONS_PER_TILE
        gathered = 0 if self.is_single_position else tiles
        return memory_kernel_cycles(
            self.req.target,
            ARM_DSP,
            calls=tiles * blocks,
            tiles=tiles * blocks * bytes_per_position / ARM_DSP.depth,
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
            OUTPUTS_PER_BLOCK if alone else OUTPUTS_PER_BLOCK * POSITIONS_PER_TILE,
            "stack",
        )
        if alone:
            body, scratch, start = self._loop_over_output_channel_blocks(tile), list[Buffer](), list[Stmt]()
        else:
            col = new_private_scratch_buffer("col", DType("int16"), self.im2col_buffer_elements)
            spare = self.data.allocate_padding_buffers(self.run, POSITIONS_PER_TILE)
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
        base, whole = number * POSITIONS_PER_TILE, count % POSITIONS_PER_TILE == 0
        places = [base + k if whole or k == 0 else minimum(base + k, count - 1) for k in range(POSITIONS_PER_TILE)]
        gathered = self._gather_im2col_of_positions(im2col_buffer, padding, [{column: place} for place in places])
        sums = execute_to_memory(
            "pairs2x4",
            tile_buffer,
            0,
            Load(im2col_buffer, as_expr(0), self.im2col_buffer_elements),
            self._load_weights_of_block(block),
        )
        stored: list[Stmt] = []
        for k in range(POSITIONS_PER_TILE):
            value = Load(tile_buffer, output * POSITIONS_PER_TILE + k)
            element = self._store_output_element(block * OUTPUTS_PER_BLOCK + output, {column: base + k}, value)
            stored.append(element if whole or k == 0 else If(base + k < count, element))
        finish = forall(output, self._output_channel_count_in_block(block), Block(stored))
        outputs = self.channel[1]
        body = forall(block, -(-outputs // OUTPUTS_PER_BLOCK), Block((sums, finish)))
        return forall(number, -(-count // POSITIONS_PER_TILE), Block((gathered, body)))

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
            place = simplify(to * POSITIONS_PER_TILE // OUTPUTS_PER_BLOCK, {})
            return execute_to_memory("pairs2", im2col_buffer, place, *runs)

        return self.data.gather_runs_over_taps(
            run_starts, padding, self.run, self.taps, store_interleaved_runs_to_im2col, self.req.contraction.fill
        )

    def _output_channel_count_in_block(self, block: Expr) -> Expr:
        """Return the number of output channels in a block, which is smaller in the last block."""
        outputs = self.channel[1]
        return (
            as_expr(OUTPUTS_PER_BLOCK)
            if outputs % OUTPUTS_PER_BLOCK == 0
            else minimum(OUTPUTS_PER_BLOCK, outputs - block * OUTPUTS_PER_BLOCK)
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
        sums = execute_to_memory("bytes1x4", tile_buffer, 0, data, self._load_weights_of_block(block))
        finish = forall(
            output,
            self._output_channel_count_in_block(block),
            self._store_output_element(block * OUTPUTS_PER_BLOCK + output, {}, Load(tile_buffer, output)),
        )
        return forall(block, -(-outputs // OUTPUTS_PER_BLOCK), Block((sums, finish)))

    def _store_output_element(self, output_channel: Expr, position: Mapping[Var, Expr], value: Expr) -> Stmt:
        """Return the statement that finishes and stores an output element."""
        names = {self.channel[0]: output_channel, **self._data_axis_values_at_position(position)}
        return self.req.store(tuple(names.get(v, v) for v, _ in self.req.contraction.axes), value)

    def _data_axis_values_at_position(self, position: Mapping[Var, Expr]) -> dict[Var, Expr]:
        """Return the values of the data's axes at an output position."""
        return {**position, **{v: substitute(e, position) for v, e in self.at.names.items()}}
