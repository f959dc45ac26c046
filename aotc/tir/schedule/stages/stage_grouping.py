# SPDX-License-Identifier: Apache-2.0
"""Stages: the loop nests of a kernel to be, and which of them share loops.  A Plan in, groups of stages out.

A stage computes an anchor (an elementwise tensor, a reduction, a contraction, an extern) and, as its epilogue,
the tensors that read nothing of it but the element just made:

    dense -> add bias -> relu                        # one stage: anchor dense, roots dense, relu
    max -> exp -> sum -> divide                      # softmax: one group of four stages, sharing the row loop
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from aotc.tir import Expr, Gpu, Target, as_expr, graph, linear, spreads, te
from aotc.tir.schedule.stages.storage_plan import Plan, Read

#: The least extent of an output axis along which a reduction keeps a row of accumulators.
ROW: Final = 8
#: Reductions of fewer elements are one thread's.
_SHORT: Final = 8


@dataclass(slots=True, eq=False)
class Stage:
    """`roots`, the anchor first, have as many elements; element i of each needs element i of others."""

    anchor: te.Tensor
    roots: list[te.Tensor]

    @property
    def axes(self) -> tuple[te.Axis, ...]:
        """The loops over the elements."""
        return graph.axes(self.anchor)

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(extent for _, extent in self.axes)


@dataclass(slots=True, eq=False)
class Group:
    """Stages that run one after the other inside `depth` shared outer loops."""

    stages: list[Stage]
    depth: int = 0
    tensors: set[te.Tensor] = field(default_factory=set)


def form_stages(plan: Plan) -> list[Stage]:
    """One stage for each stored tensor that cannot be computed along with an earlier one."""
    stages: list[Stage] = []
    place: dict[te.Tensor, int] = {}
    for tensor in plan.stored:
        if tensor in place:
            continue  # another output of an extern that has its stage
        needed = plan.needs.get(tensor, [])
        target = max((place[t] for t, _ in needed if t in place), default=-1)
        if target >= 0 and _can_follow(tensor, stages[target], needed):
            stages[target].roots.append(tensor)
            place[tensor] = target
            continue
        place[tensor] = len(stages)
        stages.append(Stage(tensor, [tensor]))
        if isinstance(tensor, te.Extern):
            for other in tensor.group.outputs:
                place.setdefault(other, len(stages) - 1)
    return stages


def _can_follow(tensor: te.Tensor, stage: Stage, needed: Sequence[tuple[te.Tensor, Read]]) -> bool:
    if not isinstance(tensor, te.Compute) or isinstance(stage.anchor, te.Extern) or tensor.size == 0:
        return False
    ranges = graph.axis_ranges(tensor.axes)
    own: list[Expr] = [var for var, _ in tensor.axes]
    return all(
        graph.same_flat(source, read.indices, tensor, own, ranges) for source, read in needed if source in stage.roots
    )


def form_groups(stages: Sequence[Stage], plan: Plan, target: Target) -> list[Group]:
    """Runs of stages that can share outer loops: a row, not a tensor, passes between them.

    On a device all loops around a reduction are shared, or none: what they repeat is for the threads of a block. Where
    rows are few and long, what is computed of their sums at last is left to all processors.
    """
    groups: list[Group] = []
    for stage in stages:
        group = groups[-1] if groups else None
        depth = 0 if group is None else _shared_depth(group, stage, plan)
        if group is not None and depth and target.gpu is not None and target.shares_sums:
            inside = all(_is_inside(s, depth) for s in (*group.stages, stage))
            depth *= inside and not _is_for_all(group, stage, depth, plan, target.gpu)
        if group is None or depth == 0:
            group = Group([])
            groups.append(group)
            depth = _own_depth(stage, plan)
        group.stages.append(stage)
        group.tensors.update(stage.roots)
        group.depth = depth
    return groups


def _is_inside(stage: Stage, depth: int) -> bool:
    """Whether so many loops are all that are around a reduction, if threads would share its elements."""
    anchor = stage.anchor
    short = not isinstance(anchor, te.Reduce) or math.prod(n for _, n in anchor.reduce_axes) < _SHORT
    return short or math.prod(stage.extents[depth:]) == 1


def _is_for_all(group: Group, stage: Stage, depth: int, plan: Plan, gpu: Gpu) -> bool:
    """Whether a stage that ends a kernel needs of a group one number a row, and is left to all processors."""
    if not isinstance(stage.anchor, te.Compute):
        return False
    roots, rows = stage.roots, math.prod(stage.extents[:depth])
    ends = all(read.stage in roots for root in roots for read in plan.reads.get(root, ()))
    sources = {source for root in roots for source, _ in plan.needs.get(root, ())}
    alone = all(source.size == rows for source in sources & group.tensors)
    sums = any(isinstance(s.anchor, te.Reduce) for s in group.stages)
    return ends and alone and sums and spreads(gpu, rows, stage.anchor.size // rows)


def _own_depth(stage: Stage, plan: Plan) -> int:
    """How many loops of a stage may be shared: not the one that is best kept innermost."""
    match stage.anchor:
        case te.Compute():
            return len(stage.axes)
        case te.Reduce():
            position = row_position(stage.anchor, plan)
            return len(stage.axes) if position is None else position
        case _:
            return 0


def row_position(tensor: te.Reduce, plan: Plan) -> int | None:
    """The last output axis, where loads are contiguous along it: it is best kept innermost."""
    position = max((k for k, (_, extent) in enumerate(tensor.axes) if extent > 1), default=None)
    if position is None or tensor.axes[position][1] < ROW:
        return None
    ranges = graph.axis_ranges(graph.domain(tensor))
    strides = [
        linear(te.flat_index(source.shape, read.indices), ranges).coefficient(tensor.axes[position][0])
        for source, read in plan.needs.get(tensor, ())
    ]
    contiguous = all(s in (0, 1) for s in strides) and 1 in strides
    return position if contiguous else None


def _shared_depth(group: Group, stage: Stage, plan: Plan) -> int:
    """How many outer loops `stage` can share with a group; 0 if it gains nothing by it."""
    depth = _common(min(group.depth, _own_depth(stage, plan)), group.stages[0].extents, stage.extents)
    needed = ((root, *need) for root in stage.roots for need in plan.needs.get(root, ()))
    links = [(root, read) for root, tensor, read in needed if tensor in group.tensors]
    for root, read in links:
        depth = _walked(depth, read.indices, graph.axes(root))
    for root in (*stage.roots, *group.tensors):
        depth = _common(depth, root.shape, stage.extents)
    return depth if links and math.prod(stage.extents[:depth]) > 1 else 0


def _walked(depth: int, indices: Sequence[Expr], axes: Sequence[te.Axis]) -> int:
    """How many indices are the axes themselves, or 0 for an axis of one element."""
    fixed = {var for var, extent in axes if extent == 1}
    plain = [as_expr(0) if index in fixed else index for index in indices]
    return _common(depth, plain, [as_expr(0) if var in fixed else var for var, _ in axes])


def _common(depth: int, a: Sequence[object], b: Sequence[object]) -> int:
    """The length, at most `depth`, of the common beginning of two sequences."""
    pairs = zip(a[:depth], b[:depth], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], pairs))
