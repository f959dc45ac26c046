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
from aotc.tir import bounds, te, tensor_graph
from aotc.tir.schedule.stages.stage_grouping import StageGroup
from aotc.tir.schedule.stages.store_or_inline_tensors import StoragePlan, TensorRead
from aotc.tir.simplify import simplify


def output_input_pairs_that_may_share_memory(
    plan: StoragePlan, groups: Sequence[StageGroup], inputs: Sequence[te.Placeholder], outputs: Sequence[te.Tensor]
) -> tuple[tuple[int, int], ...]:
    """Return the positions (output, input) of kernel parameters that may share memory."""
    stages = ((g, s, stage) for g, group in enumerate(groups) for s, stage in enumerate(group.stages))
    order = _ComputationOrder(plan, groups, {root: (g, s) for g, s, stage in stages for root in stage.roots})
    pairs: dict[int, int] = {}
    bases = [tensor_graph.strip_views(t) for t in outputs]
    for o, tensor in enumerate(bases):
        if tensor not in order.places or bases.index(tensor) != o:
            continue
        for i, source in enumerate(inputs):
            alike = source.has_live_size_of(tensor) and source.dtype == tensor.dtype
            if (
                alike
                and tensor.capacity > 0
                and i not in pairs.values()
                and source not in bases
                and order.is_input_read_before_overwrite(source, tensor)
            ):
                pairs[o] = i
                break
    return tuple(pairs.items())


@frozen
class _ComputationOrder:
    """The order in which a kernel computes its tensors.

    plan, groups   storage plan and groups of stages
    places         for each root, the index of its group, and of its stage in the group
    """

    plan: StoragePlan
    groups: Sequence[StageGroup]
    places: dict[te.Tensor, tuple[int, int]]

    def is_input_read_before_overwrite(self, input_tensor: te.Tensor, output_tensor: te.Tensor) -> bool:
        """Return True if an input is always read before the output is written over it."""
        group, number = self.places[output_tensor]
        stage = self.groups[group].stages[number]
        if isinstance(stage.anchor, te.Extern) or output_tensor is not stage.roots[-1]:
            return False  # a later root of the stage might read the element again
        takers = (t for t in self.plan.operands.get(input_tensor, ()) if t in self.places)
        early = all(
            self._is_read_before_write(read, input_tensor, output_tensor)
            for read in self.plan.reads.get(input_tensor, ())
        )
        return early and all(self.places[taker][0] < group for taker in takers)

    def _is_read_before_write(self, read: TensorRead, input_tensor: te.Tensor, output_tensor: te.Tensor) -> bool:
        """Return True if a read of the input comes before the write of the output over it."""
        (group, number), (own_group, reader_number) = self.places[output_tensor], self.places[read.stage]
        if own_group != group or reader_number > number:
            return own_group < group
        root, stage_group = read.stage, self.groups[group]
        axes = [var for var, _ in tensor_graph.output_and_reduction_axes(root)]
        ranges = tensor_graph.inclusive_ranges_of_axes(tensor_graph.output_and_reduction_axes(root))
        if reader_number == number:  # the body of a reduction reads other elements, too
            return isinstance(root, te.Compute) and tensor_graph.have_equal_flat_offsets(
                input_tensor, read.indices, root, axes, ranges
            )
        depth, rows = stage_group.depth, output_tensor.shape[: stage_group.depth]
        if input_tensor.shape[:depth] == rows and list(read.indices[:depth]) == axes[:depth]:
            return True
        if not (input_tensor.is_static and output_tensor.is_static):
            return False
        size = math.prod(output_tensor.shape[depth:])
        first = te.flat_index(rows, axes[:depth]) * size
        place = te.flat_index(input_tensor.shape, read.indices)
        low, high = bounds(simplify(place - first, ranges), ranges)
        return low >= 0 and high < size
