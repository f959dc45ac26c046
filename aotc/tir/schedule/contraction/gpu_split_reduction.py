# SPDX-License-Identifier: Apache-2.0
"""GPU schedule of thin contractions, such as matrix-vector products: the threads of a block split
the reduction.

    for b in 0..125 block: for t in 0..256 thread:                   # 4 columns, 64 threads for each
        acc[1] = 0
        for turn in 0..8: acc += x[64 * turn + t % 64] * w[4 * b + t // 64, 64 * turn + t % 64]
        sum = acc of all threads of the warp; parts[t % 64 // 32, t // 64] = sum; sync
        y[4 * b + t] = parts of t added in their order               # by the first 4 threads

The operand of the long side is read once, with coalesced loads: along the reduction, or along its
own axis if elements are contiguous there. Each thread multiplies its elements with all of the thin
side. If the long side alone has work for all threads, such as the pixels of an image, each thread
runs the whole reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Expr, Gpu, Load, Select, Store, Var, all_of, cast, const, substitute, te
from aotc.tir.instruction_statements import block_barrier, execute_to_register
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ContractionAnalysis,
    OperandDimension,
    axis_values_at_row_major_number,
    iteration_space_point_count,
    neighbor_distance_along_last_axis,
    row_major_address,
)
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest, StoreFn
from aotc.tir.stmt import Assign, Declare, For, If, Stmt, loop_nest

#: Threads of a block.
_THREADS_PER_BLOCK: Final = 256


@frozen(eq=False)
class ContractionOperand:
    """One operand of a contraction, with the output axes that only it depends on.

    buffer, dims   the operand
    axes           the output axes
    fill           value outside of the operand
    """

    buffer: Buffer
    dims: Sequence[OperandDimension]
    axes: Sequence[te.Axis]
    fill: int = 0

    @property
    def exclusive_output_point_count(self) -> int:
        """Number of points of the output axes that only this operand depends on."""
        return iteration_space_point_count(self.axes)

    def in_bounds_condition_if_needed(self, element_number: Expr, tile_size: int) -> list[Expr]:
        """Return the condition that an element exists; none if `tile_size`, the size of a tile,
        divides the number of elements.
        """
        return (
            [element_number < self.exclusive_output_point_count]
            if self.exclusive_output_point_count % tile_size
            else []
        )

    def load_element_or_fill(
        self, values_of_vars: Mapping[Var, Expr], dtype: DType, conditions: Sequence[Expr] = ()
    ) -> Expr:
        """Return an element of the operand for given values of variables.

        It is `fill` outside of the operand, and where one of `conditions` is false.
        """
        value = cast(Load(self.buffer, substitute(row_major_address(self.dims).to_expr(), values_of_vars)), dtype)
        places = ((substitute(dim.index.to_expr(), values_of_vars), dim.extent) for dim in self.dims if not dim.inside)
        conditions = [*conditions, *(test for index, end in places for test in (index >= 0, index < end))]
        return Select(all_of(*conditions), value, const(self.fill, dtype)) if conditions else value

    def multiply_add(self, total: Expr, a: Expr, b: Expr, other_operand: ContractionOperand) -> Expr:
        """Return `total` plus the product of an element `a` of this operand and `b` of the other
        operand.
        """
        return total + a * b


@frozen(eq=False)
class _SplitReductionBlock:
    """The work of one GPU block on a thin contraction, whose threads split the reduction.

    c, sides, thin, long   the contraction and its operands
    names                  values of the axes that are distributed over blocks
    wide, deep             columns (of the long side) of a block, and threads for each of them
    spread                 distances of the threads of a warp that split one sum
    first                  the first column of the block
    acc                    accumulators of a thread
    partial_sums                  sums of warps, in shared memory
    """

    c: te.Contraction
    sides: tuple[ContractionOperand, ContractionOperand]
    thin: ContractionOperand
    long: ContractionOperand
    names: Mapping[Var, Expr]
    wide: int
    deep: int
    spread: Sequence[int]
    first: Expr
    acc: Buffer
    partial_sums: Buffer

    @property
    def threads_of_warp_per_sum(self) -> int:
        """Number of threads of a warp that split one sum."""
        return 1 << len(self.spread)

    def accumulate_reduction_part_of_thread(self, reduction_thread: Expr, column_thread: Expr) -> Stmt:
        """Return the loops in which a thread accumulates its part of a split reduction."""
        c, thin, long, acc = self.c, self.thin, self.long, self.acc
        turn, k, column, row = (Var(name) for name in ("turn", "k", "column", "row"))
        steps, value = iteration_space_point_count(c.reduce_axes), Var("value", c.dtype)
        names = {
            **self.names,
            **axis_values_at_row_major_number(long.axes, column),
            **axis_values_at_row_major_number(c.reduce_axes, k),
        }
        other = thin.load_element_or_fill({**names, **axis_values_at_row_major_number(thin.axes, row)}, c.dtype)
        a, b = (other, value) if thin is self.sides[0] else (value, other)
        add = Store(acc, row, self.sides[0].multiply_add(Load(acc, row), a, b, self.sides[1]))
        every = loop_nest([(row, thin.exclusive_output_point_count)], add, "independent")
        body: Stmt = Block((Declare(value, long.load_element_or_fill(names, c.dtype)), every))
        tests = [*long.in_bounds_condition_if_needed(column, self.wide), *([k < steps] if steps % self.deep else [])]
        body = If(all_of(*tests), body) if tests else body
        body = Block((Declare(k, turn * self.deep + reduction_thread), body))
        loop = For(turn, -(-steps // self.deep), body)
        return Block((Declare(column, self.first + column_thread), loop))

    def reduce_in_warp_and_store_to_shared(self, reduction_thread: Expr, column_thread: Expr) -> Stmt:
        """Return the statements that add the partial sums of a warp by shuffles, and store them to
        shared memory.
        """
        row, total = Var("row"), Var("sum", self.c.dtype)
        stmts: list[Stmt] = [Declare(total, Load(self.acc, row))]
        for distance in self.spread:
            far = Var("far", self.c.dtype)
            stmts.append(execute_to_register("shuffle_xor", far, total, const(distance, "int32")))
            stmts.append(Assign(total, total + far))
        place = (
            reduction_thread // self.threads_of_warp_per_sum * self.thin.exclusive_output_point_count + row
        ) * self.wide + column_thread
        keep = Store(self.partial_sums, place, total)
        stmts.append(If((reduction_thread % self.threads_of_warp_per_sum).equal(0), keep) if self.spread else keep)
        return loop_nest([(row, self.thin.exclusive_output_point_count)], Block(stmts))

    def add_sums_of_all_warps_and_store(self, thread: Var, output_indices: Sequence[Expr], store: StoreFn) -> Stmt:
        """Return the loop that adds the partial sums of all warps, and finishes and stores the
        elements.
        """
        turn, element, other, row, column = (Var(name) for name in ("turn", "element", "other", "row", "column"))
        total, results = Var("total", self.c.dtype), self.thin.exclusive_output_point_count * self.wide
        add = Assign(total, total + Load(self.partial_sums, other * results + element))
        names = {
            **self.names,
            **axis_values_at_row_major_number(self.thin.axes, row),
            **axis_values_at_row_major_number(self.long.axes, column),
        }
        place = tuple(substitute(place, names) for place in output_indices)
        sums = Declare(total, Load(self.partial_sums, element))
        add_loop = For(other, self.deep // self.threads_of_warp_per_sum, add, begin=1)
        tests = [
            *self.long.in_bounds_condition_if_needed(column, self.wide),
            *([element < results] if results % _THREADS_PER_BLOCK else []),
        ]
        done: Stmt = Block((sums, add_loop, store(place, total)))
        done = If(all_of(*tests), done) if tests else done
        numbered = Declare(element, turn * _THREADS_PER_BLOCK + thread)
        here = Declare(row, element // self.wide), Declare(column, self.first + element % self.wide)
        return For(turn, -(-results // _THREADS_PER_BLOCK), Block((numbered, *here, done)))


def schedule_gpu_split_reduction(
    analysis: ContractionAnalysis,
    data_and_weights: tuple[ContractionOperand, ContractionOperand],
    output_indices: Sequence[Expr],
    store: StoreFn,
    gpu: Gpu,
) -> ContractionNest | None:
    """Return the GPU loop nest of a contraction with a thin side; None if one thread per element is
    good enough.

    data_and_weights    data and weights
    output_indices      the output indices as expressions of the contraction's axes
    store               function that returns the statement to store an element
    """
    c = analysis.c
    thin, long = sorted(data_and_weights, key=lambda side: side.exclusive_output_point_count)
    along = (
        neighbor_distance_along_last_axis(long.dims, long.axes) != 1
        and neighbor_distance_along_last_axis(long.dims, c.reduce_axes) == 1
    )
    outer = [axis for axis in c.axes if axis not in (*thin.axes, *long.axes)]
    widths = (
        (8, 4)
        if along
        else [width for width in (_THREADS_PER_BLOCK, 64, 32, 16) if width <= long.exclusive_output_point_count] + [8]
    )
    blocks = {
        wide: iteration_space_point_count(outer) * -(-long.exclusive_output_point_count // wide) for wide in widths
    }
    wide = next((width for width in widths if blocks[width] >= gpu.costs.loading_blocks * gpu.processors), widths[-1])
    deep, tiles = _THREADS_PER_BLOCK // wide, -(-long.exclusive_output_point_count // wide)
    if (
        (thin.exclusive_output_point_count == 1)
        if deep == 1
        else (iteration_space_point_count(c.reduce_axes) < gpu.costs.min_split_steps)
    ):
        return None
    block, thread, row = Var("b"), Var("t"), Var("row")
    depth, across = (thread % deep, thread // deep) if along else (thread // wide, thread % wide)
    spread = [distance for distance in (16, 8, 4, 2, 1) if along or distance >= wide]
    acc = Buffer("acc", c.dtype, thin.exclusive_output_point_count, "stack", 16)
    parts = Buffer("parts", c.dtype, (deep >> len(spread)) * wide * thin.exclusive_output_point_count, "shared", 16)
    if parts.nbytes > gpu.shared_bytes:
        return None
    names, first = axis_values_at_row_major_number(outer, block // tiles), block % tiles * wide
    reduction_block = _SplitReductionBlock(
        c, data_and_weights, thin, long, names, wide, deep, spread, first, acc, parts
    )
    stmts = (
        loop_nest([(row, thin.exclusive_output_point_count)], Store(acc, row, const(0, c.dtype)), "independent"),
        reduction_block.accumulate_reduction_part_of_thread(depth, across),
        reduction_block.reduce_in_warp_and_store_to_shared(depth, across),
        block_barrier(),
        reduction_block.add_sums_of_all_warps_and_store(thread, output_indices, store),
    )
    over = For(thread, _THREADS_PER_BLOCK, Block(stmts), kind="thread")
    return ContractionNest(For(block, blocks[wide], over, kind="block"), (acc,), shared=(parts,))
