# SPDX-License-Identifier: Apache-2.0
"""Which outputs of a kernel may overwrite which inputs.  Stages in, pairs of positions out.

    y[i] = x[i] + b[i]            # (0, 0): y may be the memory of x (or (0, 1), that of b)

A pair is given only where every element of the input is read before, or as, the element of the output at its place
is written, in the order of the stages; each input and each output is in one pair at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.tir import graph, te
from aotc.tir.schedule.stages.grouping import Group, Stage
from aotc.tir.schedule.stages.inline import Plan, Read


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a root is computed: group, stage within the group, position among the stage's roots."""

    group: int
    stage: int
    root: int


def inplace_pairs(
    plan: Plan, groups: Sequence[Group], inputs: Sequence[te.Placeholder], outputs: Sequence[te.Tensor]
) -> tuple[tuple[int, int], ...]:
    """The (output, input) pairs that may share memory."""
    places: dict[te.Tensor, _Place] = {}
    for g, group in enumerate(groups):
        for s, stage in enumerate(group.stages):
            places.update({root: _Place(g, s, r) for r, root in enumerate(stage.roots)})
    pairs: dict[int, int] = {}
    bases = [graph.base(t) for t in outputs]
    for o, tensor in enumerate(bases):
        if tensor not in places or bases.index(tensor) != o:
            continue
        for i, source in enumerate(inputs):
            free = i not in pairs.values() and source not in bases and _same_memory(source, tensor)
            if free and _safe(plan, groups, places, source, tensor):
                pairs[o] = i
                break
    return tuple(pairs.items())


def _same_memory(source: te.Tensor, tensor: te.Tensor) -> bool:
    return source.size == tensor.size > 0 and source.dtype == tensor.dtype


def _safe(
    plan: Plan, groups: Sequence[Group], places: dict[te.Tensor, _Place], source: te.Tensor, tensor: te.Tensor
) -> bool:
    target = places[tensor]
    stage = groups[target.group].stages[target.stage]
    if isinstance(stage.anchor, te.Extern) or tensor is not stage.roots[-1]:
        return False  # a later root might read the element again
    if any(places[user].group >= target.group for user in plan.operands.get(source, ()) if user in places):
        return False
    return all(_early(groups, places, read, source, tensor) for read in plan.reads.get(source, ()))


def _early(
    groups: Sequence[Group], places: dict[te.Tensor, _Place], read: Read, source: te.Tensor, tensor: te.Tensor
) -> bool:
    """Whether a read of the input comes before the write of the output over it."""
    target, place = places[tensor], places[read.stage]
    if place.group != target.group:
        return place.group < target.group
    group = groups[target.group]
    if place.stage > target.stage:
        return False
    if place.stage == target.stage:
        return _same_element(group.stages[place.stage], read, source)
    depth = group.depth
    rows = source.shape[:depth] == tensor.shape[:depth]
    return rows and list(read.indices[:depth]) == [var for var, _ in graph.domain(read.stage)[:depth]]


def _same_element(stage: Stage, read: Read, source: te.Tensor) -> bool:
    root = read.stage
    if not isinstance(root, te.Compute) or root not in stage.roots:
        return False  # the body of a reduction reads other elements too
    return graph.same_flat(source, read.indices, root, [var for var, _ in root.axes], graph.axis_ranges(root.axes))
