# SPDX-License-Identifier: Apache-2.0
"""Long reductions on GPUs: partial results of elements a fixed distance apart, one per thread,
combined in two steps.

    for i in 0..9 independent {
        for l in 0..256 independent { s = 0; for k in l..9000 step 256 { s = s + x[i * 9000 + k] } part[l] = s }
        for a in 0..16 independent { s = part[a]; for j in 1..16 { s = s + part[16 * j + a] } fold[a] = s }
        s = fold[0]; for j in 1..16 { s = s + fold[j] }                      # every thread
        y[i] = s
    }

Each `l`, and each `a`, is a thread of a block (`aotc.tir.device.block_per_row`). If results are few
and have many elements, these are divided into parts for several blocks, whose results are reduced
afterwards. The order is fixed by the program; the number of partial results depends on the sizes
and the `Gpu`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import (
    MAX_THREADS_PER_BLOCK,
    Buffer,
    Expr,
    Gpu,
    Load,
    Store,
    Var,
    as_expr,
    binary,
    constant_unit_step_range,
    rename_declared_vars,
    te,
    tensor_graph,
)
from aotc.tir.stmt import Assign, Block, Declare, For, Stmt, loop_nest

#: Largest number of partial results that one thread combines in one step.
_MAX_PARTIALS_COMBINED_AT_ONCE: Final = 16


@frozen(eq=False)
class LongReduction:
    """The parts of a reduction: `acc` is set to `start`, `update` combines it with the elements by
    `op`, `finish` uses it.

    free      loops around the reduction, each iteration of which has a result
    scratch   function that allocates partial results (name, type, size, and keyword arguments)
    """

    op: str
    acc: Var
    start: Expr
    update: Stmt
    finish: Stmt
    free: Sequence[te.Axis]
    scratch: Callable[..., Buffer]

    @property
    def reduction_loops_if_all_begin_at_0(self) -> list[For]:
        """The loops over the elements of a reduction, the outermost first; none if they do not
        begin at 0.
        """
        loops, nest = list[For](), self.update
        while isinstance(nest, For):
            loops.append(nest)
            nest = nest.body
        return (
            loops
            if all(constant_unit_step_range(loop).start == 0 and constant_unit_step_range(loop) for loop in loops)
            else []
        )

    @property
    def reduced_element_count(self) -> int:
        """The number of elements that are combined."""
        return (
            math.prod(len(constant_unit_step_range(loop)) for loop in self.reduction_loops_if_all_begin_at_0)
            if self.reduction_loops_if_all_begin_at_0
            else 0
        )

    def strided_reduction_loop(self, begin: Expr, end: Expr, step: int) -> Stmt:
        """Return the loop that combines the elements with numbers from `begin` to `end`, `step`
        apart.
        """
        *outer, inner = self.reduction_loops_if_all_begin_at_0
        if not outer:
            return replace(inner, begin=begin, end=end, step=step)
        number = Var("k")
        places = tensor_graph.indices_from_flat_offset(
            number, [len(constant_unit_step_range(loop)) for loop in self.reduction_loops_if_all_begin_at_0]
        )
        digits = (
            Declare(loop.var, place) for loop, place in zip(self.reduction_loops_if_all_begin_at_0, places, strict=True)
        )
        return For(number, end, Block((*digits, inner.body)), begin=begin, step=step, kind="reduction")


def split_reduction_among_threads(
    reduction: LongReduction, gpu: Gpu, result_count: int, *, is_result_axis_contiguous: bool, is_only_statement: bool
) -> Stmt | None:
    """Return a long reduction split among GPU threads; None if a single thread per result is
    better.

    result_count                 number of results
    is_result_axis_contiguous    elements of different results are adjacent in memory, elements of one result
                                 are not
    is_only_statement            no other statements are inside the loops around the reduction
    """
    size, costs = reduction.reduced_element_count, gpu.costs
    count = _partial_result_count(size, result_count, gpu, is_result_axis_contiguous)
    each = size // count
    parts = min(
        size // (count * costs.min_part_thread_elements), gpu.threads_to_saturate // (count * max(result_count, 1))
    )
    if not is_only_statement or each < costs.min_part_elements or parts < 2:
        if not is_result_axis_contiguous and each >= costs.min_part_elements and result_count < gpu.processors:
            count = min(4 * gpu.threads, MAX_THREADS_PER_BLOCK)
        if count == 1:
            return None
        folded = _reduce_to_strided_partials_and_combine(reduction, count, as_expr(0), as_expr(size))
        return loop_nest(reduction.free, folded, "independent")
    chunk = -(-size // (parts * count)) * count
    return _reduce_parts_in_separate_blocks(reduction, gpu, result_count, count, chunk)


def _partial_result_count(element_count: int, result_count: int, gpu: Gpu, is_result_axis_contiguous: bool) -> int:
    """Return the number of partial results for each result of a reduction; 1 if threads do not
    split it.
    """
    if is_result_axis_contiguous:
        columns = min(gpu.warp, _largest_power_of_2_up_to(max(1, 2 * result_count - 1)))
        return _largest_power_of_2_up_to(
            max(
                1,
                min(
                    gpu.threads // columns,
                    element_count // gpu.costs.min_thread_elements,
                    gpu.threads_to_saturate // max(1, result_count),
                ),
            )
        )
    few = gpu.warp if result_count < gpu.threads_to_saturate // 4 else 2 * gpu.warp
    return 1 if element_count < few else min(max(gpu.warp, _largest_power_of_2_up_to(element_count // 2)), gpu.threads)


def _largest_power_of_2_up_to(number: int) -> int:
    """Return the largest power of two up to a number."""
    return 1 << (number.bit_length() - 1)


def _reduce_parts_in_separate_blocks(
    reduction: LongReduction, gpu: Gpu, result_count: int, partial_result_count: int, elements_per_part: int
) -> Stmt:
    """Return the reduction of each part of the elements, executed by different blocks, followed by
    that of the parts' results.
    """
    part, other, place = Var("part"), Var("part"), as_expr(0)
    size, parts = reduction.reduced_element_count, -(-reduction.reduced_element_count // elements_per_part)
    for var, extent in reduction.free:
        place = place * extent + var
    part_results = reduction.scratch(
        f"{reduction.acc.name}_parts", reduction.acc.dtype, parts * result_count, shared=True
    )
    part_reduction = replace(reduction, finish=Store(part_results, part * result_count + place, reduction.acc))
    first = _reduce_to_strided_partials_and_combine(
        part_reduction,
        partial_result_count,
        part * elements_per_part,
        binary("min", (part + 1) * elements_per_part, size),
    )
    total = binary(reduction.op, reduction.acc, Load(part_results, other * result_count + place))
    update = For(other, parts, Assign(reduction.acc, total), kind="reduction")
    rest = replace(reduction, update=update)
    scalar = Block((Declare(reduction.acc, reduction.start), update, reduction.finish))
    last = split_reduction_among_threads(
        rest, gpu, result_count, is_result_axis_contiguous=result_count > 1, is_only_statement=False
    ) or loop_nest(reduction.free, scalar, "independent")
    return Block((loop_nest([(part, parts), *reduction.free], first, "independent"), rename_declared_vars(last)))


def _reduce_to_strided_partials_and_combine(
    reduction: LongReduction, partial_result_count: int, begin: Expr, end: Expr
) -> Block:
    """Return the statements that compute partial results of elements `partial_result_count` apart,
    and combine them in two steps.
    """
    part = reduction.scratch(f"{reduction.acc.name}_part", reduction.acc.dtype, partial_result_count, private=True)
    lane, acc = Var("l"), Var(reduction.acc.name, reduction.acc.dtype)
    each = reduction.strided_reduction_loop(begin + lane, end, partial_result_count)
    lane_body = rename_declared_vars(
        Block((Declare(reduction.acc, reduction.start), each, Store(part, lane, reduction.acc)))
    )
    stmts: list[Stmt] = [For(lane, partial_result_count, lane_body, kind="independent")]
    groups = 1 << (partial_result_count.bit_length() - 1) // 2
    if partial_result_count > _MAX_PARTIALS_COMBINED_AT_ONCE:
        fold = reduction.scratch(f"{acc.name}_fold", acc.dtype, groups, private=True)
        group = Var("a")
        combined = _combine_strided_elements(reduction.op, acc, part, group, partial_result_count // groups, groups)
        stmts.append(For(group, groups, Block((*combined, Store(fold, group, acc))), kind="independent"))
        part, partial_result_count = fold, groups
    return Block(
        (
            *stmts,
            *_combine_strided_elements(reduction.op, reduction.acc, part, as_expr(0), partial_result_count, 1),
            reduction.finish,
        )
    )


def _combine_strided_elements(
    op: str, accumulator: Var, source: Buffer, first_index: Expr, count: int, step: int
) -> tuple[Stmt, Stmt]:
    """Return statements that combine `count` elements, `step` apart, in the register `accumulator`."""
    j = Var("j")
    update = Assign(accumulator, binary(op, accumulator, Load(source, first_index + j * step)))
    return Declare(accumulator, Load(source, first_index)), For(j, count, update, begin=1, kind="reduction")
