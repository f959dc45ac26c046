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

from aotc.ir import frozen
from aotc.tir import Block, Buffer, Expr, Gpu, Load, Store, Var, all_of, const, substitute, te
from aotc.tir.instruction_statements import block_barrier, execute_to_register
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ContractionAnalysis,
    axis_values_at_row_major_number,
    iteration_space_point_count,
    neighbor_distance_along_last_axis,
)
from aotc.tir.schedule.contraction.contraction_operand import ContractionOperand
from aotc.tir.schedule.contraction.tiling_cost import split_reduction_cycles
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest, StoreFn
from aotc.tir.stmt import Assign, Declare, For, If, Stmt, loop_nest

#: Threads of a block.
_THREADS_PER_BLOCK: Final = 256


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


@frozen(eq=False)
class SplitReduction:
    """A way to divide a contraction with a thin side among thread blocks.

    analysis             the contraction
    data_and_weights     its operands
    thin, long           the operands, that with fewer output points first
    outer                output axes that are distributed over blocks
    wide                 columns (of the long side) of a block
    along                True if neighboring threads load neighboring reduction steps
    """

    analysis: ContractionAnalysis
    data_and_weights: tuple[ContractionOperand, ContractionOperand]
    thin: ContractionOperand
    long: ContractionOperand
    outer: Sequence[te.Axis]
    wide: int
    along: bool

    @property
    def threads_per_sum(self) -> int:
        """Threads that divide one sum."""
        return _THREADS_PER_BLOCK // self.wide

    @property
    def blocks_per_product(self) -> int:
        """Blocks that divide the columns of one product."""
        return -(-self.long.exclusive_output_point_count // self.wide)

    @property
    def blocks(self) -> int:
        """Number of thread blocks."""
        return iteration_space_point_count(self.outer) * self.blocks_per_product

    @property
    def name(self) -> str:
        """The name of this division, as used in records of measurements."""
        return f"split columns={self.wide} threads={self.threads_per_sum}"

    @property
    def distances_in_warp(self) -> list[int]:
        """Distances of the threads of a warp that divide one sum."""
        return [distance for distance in (16, 8, 4, 2, 1) if self.along or distance >= self.wide]

    @property
    def partial_sums(self) -> int:
        """Partial sums of a block in shared memory."""
        parts = self.threads_per_sum >> len(self.distances_in_warp)
        return parts * self.wide * self.thin.exclusive_output_point_count

    def is_worthwhile(self, gpu: Gpu) -> bool:
        """Return True unless one thread for each element is good enough, and if the partial sums fit in
        shared memory.
        """
        c = self.analysis.c
        if self.partial_sums * c.dtype.itemsize > gpu.shared_bytes:
            return False
        if self.threads_per_sum == 1:
            return self.thin.exclusive_output_point_count > 1
        return iteration_space_point_count(c.reduce_axes) >= gpu.costs.min_split_steps

    def estimated_cycles(self, gpu: Gpu) -> float:
        """Return the estimated cycles of the loads and of the sums of all threads."""
        elements = iteration_space_point_count(self.outer) * self.long.exclusive_output_point_count
        steps = iteration_space_point_count(self.analysis.c.reduce_axes)
        return split_reduction_cycles(self.blocks, self.threads_per_sum, elements, steps, _THREADS_PER_BLOCK, gpu)

    def build_loop_nest(self, output_indices: Sequence[Expr], store: StoreFn) -> ContractionNest:
        """Return the loop nest.

        output_indices    the output indices as expressions of the contraction's axes
        store             function that returns the statement to store an element
        """
        c, thin, wide, deep, tiles = (
            self.analysis.c,
            self.thin,
            self.wide,
            self.threads_per_sum,
            self.blocks_per_product,
        )
        block, thread, row = Var("b"), Var("t"), Var("row")
        depth, across = (thread % deep, thread // deep) if self.along else (thread // wide, thread % wide)
        acc = Buffer("acc", c.dtype, thin.exclusive_output_point_count, "stack", 16)
        parts = Buffer("parts", c.dtype, self.partial_sums, "shared", 16)
        names, first = axis_values_at_row_major_number(self.outer, block // tiles), block % tiles * wide
        reduction_block = _SplitReductionBlock(
            c, self.data_and_weights, thin, self.long, names, wide, deep, self.distances_in_warp, first, acc, parts
        )
        stmts = (
            loop_nest([(row, thin.exclusive_output_point_count)], Store(acc, row, const(0, c.dtype)), "independent"),
            reduction_block.accumulate_reduction_part_of_thread(depth, across),
            reduction_block.reduce_in_warp_and_store_to_shared(depth, across),
            block_barrier(),
            reduction_block.add_sums_of_all_warps_and_store(thread, output_indices, store),
        )
        over = For(thread, _THREADS_PER_BLOCK, Block(stmts), kind="thread")
        return ContractionNest(For(block, self.blocks, over, kind="block"), (acc,), shared=(parts,))


def gpu_split_reductions(
    analysis: ContractionAnalysis, data_and_weights: tuple[ContractionOperand, ContractionOperand], gpu: Gpu
) -> list[SplitReduction]:
    """Return the divisions of a contraction with a thin side among thread blocks whose threads divide
    the reduction; none if one thread per element is good enough.
    """
    c = analysis.c
    thin, long = sorted(data_and_weights, key=lambda side: side.exclusive_output_point_count)
    along = (
        neighbor_distance_along_last_axis(long.dims, long.axes) != 1
        and neighbor_distance_along_last_axis(long.dims, c.reduce_axes) == 1
    )
    outer = [axis for axis in c.axes if axis not in (*thin.axes, *long.axes)]
    columns = [width for width in (_THREADS_PER_BLOCK, 64, 32, 16) if width <= long.exclusive_output_point_count] + [8]
    reductions = [
        SplitReduction(analysis, data_and_weights, thin, long, outer, wide, along)
        for wide in ((8, 4) if along else columns)
    ]
    cheapest = min(reductions, key=lambda reduction: reduction.estimated_cycles(gpu))
    return [r for r in reductions if r.is_worthwhile(gpu)] if cheapest.is_worthwhile(gpu) else []
