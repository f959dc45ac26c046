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

from aotc.tir import Expr, Gpu, Target, as_expr, graph, linear, spreads, te
from aotc.tir.schedule.stages.storage_plan import Plan, Read

#: Least extent of an output axis along which a reduction has a row of accumulators.
ROW: Final = 8
#: Number of elements below which a reduction is executed by one thread.
_SHORT: Final = 8


@dataclass(slots=True, eq=False)
class Stage:
    """A loop nest that computes the tensors `roots`, the anchor first.

    All roots have an equal number of elements, and element i of each root depends on no element of
    another root except element i.
    """

    anchor: te.Tensor
    roots: list[te.Tensor]

    @property
    def axes(self) -> tuple[te.Axis, ...]:
        """The loops over the elements of the stage's anchor."""
        return graph.axes(self.anchor)

    @property
    def extents(self) -> tuple[int, ...]:
        """The trip counts of the stage's loops."""
        return tuple(extent for _, extent in self.axes)


@dataclass(slots=True, eq=False)
class Group:
    """Stages (loop nests) that run one after the other inside `depth` shared outer loops; `tensors`
    are all their tensors.
    """

    stages: list[Stage]
    depth: int = 0
    tensors: set[te.Tensor] = field(default_factory=set)


def form_stages(plan: Plan) -> list[Stage]:
    """Return one stage for each stored tensor that cannot be computed in the epilogue of an earlier
    one.
    """
    stages: list[Stage] = []
    place: dict[te.Tensor, int] = {}
    for tensor in plan.stored:
        if tensor in place:
            continue  # another output of an extern program, which has a stage already
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
    """Return True if a tensor can be computed in the epilogue of a stage."""
    if not isinstance(tensor, te.Compute) or isinstance(stage.anchor, te.Extern) or tensor.size == 0:
        return False
    ranges = graph.axis_ranges(tensor.axes)
    own: list[Expr] = [var for var, _ in tensor.axes]
    return all(
        graph.same_flat(source, read.indices, tensor, own, ranges) for source, read in needed if source in stage.roots
    )


def form_groups(stages: Sequence[Stage], plan: Plan, target: Target) -> list[Group]:
    """Group consecutive stages that can share outer loops, so that they pass a row, not a whole
    tensor, to each other.

    On a GPU either all loops around a reduction are shared or none, as the threads of a block
    execute their bodies. If there are few long rows, the final computation on their sums is a group
    of its own, executed by all multiprocessors.
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
    """Return True if `depth` loops are all loops around a stage's reduction, or threads do not
    share its elements.
    """
    anchor = stage.anchor
    short = not isinstance(anchor, te.Reduce) or math.prod(n for _, n in anchor.reduce_axes) < _SHORT
    return short or math.prod(stage.extents[depth:]) == 1


def _is_for_all(group: Group, stage: Stage, depth: int, plan: Plan, gpu: Gpu) -> bool:
    """Return True if the last stage, which needs one number per row of a group, should not share
    the group's loops.

    Then all multiprocessors of a GPU execute it.
    """
    if not isinstance(stage.anchor, te.Compute):
        return False
    roots, rows = stage.roots, math.prod(stage.extents[:depth])
    ends = all(read.stage in roots for root in roots for read in plan.reads.get(root, ()))
    sources = {source for root in roots for source, _ in plan.needs.get(root, ())}
    alone = all(source.size == rows for source in sources & group.tensors)
    sums = any(isinstance(s.anchor, te.Reduce) for s in group.stages)
    return ends and alone and sums and spreads(gpu, rows, stage.anchor.size // rows)


def _own_depth(stage: Stage, plan: Plan) -> int:
    """Return the number of a stage's loops that may be shared, without a loop that should stay
    innermost.
    """
    match stage.anchor:
        case te.Compute():
            return len(stage.axes)
        case te.Reduce():
            position = row_position(stage.anchor, plan)
            return len(stage.axes) if position is None else position
        case _:
            return 0


def row_position(tensor: te.Reduce, plan: Plan) -> int | None:
    """Return the index of the last output axis if loads are contiguous along it, so that it should
    stay innermost; else None.
    """
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
    """Return the number of outer loops that a stage can share with a group; 0 if it gains nothing."""
    depth = _common(min(group.depth, _own_depth(stage, plan)), group.stages[0].extents, stage.extents)
    needed = ((root, *need) for root in stage.roots for need in plan.needs.get(root, ()))
    links = [(root, read) for root, tensor, read in needed if tensor in group.tensors]
    for root, read in links:
        depth = _walked(depth, read.indices, graph.axes(root))
    for root in (*stage.roots, *group.tensors):
        depth = _common(depth, root.shape, stage.extents)
    return depth if links and math.prod(stage.extents[:depth]) > 1 else 0


def _walked(depth: int, indices: Sequence[Expr], axes: Sequence[te.Axis]) -> int:
    """Return the number of leading indices that are the loop variables themselves (or 0 for an axis
    of one element).
    """
    fixed = {var for var, extent in axes if extent == 1}
    plain = [as_expr(0) if index in fixed else index for index in indices]
    return _common(depth, plain, [as_expr(0) if var in fixed else var for var, _ in axes])


def _common(depth: int, a: Sequence[object], b: Sequence[object]) -> int:
    """Return the length, at most `depth`, of the common prefix of two sequences."""
    pairs = zip(a[:depth], b[:depth], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], pairs))
