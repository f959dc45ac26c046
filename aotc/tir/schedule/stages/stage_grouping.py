# SPDX-License-Identifier: Apache-2.0
"""Form the loop nests (stages) of a kernel, and groups of stages that share outer loops: from a
Plan, a list of groups.

A stage computes an anchor (an elementwise tensor, a reduction, a contraction, an extern program)
and, as its epilogue, the tensors whose element i needs element i of the anchor only:

    dense -> add bias -> relu                        # one stage: anchor dense, roots dense, relu
    max -> exp -> sum -> divide                      # softmax: one group of four stages, sharing the row loop
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from aotc.ir import largest_number_of_elements, largest_size
from aotc.tir import Expr, Gpu, Target, as_expr, is_separate_launch_faster, linear_form, te, tensor_graph
from aotc.tir.schedule.stages.store_or_inline_tensors import StoragePlan, TensorRead

#: Least extent of an output axis along which a reduction has a row of accumulators.
MIN_ACCUMULATOR_ROW_EXTENT: Final = 8
#: Number of elements below which a reduction is executed by one thread.
_MIN_SHARED_REDUCTION_ELEMENTS: Final = 8


@dataclass(slots=True, eq=False)
class ComputeStage:
    """A loop nest that computes the tensors `roots`, the anchor first.

    All roots have an equal number of elements, and element i of each root depends on no element of
    another root except element i.
    """

    anchor: te.Tensor
    roots: list[te.Tensor]

    @property
    def anchor_axes(self) -> tuple[te.Axis, ...]:
        """The loops over the elements of the stage's anchor."""
        return tensor_graph.output_axes(self.anchor)

    @property
    def anchor_extents(self) -> tuple[te.Extent, ...]:
        """The trip counts of the stage's loops."""
        return tuple(extent for _, extent in self.anchor_axes)


@dataclass(slots=True, eq=False)
class StageGroup:
    """Stages (loop nests) that run one after the other inside `depth` shared outer loops; `tensors`
    are all their tensors.
    """

    stages: list[ComputeStage]
    depth: int = 0
    tensors: set[te.Tensor] = field(default_factory=set)


def form_compute_stages(plan: StoragePlan) -> list[ComputeStage]:
    """Return one stage for each stored tensor that cannot be computed in the epilogue of an earlier
    one.
    """
    stages: list[ComputeStage] = []
    place: dict[te.Tensor, int] = {}
    for tensor in plan.stored:
        if tensor in place:
            continue  # another output of an extern program, which has a stage already
        needed = plan.needs.get(tensor, [])
        target = max((place[t] for t, _ in needed if t in place), default=-1)
        if target >= 0 and _can_compute_in_epilogue(tensor, stages[target], needed):
            stages[target].roots.append(tensor)
            place[tensor] = target
            continue
        place[tensor] = len(stages)
        stages.append(ComputeStage(tensor, [tensor]))
        if isinstance(tensor, te.Extern):
            for other in tensor.group.outputs:
                place.setdefault(other, len(stages) - 1)
    return stages


def _can_compute_in_epilogue(
    tensor: te.Tensor, stage: ComputeStage, reads: Sequence[tuple[te.Tensor, TensorRead]]
) -> bool:
    """Return True if a tensor can be computed in the epilogue of a stage."""
    if not isinstance(tensor, te.Compute) or isinstance(stage.anchor, te.Extern) or tensor.capacity == 0:
        return False
    ranges = tensor_graph.inclusive_ranges_of_axes(tensor.axes)
    axis_vars: list[Expr] = [var for var, _ in tensor.axes]
    return all(
        tensor_graph.have_equal_flat_offsets(source, read.indices, tensor, axis_vars, ranges)
        for source, read in reads
        if source in stage.roots
    )


def group_stages_with_shared_loops(
    stages: Sequence[ComputeStage], plan: StoragePlan, target: Target
) -> list[StageGroup]:
    """Group consecutive stages that can share outer loops, so that they pass a row, not a whole
    tensor, to each other.

    On a GPU either all loops around a reduction are shared or none, as the threads of a block
    execute their bodies. If there are few long rows, the final computation on their sums is a group
    of its own, executed by all multiprocessors.
    """
    groups: list[StageGroup] = []
    for stage in stages:
        group = groups[-1] if groups else None
        depth = 0 if group is None else _loop_count_worth_sharing_with_group(group, stage, plan)
        if group is not None and depth and target.gpu is not None and target.can_split_reduction_in_thread_block:
            inside = all(_is_short_or_shares_all_reduction_loops(s, depth) for s in (*group.stages, stage))
            depth *= inside and not _should_launch_separately_on_whole_gpu(group, stage, depth, plan, target.gpu)
        if group is None or depth == 0:
            group = StageGroup([])
            groups.append(group)
            depth = _loop_count_sharable_with_other_stages(stage, plan)
        group.stages.append(stage)
        group.tensors.update(stage.roots)
        group.depth = depth
    return groups


def _is_short_or_shares_all_reduction_loops(stage: ComputeStage, shared_loop_count: int) -> bool:
    """Return True if `shared_loop_count` loops are all loops around a stage's reduction, or threads do
    not share its elements.
    """
    anchor = stage.anchor
    short = (
        not isinstance(anchor, te.Reduce)
        or math.prod(n for _, n in anchor.reduce_axes) < _MIN_SHARED_REDUCTION_ELEMENTS
    )
    return short or math.prod(stage.anchor_extents[shared_loop_count:]) == 1


def _should_launch_separately_on_whole_gpu(
    group: StageGroup, stage: ComputeStage, shared_loop_count: int, plan: StoragePlan, gpu: Gpu
) -> bool:
    """Return True if the last stage, which needs one number per row of a group, should not share
    the group's loops.

    Then all multiprocessors of a GPU execute it.
    """
    if not isinstance(stage.anchor, te.Compute):
        return False
    roots, rows = stage.roots, math.prod(stage.anchor_extents[:shared_loop_count])
    ends = all(read.stage in roots for root in roots for read in plan.reads.get(root, ()))
    sources = {source for root in roots for source, _ in plan.needs.get(root, ())}
    alone = all(source.size == rows for source in sources & group.tensors)
    sums = any(isinstance(s.anchor, te.Reduce) for s in group.stages)
    return ends and alone and sums and is_separate_launch_faster(gpu, rows, stage.anchor.size // rows)


def _loop_count_sharable_with_other_stages(stage: ComputeStage, plan: StoragePlan) -> int:
    """Return how many outer loops of a stage other stages may be put inside of, a loop that should
    stay innermost left out.
    """
    match stage.anchor:
        case te.Compute():
            return len(stage.anchor_axes)
        case te.Reduce():
            position = last_output_axis_if_loads_contiguous(stage.anchor, plan)
            return len(stage.anchor_axes) if position is None else position
        case _:
            return 0


def last_output_axis_if_loads_contiguous(tensor: te.Reduce, plan: StoragePlan) -> int | None:
    """Return the index of the last output axis if loads are contiguous along it, so that it should
    stay innermost; else None.
    """
    position = max((k for k, (_, extent) in enumerate(tensor.axes) if largest_size(extent) > 1), default=None)
    if position is None or largest_size(tensor.axes[position][1]) < MIN_ACCUMULATOR_ROW_EXTENT:
        return None
    ranges = tensor_graph.inclusive_ranges_of_axes(tensor_graph.output_and_reduction_axes(tensor))
    strides = [
        linear_form(te.flat_index(source.shape, read.indices), ranges).coefficient(tensor.axes[position][0])
        for source, read in plan.needs.get(tensor, ())
    ]
    contiguous = all(s in (0, 1) for s in strides) and 1 in strides
    return position if contiguous else None


def _loop_count_worth_sharing_with_group(group: StageGroup, stage: ComputeStage, plan: StoragePlan) -> int:
    """Return the number of outer loops that a stage can share with a group; 0 if it gains nothing."""
    max_depth = min(group.depth, _loop_count_sharable_with_other_stages(stage, plan))
    depth = _common_prefix_length(max_depth, group.stages[0].anchor_extents, stage.anchor_extents)
    needed = ((root, *need) for root in stage.roots for need in plan.needs.get(root, ()))
    links = [(root, read) for root, tensor, read in needed if tensor in group.tensors]
    for root, read in links:
        depth = _count_leading_loop_var_indices(depth, read.indices, tensor_graph.output_axes(root))
    for root in (*stage.roots, *group.tensors):
        depth = _common_prefix_length(depth, root.shape, stage.anchor_extents)
    return depth if links and largest_number_of_elements(stage.anchor_extents[:depth]) > 1 else 0


def _count_leading_loop_var_indices(max_count: int, indices: Sequence[Expr], axes: Sequence[te.Axis]) -> int:
    """Return the number of leading indices that are the loop variables themselves (or 0 for an axis
    of one element).
    """
    fixed = {var for var, extent in axes if extent == 1}
    plain = [as_expr(0) if index in fixed else index for index in indices]
    return _common_prefix_length(max_count, plain, [as_expr(0) if var in fixed else var for var, _ in axes])


def _common_prefix_length(max_length: int, a: Sequence[object], b: Sequence[object]) -> int:
    """Return the length, at most `max_length`, of the common prefix of two sequences."""
    pairs = zip(a[:max_length], b[:max_length], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], pairs))
