# SPDX-License-Identifier: Apache-2.0
"""Find the outputs of a kernel that may overwrite its inputs: from groups of stages, pairs of
(output, input) positions.

    y[i] = x[i] + b[i]            # (0, 0): y may be the memory of x (or (0, 1), that of b)

A pair is given only if every element of the input is read before the output element at its place is
written (or to compute it), in the order of the stages. Each input and each output is in at most one
pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aotc.ir import frozen
from aotc.tir import bounds, graph, te
from aotc.tir.schedule.stages.stage_grouping import Group
from aotc.tir.schedule.stages.storage_plan import Plan, Read
from aotc.tir.simplify import simplify


def inplace_pairs(
    plan: Plan, groups: Sequence[Group], inputs: Sequence[te.Placeholder], outputs: Sequence[te.Tensor]
) -> tuple[tuple[int, int], ...]:
    """Return the positions (output, input) of kernel parameters that may share memory."""
    stages = ((g, s, stage) for g, group in enumerate(groups) for s, stage in enumerate(group.stages))
    order = _Order(plan, groups, {root: (g, s) for g, s, stage in stages for root in stage.roots})
    pairs: dict[int, int] = {}
    bases = [graph.base(t) for t in outputs]
    for o, tensor in enumerate(bases):
        if tensor not in order.places or bases.index(tensor) != o:
            continue
        for i, source in enumerate(inputs):
            alike = source.size == tensor.size > 0 and source.dtype == tensor.dtype
            if alike and i not in pairs.values() and source not in bases and order.is_safe(source, tensor):
                pairs[o] = i
                break
    return tuple(pairs.items())


@frozen
class _Order:
    """The order in which a kernel computes its tensors.

    plan, groups   storage plan and groups of stages
    places         for each root, the index of its group, and of its stage in the group
    """

    plan: Plan
    groups: Sequence[Group]
    places: dict[te.Tensor, tuple[int, int]]

    def is_safe(self, source: te.Tensor, tensor: te.Tensor) -> bool:
        """Return True if an input is always read before the output is written over it."""
        group, number = self.places[tensor]
        stage = self.groups[group].stages[number]
        if isinstance(stage.anchor, te.Extern) or tensor is not stage.roots[-1]:
            return False  # a later root of the stage might read the element again
        takers = (t for t in self.plan.operands.get(source, ()) if t in self.places)
        early = all(self._is_early(read, source, tensor) for read in self.plan.reads.get(source, ()))
        return early and all(self.places[taker][0] < group for taker in takers)

    def _is_early(self, read: Read, source: te.Tensor, tensor: te.Tensor) -> bool:
        """Return True if a read of the input comes before the write of the output over it."""
        (group, number), (own_group, own) = self.places[tensor], self.places[read.stage]
        if own_group != group or own > number:
            return own_group < group
        root, found = read.stage, self.groups[group]
        axes = [var for var, _ in graph.domain(root)]
        ranges = graph.axis_ranges(graph.domain(root))
        if own == number:  # the body of a reduction reads other elements, too
            return isinstance(root, te.Compute) and graph.same_flat(source, read.indices, root, axes, ranges)
        depth, rows = found.depth, tensor.shape[: found.depth]
        if source.shape[:depth] == rows and list(read.indices[:depth]) == axes[:depth]:
            return True
        size = math.prod(tensor.shape[depth:])
        first = te.flat_index(rows, axes[:depth]) * size
        place = te.flat_index(source.shape, read.indices)
        low, high = bounds(simplify(place - first, ranges), ranges)
        return low >= 0 and high < size
