# SPDX-License-Identifier: Apache-2.0
"""Copies of operand pieces from global to shared memory by the threads of a GPU block, overlapped
with multiplication.

    xs[16 x 64] = async x[...:4]                             # neighbors: 16 bytes at once, from multiples of them on
    xs[16 x 64] = async inside ? x[...] : 0                  # single numbers of 4 bytes
    held[4] = inside ? cast(x[...]) : fill  ...  xs = held   # what no device copies: through registers

An asynchronous copy is complete when its thread has waited for it. The elements of a 16-byte copy
are adjacent rows or columns of the product or, for tiles that permit it, adjacent steps of the
reduction. Out-of-range elements are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import Block, Declare, Expr, LinearForm, Load, Ranges, Stmt, Var, linear_form, te, vars_and_buffers_in
from aotc.tir.expr import Binary, Buffer, Const, Select, binary, const, minimum, operands, substitute, with_operands
from aotc.tir.loops.gpu_vector_access_predicate import MAX_ACCESS_BYTES
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    axis_values_at_row_major_number,
    iteration_space_point_count,
    neighbor_distance_along_last_axis,
    row_major_address,
)
from aotc.tir.schedule.contraction.contraction_operand import ContractionOperand
from aotc.tir.schedule.contraction.operand_packing import ASYNC, CopyShare, PackedOperand
from aotc.tir.simplify import simplify

#: Adjacent elements that are loaded together even if the next ones are far away: a sector of 32
#: bytes.
ELEMENTS_PER_MEMORY_SECTOR: Final = 8
#: Least number of bytes of an asynchronous copy.
_MIN_ASYNC_COPY_BYTES: Final = 4

#: Function from (group of a thread's rows or columns, index in the group) to the row or column.
ThreadElementIndex = Callable[[Expr, Expr], Expr]


@frozen(eq=False)
class ReductionOrder:
    """The order in which a thread block runs through the reduction axes, `depth` steps per piece.

    If `depth` divides the extent of the last axis, the number of a piece determines all other axes,
    so that threads compute no quotients.

    axes              the reduction axes
    thread, threads   index of the thread and number of threads
    names             values of the other axes
    """

    axes: Sequence[te.Axis]
    depth: int
    thread: Var
    threads: int
    names: Mapping[Var, Expr]

    @staticmethod
    def choose_reduction_order(
        contraction: te.Contraction,
        steps_per_piece: int,
        threads: int,
        outer_axis_values: Mapping[Var, Expr],
        may_reorder_axes: bool,
    ) -> ReductionOrder:
        """Return the reduction order of a contraction; if `may_reorder_axes`, an axis that
        `steps_per_piece` divides becomes the last one.
        """
        axes = [axis for axis in contraction.reduce_axes if axis[1] > 1] or contraction.reduce_axes[:1]
        last = next((axis for axis in reversed(axes) if axis[1] % steps_per_piece == 0), axes[-1])
        if may_reorder_axes:
            axes = [*(axis for axis in axes if axis is not last), last]
        none = {var: const(0) for var, _ in contraction.reduce_axes}
        return ReductionOrder(axes, steps_per_piece, Var("t"), threads, {**outer_axis_values, **none})

    @property
    def piece_count(self) -> int:
        """The number of pieces that the reduction is divided into."""
        return -(-iteration_space_point_count(self.axes) // self.depth)

    @property
    def does_piece_depth_divide_last_axis(self) -> bool:
        """True if the depth of a piece divides the extent of the last reduction axis."""
        return self.axes[-1][1] % self.depth == 0

    def axis_values_and_conditions(
        self, piece_number: Expr, step_in_piece: Expr, step_number: Var
    ) -> tuple[dict[Var, Expr], list[Expr]]:
        """Return the values of the reduction axes at a position within a piece, and the conditions
        that the position exists.

        piece_number     number of the piece
        step_in_piece    index within the piece
        step_number      register that holds the number of the position over all pieces
        """
        *outer, (inner, extent) = self.axes
        if self.does_piece_depth_divide_last_axis:
            values = axis_values_at_row_major_number([*outer, (inner, extent // self.depth)], piece_number)
            return {**values, inner: values[inner] * self.depth + step_in_piece}, []
        size = iteration_space_point_count(self.axes)
        conditions = [step_number < size] if size % self.depth else []
        return axis_values_at_row_major_number(self.axes, step_number), conditions


@frozen(eq=False)
class VectorPiece:
    """A vector of `lanes` adjacent elements of an operand at the address `index`, a
    function of its `number`.
    """

    number: Var
    index: Expr
    lanes: int

    @staticmethod
    def find_aligned_16_byte_vectors(
        operand: ContractionOperand, axes: Sequence[te.Axis], ranges: Ranges, dtype: DType
    ) -> VectorPiece | None:
        """Return the 16-byte vectors along `axes` of an operand; None if they are not aligned, or
        only partly in range.
        """
        lanes, size = MAX_ACCESS_BYTES // dtype.itemsize, iteration_space_point_count(axes)
        if operand.buffer.dtype != dtype or operand.fill or size % lanes or operand.buffer.align % MAX_ACCESS_BYTES:
            return None
        number, lane = Var("piece"), Var("one")
        within = {**ranges, number: (0, size // lanes - 1), lane: (0, lanes - 1)}
        names = axis_values_at_row_major_number(axes, number * lanes + lane)

        def linear_form_over_vector_and_lane(address: LinearForm) -> LinearForm:
            expr = simplify(substitute(address.to_expr(), names), within)
            return linear_form(_remove_lane_from_divmod(expr, lane, lanes, within), within)

        borders = (linear_form_over_vector_and_lane(dim.index).to_expr() for dim in operand.dims if not dim.inside)
        if any(lane in vars_and_buffers_in(border) for border in borders):
            return None
        form = linear_form_over_vector_and_lane(row_major_address(operand.dims))
        coefficients = [*(n for atom, n in form.terms.items() if atom is not lane), form.const]
        if form.coefficient(lane) != 1 or any(n % lanes for n in coefficients):
            return None
        return VectorPiece(number, substitute(form.to_expr(), {lane: const(0)}), lanes)


@frozen(eq=False)
class TileOperand:
    """One operand of a thread block's product: rows of the data, or columns of the weights.

    whole       the operand with its axes
    first       offset of the operand in shared memory
    registers   registers for the elements that a thread copies
    count       rows or columns for which each thread has accumulators
    threads     threads of a group along the rows or columns
    own         function that returns a row or column of a thread
    pitch       elements of shared memory between consecutive steps or (if `deep`) rows or columns
    tile        index of the block's tile
    piece       vectors that are copied at once; None for single elements
    deep        the contiguous axis, in global and shared memory, is that of the reduction steps
    """

    whole: ContractionOperand
    first: int
    registers: Buffer
    count: int
    threads: int
    own: ThreadElementIndex
    pitch: int
    tile: Expr
    piece: VectorPiece | None = None
    deep: bool = False

    @property
    def tile_rows_or_columns(self) -> int:
        """Rows or columns of the operand's tile."""
        return self.count * self.threads

    @property
    def elements_per_copy(self) -> int:
        """Number of elements that one copy instruction moves."""
        return self.piece.lanes if self.piece is not None else 1

    @property
    def can_copy_asynchronously(self) -> bool:
        """True if this operand can be copied asynchronously: no conversion, zero padding, and at
        least 4 bytes at once.
        """
        half, dtype = self.whole, self.registers.dtype
        return (
            half.buffer.dtype == dtype
            and not half.fill
            and self.elements_per_copy * dtype.itemsize >= _MIN_ASYNC_COPY_BYTES
        )

    def shared_memory_address(self, reduction_step: Expr, row_or_column: Expr) -> Expr:
        """Return the address in shared memory of an operand's row or column `row_or_column` at
        reduction step `reduction_step` of a piece.
        """
        slow, quick = (row_or_column, reduction_step) if self.deep else (reduction_step, row_or_column)
        return slow * self.pitch + quick + self.first

    def step_and_row_copied_by_thread(self, iteration: Var, reduction_order: ReductionOrder) -> tuple[Expr, Expr]:
        """Return (reduction step in the piece, row or column) of the element that a thread copies
        in iteration `iteration`.
        """
        thread, threads, dims, size = (
            reduction_order.thread,
            reduction_order.threads,
            self.whole.dims,
            self.tile_rows_or_columns // self.elements_per_copy,
        )
        if self.deep:
            size = reduction_order.depth // self.elements_per_copy
            return thread % size * self.elements_per_copy, iteration * (threads // size) + thread // size
        if (
            self.piece
            or neighbor_distance_along_last_axis(dims, self.whole.axes) == 1
            or neighbor_distance_along_last_axis(dims, reduction_order.axes) != 1
        ):
            return iteration * (threads // size) + thread // size, thread % size * self.elements_per_copy
        sectors = reduction_order.depth // ELEMENTS_PER_MEMORY_SECTOR
        number = iteration * (threads // ELEMENTS_PER_MEMORY_SECTOR) + thread // ELEMENTS_PER_MEMORY_SECTOR
        return number % sectors * ELEMENTS_PER_MEMORY_SECTOR + thread % ELEMENTS_PER_MEMORY_SECTOR, number // sectors

    def start_piece_copy(self, shared: Buffer, piece_number: Expr, reduction_order: ReductionOrder) -> Stmt:
        """Return the loop in which a thread starts to copy its elements of an operand piece, to
        shared memory or to registers.
        """
        turn, number, k = Var("turn"), Var("number"), Var("k")
        depth, within = self.step_and_row_copied_by_thread(turn, reduction_order)
        values, tests = reduction_order.axis_values_and_conditions(piece_number, depth, k)
        names = {**reduction_order.names, **axis_values_at_row_major_number(self.whole.axes, number), **values}
        element = self.tile * self.tile_rows_or_columns + within
        if self.whole.in_bounds_condition_if_needed(
            number, self.tile_rows_or_columns
        ):  # beyond the end any element may be loaded, as it is not used
            element = minimum(
                element, self.whole.exclusive_output_point_count - (1 if self.deep else self.elements_per_copy)
            )
        value = self.whole.load_element_or_fill(names, self.registers.dtype, tests)
        registers = [Declare(number, element), Declare(k, piece_number * reduction_order.depth + depth)]
        if self.piece is not None:
            vector_number = Var("piece")
            registers.append(
                Declare(
                    vector_number,
                    self.index_of_vector_containing_element(self.piece, number, k, values, reduction_order),
                )
            )
            value = _widen_element_load_to_vector_piece(value, self.piece, {**names, self.piece.number: vector_number})
        # not all threads run the last iteration
        exists = [depth < reduction_order.depth] if self.registers.size % self.elements_per_copy else []
        turns = -(-self.registers.size // self.elements_per_copy)
        share = CopyShare([(turn, turns)], (depth, within), exists)
        if self.can_copy_asynchronously:
            address = self.shared_memory_address(depth, within)
            return PackedOperand(share, (value,), shared, address, ASYNC, registers=registers).copy_nest()
        return PackedOperand(share, (value,), self.registers, turn, registers=registers).copy_nest()

    def index_of_vector_containing_element(
        self,
        piece: VectorPiece,
        element_number: Var,
        step_number: Var,
        axis_values: Mapping[Var, Expr],
        reduction_order: ReductionOrder,
    ) -> Expr:
        """Return the number of the 16-byte vector that contains an element."""
        if not self.deep:
            return element_number // piece.lanes
        return (
            axis_values[reduction_order.axes[-1][0]] // piece.lanes
            if reduction_order.does_piece_depth_divide_last_axis
            else step_number // piece.lanes
        )

    def store_piece_from_registers(self, shared: Buffer, reduction_order: ReductionOrder) -> Stmt:
        """Return the loop that stores a thread's elements of an operand piece to shared memory, if
        they are in registers.
        """
        if self.can_copy_asynchronously:
            return Block(())
        turn = Var("turn")
        position = self.step_and_row_copied_by_thread(turn, reduction_order)
        share = CopyShare([(turn, self.registers.size)], position)
        return PackedOperand(
            share, (Load(self.registers, turn),), shared, self.shared_memory_address(*position)
        ).copy_nest()


def _remove_lane_from_divmod(expr: Expr, lane_var: Var, lanes: int, ranges: Ranges) -> Expr:
    """Remove `lane_var` from quotients and remainders, given that it counts from a multiple of
    `lanes` to the next one.
    """
    expr = with_operands(expr, tuple(_remove_lane_from_divmod(e, lane_var, lanes, ranges) for e in operands(expr)))
    match expr:
        case Binary(op="floordiv" | "floormod" as op, a=a, b=Const(value=size)) if size and size % lanes == 0:
            form = linear_form(a, ranges)
            rest = form.add_multiple(LinearForm({lane_var: 1}), -1)
            if form.coefficient(lane_var) == 1 and not any(n % lanes for n in (rest.const, *rest.terms.values())):
                result = binary(op, rest.to_expr(), int(size))
                return result + lane_var if op == "floormod" else result
    return expr


def _widen_element_load_to_vector_piece(value: Expr, piece: VectorPiece, values_of_vars: Mapping[Var, Expr]) -> Expr:
    """Return a vector load of a piece's elements in place of the load of one element; a guarded
    load stays guarded.
    """
    if isinstance(value, Select):
        zeros = const(0, value.dtype, piece.lanes)
        return Select(value.cond, _widen_element_load_to_vector_piece(value.a, piece, values_of_vars), zeros)
    assert isinstance(value, Load)
    return Load(value.buffer, substitute(piece.index, values_of_vars), piece.lanes)
