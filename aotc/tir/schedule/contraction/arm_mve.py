# SPDX-License-Identifier: Apache-2.0
"""int8 GEMM and depthwise schedule for Cortex-M with Helium (MVE): calls of
`aotc.tir.arm_mve_kernels`.

The data of a position is one row, gathered run by run (im2col) if it is not contiguous, and the
weights of an output are one row; in depthwise convolutions, a run holds the channels at one kernel
offset:

    for position:
      for taps: col[...] = bytes(data)                     # bytes of `fill` outside of the data
      tile[0:n] = byte_rows(col, weights of n outputs); y[0:n] = requantize(tile[0:n], ...)

The sums are requantized to bytes by one call if the requantization uses 32-bit words, else one by
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import (
    Buffer,
    Expr,
    Load,
    Target,
    as_expr,
    call,
    const,
    fill_buffer_loop,
    linear_form,
    new_private_scratch_buffer,
    substitute,
    te,
)
from aotc.tir.expr import Binary, Call, Const, Var
from aotc.tir.micro_kernels import ARM_MVE
from aotc.tir.schedule.contraction import contraction_index_analysis
from aotc.tir.schedule.contraction.arm_dsp import ContractionData, PaddingBuffers
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ChannelSplit,
    FusedDataAxes,
    Irregular,
    analyze_operand_dims_and_output_axes,
    contiguous_weight_reduction_axis_index,
    fuse_data_axes,
    row_major_address,
    split_reduction_into_dot_groups,
)
from aotc.tir.schedule.contraction.tiling_completion import TilingRequest
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest, StoreFn
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Block, Declare, Stmt, Store, forall, loop_nest

#: Largest number of sums that are computed at a time, in a stack buffer.
MAX_SUMS_PER_CALL: Final = 64


def schedule_for_arm_mve(
    contraction: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target
) -> ContractionNest:
    """Return the loop nest of an int8 contraction for Cortex-M Helium (MVE).

    Raise Irregular if operands are not in rows or the target has no MVE.
    """
    if ARM_MVE not in target.micro_kernels or not ARM_MVE.accepts_types(a.dtype, b.dtype, contraction.dtype):
        raise Irregular("no sums of rows of bytes")
    if (
        0
        in (
            contraction_index_analysis.iteration_space_point_count(contraction.axes),
            contraction_index_analysis.iteration_space_point_count(contraction.reduce_axes),
        )
        or contraction.group
        or contraction.block
    ):
        raise Irregular("no rows")
    req = TilingRequest(analyze_operand_dims_and_output_axes(contraction), None, a, b, store, target, 1)
    data_variables = contraction_index_analysis.variables_of_dimensions(req.analysis.a)
    is_depthwise = req.output_channel_axis[0] in data_variables
    schedule = _schedule_depthwise_convolution if is_depthwise else _schedule_full_row_contraction
    return schedule(req).build_loop_nest()


def _schedule_full_row_contraction(request: TilingRequest) -> _ArmMveSchedule:
    """Return the MVE schedule of a contraction in which each output has weights for a whole row of
    data.
    """
    c, channel = request.contraction, request.output_channel_axis
    number = contiguous_weight_reduction_axis_index(c)
    axis = c.reduce_axes[number]
    taps = [tap for tap in c.reduce_axes if tap is not axis]
    contraction_index_analysis.require_row_major_contiguous_axes(
        row_major_address(request.analysis.b), [channel, *taps, axis], 1
    )
    grouped = TilingRequest(
        *split_reduction_into_dot_groups(replace(c, group=axis[1])),
        request.a,
        request.b,
        request.store,
        request.target,
        1,
    )
    steps, split = (
        grouped.contraction.reduce_axes[number][0],
        ChannelSplit.split_channel_axis(grouped.analysis, channel, 1),
    )
    data = ContractionData.direct_or_padded_data(grouped, split, steps, axis[1])
    at = fuse_data_axes(grouped.analysis, data.possibly_out_of_range_dims, data.position)
    assert grouped.group is not None
    return _ArmMveSchedule(grouped, data, at, taps, axis[1], (steps, grouped.group, split.tile, split.lane))


def _schedule_depthwise_convolution(request: TilingRequest) -> _ArmMveSchedule:
    """Return the MVE schedule of a depthwise convolution, in which each output has a channel of the
    data.
    """
    channel, outputs = request.output_channel_axis
    position, weights = row_major_address(request.analysis.a), row_major_address(request.analysis.b)
    borders = [d for d in request.analysis.a if not d.inside]
    lies = position.coefficient(channel) == weights.coefficient(channel) == 1
    if (outputs > 1 and not lies) or channel in contraction_index_analysis.variables_of_dimensions(borders):
        raise Irregular("channels that are not in rows")
    taps = request.contraction.reduce_axes
    steps = (weights.coefficient(v) for v, n in reversed(taps) if n > 1)
    tap_stride = next(steps, outputs) or outputs
    contraction_index_analysis.require_row_major_contiguous_axes(weights, taps, tap_stride)
    at = fuse_data_axes(request.analysis, borders, position)
    return _ArmMveSchedule(request, ContractionData(request.a, position, borders), at, taps, 0, (channel,), tap_stride)


@frozen(eq=False)
class _ArmMveSchedule:
    """The MVE schedule of one contraction.

    req, data          the contraction and its data
    at                 the axes that positions are counted along
    taps               reduction axes for each point of which a run is gathered
    run                contiguous bytes of the data at one kernel offset; 0 if a run consists of channels
    inner              variables that count the elements of a run
    tap_stride_bytes   bytes between the weights of consecutive taps, for depthwise convolutions
    spread             for a value that is equal for all outputs, the buffer filled with it
    """

    req: TilingRequest
    data: ContractionData
    at: FusedDataAxes
    taps: Sequence[te.Axis]
    run: int
    inner: Sequence[Var]
    tap_stride_bytes: int = 0
    spread: dict[Expr, Buffer] = field(default_factory=dict)

    @property
    def needs_im2col(self) -> bool:
        """True if the data of an output position must be gathered (im2col), as it is not
        contiguous.
        """
        return contraction_index_analysis.iteration_space_point_count(self.taps) > 1 or bool(
            self.data.possibly_out_of_range_dims
        )

    def build_loop_nest(self) -> ContractionNest:
        """Return the loop nest of an int8 contraction on Cortex-M Helium with the buffers it needs."""
        outputs, block = self.req.output_channel_axis[1], Var("o")
        width = min(MAX_SUMS_PER_CALL, outputs)
        run = self.run or width
        tile = new_private_scratch_buffer("tile", DType("int32"), width, "stack")
        col = new_private_scratch_buffer(
            "col", DType("int8"), contraction_index_analysis.iteration_space_point_count(self.taps) * run
        )
        spare = self.data.allocate_padding_buffers(run, 1)
        first: list[Stmt] = (
            [self._gather_im2col_of_position(col, spare, as_expr(0), run)] if self.needs_im2col and self.run else []
        )

        def compute_output_channels(first_channel: Expr, channel_count: int) -> Stmt:
            gather_stmts = (
                [self._gather_im2col_of_position(col, spare, first_channel, channel_count)]
                if self.needs_im2col and not self.run
                else []
            )
            sums = Store(
                tile, as_expr(0), self._micro_kernel_call_for_output_channels(col, first_channel, channel_count)
            )
            return Block((*gather_stmts, sums, self._finish_and_store_sums(tile, first_channel, channel_count)))

        parts: list[Stmt] = [forall(block, outputs // width, compute_output_channels(block * width, width))]
        if rest := outputs % width:
            parts.append(compute_output_channels(as_expr(outputs - rest), rest))
        nest = loop_nest(self.at.axes, Block((*first, *parts)), "independent")
        start = spare.fill_padding_buffer(self.req.contraction.fill)
        start += [fill_buffer_loop(buffer, value) for value, buffer in self.spread.items()]
        scratch = [col] * self.needs_im2col + spare.all_padding_buffers
        whole = Block((*self.data.before, *start, nest))
        return ContractionNest(whole, (tile, *self.spread.values()), (*self.data.workspace, *scratch))

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
            return Store(im2col_buffer, simplify(place, {}), call("bytes", *runs))

        run_starts = [(self._data_address_of_run(first_channel, {}), self.at.unfuse)]
        return self.data.gather_runs_over_taps(
            run_starts, padding, run_bytes, self.taps, store_runs_to_im2col, self.req.contraction.fill
        )

    def _micro_kernel_call_for_output_channels(
        self, im2col_buffer: Buffer, first_channel: Expr, channel_count: int
    ) -> Expr:
        """Return the micro-kernel call that computes the int32 sums of `channel_count` output
        channels from `first_channel` on.
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
            return call("byte_rows", data, Load(weights, first_channel * (size * run), channel_count * size * run))
        weight_load = Load(weights, first_channel, (size - 1) * self.tap_stride_bytes + channel_count)
        return call("byte_taps", data, weight_load, const(size, "int32"), const(self.tap_stride_bytes, "int32"))

    def _finish_and_store_sums(self, sums_buffer: Buffer, first_channel: Expr, channel_count: int) -> Stmt:
        """Return the statement that finishes and stores int32 sums of some outputs: one
        requantization call, or a loop.
        """
        output, channel = Var("o"), self.req.output_channel_axis[0]
        names = {**self.at.unfuse, channel: first_channel + output}
        index = tuple(names.get(v, as_expr(0) if n == 1 else v) for v, n in self.req.contraction.axes)
        stmt = self.req.store(index, Load(sums_buffer, output))
        return self._match_requantization_call(stmt, output, channel_count) or forall(output, channel_count, stmt)

    def _match_requantization_call(self, stmt: Stmt, channel_var: Var, channel_count: int) -> Stmt | None:
        """Return one call that requantizes the int32 sums of some outputs; None if they are
        finished in another way.
        """
        match stmt:
            case Block(stmts=(Declare(var=var, value=total), Store() as last)):
                value = substitute(last.value, {var: total})
            case Store() as last:
                value = last.value
            case _:
                return None
        low, high, value = _int8_clamp_range_and_unclamped_value(value)
        zero, value = _addition_operands_or_zero_and_value(value)
        if not isinstance(value, Call) or value.name not in ("scale_once", "scale_twice"):
            return None
        total, multiplier, shift = value.args
        bias, total = _addition_operands_or_zero_and_value(total)
        spread = dict(self.spread)
        operands = [
            self._load_or_broadcast_requantize_operand(x, channel_var, channel_count, spread)
            for x in (total, bias, multiplier, shift)
        ]
        to = linear_form(last.index, {})
        if None in operands or not isinstance(zero, Const) or to.coefficient(channel_var) != 1 or high < low:
            return None
        self.spread.update(spread)
        name = f"requantize_{value.name.removeprefix('scale_')}"
        numbers = [const(n, "int32") for n in (int(zero.value), low, high)]
        requantize_call = call(name, *(x for x in operands if x is not None), *numbers)
        return Store(last.buffer, simplify(substitute(last.index, {channel_var: as_expr(0)}), {}), requantize_call)

    def _load_or_broadcast_requantize_operand(
        self, value: Expr, channel_var: Var, channel_count: int, broadcast_buffers: dict[Expr, Buffer]
    ) -> Load | None:
        """Return a requantization operand of some outputs as a vector; a value equal for all is put
        in a buffer of `broadcast_buffers`.
        """
        if isinstance(value, Load) and linear_form(value.index, {}).coefficient(channel_var) == 1:
            return Load(value.buffer, simplify(substitute(value.index, {channel_var: as_expr(0)}), {}), channel_count)
        if contraction_index_analysis.variables_in(value):
            return None
        if value not in broadcast_buffers:
            size = min(MAX_SUMS_PER_CALL, self.req.output_channel_axis[1])
            broadcast_buffers[value] = new_private_scratch_buffer("spread", DType("int32"), size, "stack")
        return Load(broadcast_buffers[value], as_expr(0), channel_count)


def _int8_clamp_range_and_unclamped_value(value: Expr) -> tuple[int, int, Expr]:
    """Return the range to which a value is clamped, and the value itself; an empty range if it is
    not saturated to int8.
    """
    low, high = -128, 127
    while isinstance(value, Binary) and value.op in ("min", "max") and isinstance(value.b, Const):
        limit = int(value.b.value)
        # a value beyond one limit still has to satisfy the other
        if value.op == "min":
            high = max(min(high, limit), low)
        else:
            low = min(max(low, limit), high)
        value = value.a
    if isinstance(value, Call) and value.name == "saturate_int8":
        return low, high, value.args[0]
    return 1, 0, value


def _addition_operands_or_zero_and_value(value: Expr) -> tuple[Expr, Expr]:
    """Return (b, a) of an addition a + b; zero and the value for other expressions."""
    if isinstance(value, Binary) and value.op == "add":
        return value.b, value.a
    return const(0, "int32"), value
