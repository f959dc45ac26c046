# SPDX-License-Identifier: Apache-2.0
"""Data of memory micro-kernels: in place, as a padded copy, or gathered run by run (im2col) for some
output positions at a time.

    data = ContractionData.direct_or_padded_data(request, split, step_var, run_bytes)
    data.gather_runs_over_taps(positions, padding, run_bytes, taps, packed, fill)

A run is the contiguous data of an output position at one kernel offset. Runs, or parts of them, that
are outside of the data are replaced by padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotc.ir import frozen
from aotc.tir import Buffer, Expr, Load, Var, all_of, as_expr, fill_buffer_loop, new_private_scratch_buffer, te
from aotc.tir.expr import Select, substitute
from aotc.tir.schedule.contraction.contraction_index_analysis import ChannelSplit, OperandDimension, row_major_address
from aotc.tir.schedule.contraction.operand_packing import CopyShare, PackedOperand
from aotc.tir.schedule.contraction.operand_staging import StagedOperand
from aotc.tir.schedule.contraction.tiling_completion import TilingRequest
from aotc.tir.simplify import LinearForm, linear_form, simplify
from aotc.tir.stmt import Block, If, Stmt, loop_nest


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
        share, edge = CopyShare.whole_tile(["k"], [byte_count]), padding.edges[position_number]
        (k,) = share.position
        names = {**axis_values, **self._substitution_for_run_element(k)}
        exists = _conditions_for_indices_in_extents(self.crossed, names)
        element = Load(self.buffer, simplify(index + k, {}))
        copy = PackedOperand(share, (element,), edge, k, inside=exists).copy_nest()
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
        packed: PackedOperand,
        fill: int,
    ) -> Stmt:
        """Return the loops over kernel offsets (taps) that copy the data runs of some positions.

        positions    for each position, the index of its first element, and the values of the data's axes
        padding      buffers for runs outside of the data
        run_bytes    bytes of a run
        taps         reduction axes outside of a run
        packed       the copy, whose values are the runs
        fill         the padding
        """
        loaded = [self.load_run_or_padding(index, padding, run_bytes, names) for index, names in positions]
        plain = replace(packed, values=tuple(loaded)).copy_nest()
        if not self.crossed:
            return plain
        parts = [
            self.load_and_complete_border_run(index, k, padding, run_bytes, names)
            for k, (index, names) in enumerate(positions)
        ]
        once = replace(packed, share=replace(packed.share, loops=()), values=tuple(run for _, run in parts))
        body = Block((*(copy for copy, _ in parts), once.copy_nest()))
        completed = Block(
            (*(fill_buffer_loop(edge, fill) for edge in padding.edges), loop_nest(taps, body, "independent"))
        )
        whole = [test for _, names in positions for test in self.conditions_for_run_in_bounds(run_bytes, names)]
        return If(all_of(*whole), plain, completed)


def _conditions_for_indices_in_extents(dims: Sequence[OperandDimension], axis_values: Mapping[Var, Expr]) -> list[Expr]:
    """Return, for each index, the conditions that it is at least 0 and less than its extent."""
    places = ((substitute(dim.index.to_expr(), dict(axis_values)), dim.extent) for dim in dims)
    return [test for place, end in places for test in (place >= 0, place < end)]
