# SPDX-License-Identifier: Apache-2.0
"""Decide which tensors are stored in memory and which are inlined where they are read: from a graph
of tensors, a `StoragePlan`.

    plan = plan_storage(outputs, target)
    plan.stored  # the tensors to compute into memory, in order
    plan.reads[t]  # where each stored tensor is read, and with which indices
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from aotc.ir import frozen, largest_number_of_elements
from aotc.tir import Cast, Element, Expr, Target, Var, operands, substitute, te, tensor_graph, walk
from aotc.tir.simplify import Ranges, simplify

#: Largest number of places in one stage that read an inlined tensor.
_MAX_INLINED_READS_PER_STAGE: Final = 8
#: Largest nesting depth of indices (an element of an element of ...) of an inlined tensor.
_MAX_INDEX_NESTING: Final = 40
#: Depth of a chain of inlined tensors at which a value is put in a register: C compilers limit
#: nested parentheses.
_MAX_INLINED_CHAIN_LENGTH: Final = 12
#: A tensor of run-time size with at least this many times the elements of every tensor that it is computed from is
#: inlined if an element costs at most `_MAX_EXPANDING_COST`: memory for the mask of attention is planned for the
#: longest sequence.
_MIN_EXPANSION: Final = 8
_MAX_EXPANDING_COST: Final = 8


@frozen
class TensorRead:
    """An element that the body of `stage` reads.

    stage     the reading tensor
    indices   its indices, over the stage's domain
    times     number of evaluations
    """

    stage: te.Tensor
    indices: tuple[Expr, ...]
    times: int


@frozen
class StoragePlan:
    """The stored tensors of a kernel, and their readers.

    order       all tensors, producers first
    stored      the tensors (never views) that are computed by a stage of their own, producers first
    reads       the reads of every stored tensor and placeholder by bodies of stages
    needs       for each stage, the tensors that its body reads, and how
    operands    the stored tensors and placeholders that contractions and extern programs read as a
                whole
    registers   inlined tensors whose value is put in a register where it is computed
    """

    order: list[te.Tensor]
    stored: list[te.Tensor]
    reads: dict[te.Tensor, list[TensorRead]]
    needs: dict[te.Tensor, list[tuple[te.Tensor, TensorRead]]]
    operands: dict[te.Tensor, list[te.Tensor]]
    registers: set[te.Tensor]

    @property
    def is_static(self) -> bool:
        """True if the shapes of all tensors are known."""
        return all(tensor.is_static for tensor in self.order)


@dataclass(slots=True)
class _StoragePlanner:
    """Decides which tensors of a kernel are stored in memory, visiting consumers before producers."""

    order: list[te.Tensor]
    store_cost: int
    index_nodes: int
    # on a GPU, neighboring threads read what each of them converts again
    device: bool
    # outputs, and operands of contractions and extern programs: they need memory in any case
    forced: AbstractSet[te.Tensor]
    stored: set[te.Tensor] = field(default_factory=set)
    reads: dict[te.Tensor, dict[tuple[te.Tensor, tuple[Expr, ...]], int]] = field(default_factory=dict)
    ranges: dict[te.Tensor, Ranges] = field(default_factory=dict)
    # the elements of the largest tensor from which each tensor is computed if all tensors between them are inlined
    source_elements: dict[te.Tensor, int] = field(default_factory=dict)
    # tensors of run-time size that are inlined because they have many times the elements of what they are computed from
    expanding: set[te.Tensor] = field(default_factory=set)

    def decide_storing_or_inlining_all_tensors(self) -> None:
        """Decide for all tensors, consumers first, so that all reads of a tensor are known when its
        turn comes.
        """
        cost = tensor_graph.cost_per_element_if_inlined(self.order)
        for tensor in self.order:
            is_inlinable = isinstance(tensor, (te.Compute, te.View))
            sources = tensor_graph.source_tensors(tensor) if is_inlinable else ()
            largest = max((self.source_elements[source] for source in sources), default=0)
            self.source_elements[tensor] = largest if is_inlinable else tensor.capacity
            is_expanding = not tensor.is_static and tensor.capacity >= _MIN_EXPANSION * self.source_elements[tensor]
            if is_expanding and cost[tensor] <= _MAX_EXPANDING_COST:
                self.expanding.add(tensor)
        for tensor in reversed(self.order):
            if isinstance(tensor, te.View):
                for (stage, indices), times in self.reads.get(tensor, {}).items():
                    source_indices = tensor_graph.indices_in_reshaped_tensor(
                        tensor, indices, tensor.source, self.ranges[stage]
                    )
                    self._record_read(tensor.source, stage, source_indices, times)
            elif not isinstance(tensor, te.Placeholder):
                self._decide_stored_or_inlined(tensor, cost[tensor])

    def _decide_stored_or_inlined(self, tensor: te.Tensor, cost: int) -> None:
        """Decide if a tensor is stored or inlined, and record the reads that computing it needs."""
        if not isinstance(tensor, te.Compute) or tensor in self.forced or self._is_storing_cheaper(tensor, cost):
            self.stored.add(tensor)
            self.ranges[tensor] = tensor_graph.inclusive_ranges_of_axes(tensor_graph.output_and_reduction_axes(tensor))
            axes = tensor_graph.output_and_reduction_axes(tensor)
            evaluations = largest_number_of_elements(extent for _, extent in axes)
            self._record_reads_of_evaluation(tensor, tensor, {}, evaluations)
            return
        for (stage, indices), times in self.reads.get(tensor, {}).items():
            self._record_reads_of_evaluation(
                tensor, stage, tensor_graph.substitution_for_axes(tensor.axes, indices), times
            )

    def _record_reads_of_evaluation(
        self, tensor: te.Tensor, stage: te.Tensor, mapping: dict[Var, Expr], evaluations: int
    ) -> None:
        """Record the reads that `evaluations` evaluations of `tensor` in a stage need."""
        ranges = self.ranges[stage]
        for element in tensor_graph.element_reads_in_definition(tensor):
            indices = tuple(simplify(substitute(i, mapping), ranges) for i in element.indices)
            self._record_read(element.tensor, stage, indices, evaluations)

    def _record_read(self, tensor: te.Tensor, stage: te.Tensor, indices: tuple[Expr, ...], evaluations: int) -> None:
        """Record a read of a tensor by a stage, with its indices and number of evaluations."""
        reads = self.reads.setdefault(tensor, {})
        reads[stage, indices] = max(reads.get((stage, indices), 0), evaluations)

    def _is_storing_cheaper(self, tensor: te.Compute, element_cost: int) -> bool:
        """Return True if storing a tensor costs less than computing it again at each read."""
        reads = self.reads.get(tensor, {})
        per_stage = Counter(stage for stage, _ in reads)
        if max(per_stage.values(), default=0) > _MAX_INLINED_READS_PER_STAGE:
            return True
        if any(
            _exceeds_index_nesting_limit(indices) or self._has_too_many_index_nodes(indices) for _, indices in reads
        ):
            return True
        if tensor in self.expanding:
            return tensor.materialize and len(reads) > 1
        if self._has_computed_mask(tensor) and any(isinstance(stage, te.Reduce) for stage in per_stage):
            return len(per_stage) > 1
        if self.device and isinstance(tensor.body, Cast) and isinstance(tensor.body.a, Element):
            element_cost = 0
        recomputed = sum(reads.values()) / max(tensor.capacity, 1) - 1
        return (tensor.materialize and len(reads) > 1) or element_cost * recomputed > self.store_cost

    def _has_computed_mask(self, tensor: te.Compute) -> bool:
        """Return True if a tensor reads one that is expanding, such as masked scores.

        A softmax reads its row twice, and holds it in the first-level cache.
        """
        sources = map(tensor_graph.strip_views, tensor_graph.source_tensors(tensor))
        return not self.expanding.isdisjoint(sources)

    def _has_too_many_index_nodes(self, indices: Sequence[Expr]) -> bool:
        """Return True if indices take so much code that the element should be read from memory."""
        nodes = (node for i in indices for node in walk(i))
        return next(itertools.islice(nodes, self.index_nodes, None), None) is not None


def _exceeds_index_nesting_limit(indices: Sequence[Expr]) -> bool:
    """Return True if indices are nested deeper than `_MAX_INDEX_NESTING`."""
    level, depth = list(indices), 0
    while level and depth <= _MAX_INDEX_NESTING:
        level = [o for e in level for o in operands(e)]
        depth += 1
    return depth > _MAX_INDEX_NESTING


def _inlined_tensors_worth_a_register(tensors: Sequence[te.Tensor], stored: set[te.Tensor]) -> set[te.Tensor]:
    """Return the inlined tensors whose value is put in a register: tensors read several times, and
    links of long chains.
    """
    uses = Counter(
        tensor_graph.strip_views(element.tensor)
        for tensor in tensors
        for element in tensor_graph.element_reads_in_definition(tensor)
    )
    level: dict[te.Tensor, int] = {}
    registers: set[te.Tensor] = set()
    for tensor in tensors:
        depth = 1 + max((level[s] for s in tensor_graph.source_tensors(tensor)), default=0)
        fresh = uses[tensor] > 1 and tensor_graph.estimated_operations_per_element(tensor) > 0
        if isinstance(tensor, te.Compute) and tensor not in stored and (fresh or depth > _MAX_INLINED_CHAIN_LENGTH):
            registers.add(tensor)
        level[tensor] = depth if isinstance(tensor, (te.Compute, te.View)) and tensor not in registers else 0
    return registers


def plan_storage(outputs: Sequence[te.Tensor], target: Target) -> StoragePlan:
    """Decide, for every tensor that a kernel's outputs need, if it is stored in memory or inlined;
    return the plan.
    """
    order = tensor_graph.tensors_in_topological_order(outputs)
    operands: dict[te.Tensor, list[te.Tensor]] = {}
    for tensor in order:
        if isinstance(tensor, (te.Contraction, te.Winograd, te.Extern)):
            for source in tensor_graph.source_tensors(tensor):
                operands.setdefault(tensor_graph.strip_views(source), []).append(tensor)
    forced, limit = operands.keys() | map(tensor_graph.strip_views, outputs), target.budget.index_nodes
    planner = _StoragePlanner(order, target.store_cost, limit, target.gpu is not None, forced)
    planner.decide_storing_or_inlining_all_tensors()
    reads = {
        t: [TensorRead(s, i, n) for (s, i), n in tensor_reads.items()] for t, tensor_reads in planner.reads.items()
    }
    needs: dict[te.Tensor, list[tuple[te.Tensor, TensorRead]]] = {}
    for tensor, read in ((tensor, read) for tensor, tensor_reads in reads.items() for read in tensor_reads):
        needs.setdefault(read.stage, []).append((tensor, read))
    stored = [t for t in order if t in planner.stored]
    return StoragePlan(order, stored, reads, needs, operands, _inlined_tensors_worth_a_register(order, planner.stored))
