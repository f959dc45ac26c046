# SPDX-License-Identifier: Apache-2.0
"""A kernel that is being built: where its tensors lie, the scratch it needs, and how elements are finished.

builder = KernelBuilder(plan, target)
row = builder.scratch("row", "float32", 64)         # a buffer of the kernel, on the stack while there is room
builder.finish(stage, acc)                          # statements: bias, ReLU ... of one element, and its store
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TypeAlias

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Declare, Expr, Stmt, Store, Target, Var, graph, substituted, te
from aotc.tir.loops.vector_access import MOST
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.stages.scalar_expressions import Body, Slot
from aotc.tir.schedule.stages.stage_grouping import Stage
from aotc.tir.schedule.stages.storage_plan import Plan

Indices: TypeAlias = "tuple[Expr, ...]"


@frozen(eq=False)
class KernelBuilder:
    """What the stages of a kernel have in common; `memory` and scratch grow while they are built."""

    plan: Plan
    target: Target
    memory: dict[te.Tensor, Slot] = field(default_factory=dict)
    stack: list[Buffer] = field(default_factory=list)
    workspace: list[Buffer] = field(default_factory=list)
    shared: list[Buffer] = field(default_factory=list)

    def scratch(
        self, name: str, dtype: str, size: int, *, private: bool = False, shared: bool = False, scope: str = ""
    ) -> Buffer:
        """A temporary buffer: on the stack while there is room, if threads do not share it; else in the workspace.

        scope   where it is, for kernels of blocks and threads: each thread has a "stack", each block what is "shared"
        """
        dt = DType(dtype)
        if scope:
            places = {"stack": self.stack, "shared": self.shared, "workspace": self.workspace}[scope]
            places.append(Buffer(name, dt, size, scope, MOST))
            return places[-1]
        needed = sum(b.nbytes for b in self.stack) + size * dt.itemsize
        fits = needed <= self.target.budget.stack_bytes
        place, found = ("stack", self.stack) if fits and not shared else ("workspace", self.workspace)
        found.append(Buffer(name, dt, size, place, private=private))
        return found[-1]

    def placed(self, nest: ContractionNest) -> Stmt:
        """The statement of a nest, its scratch being the kernel's."""
        self.stack.extend(nest.stack)
        self.workspace.extend(nest.workspace)
        self.shared.extend(nest.shared)
        return nest.stmt

    def body(self, stage: Stage) -> Body:
        """An empty body at the place of a stage's elements."""
        return Body(self.plan, self.memory, graph.axis_ranges(graph.domain(stage.anchor)))

    def finish(self, stage: Stage, value: Expr | None) -> Stmt:
        """Compute and store the roots at the element that the stage's axes name; `value` is the anchor's."""
        body = self.body(stage)
        own = [var for var, _ in stage.axes]
        for root in stage.roots:
            indices = graph.reindex(stage.anchor, own, root, body.ranges)
            result = value
            if result is None or root is not stage.anchor:
                if not isinstance(root, te.Compute):
                    raise AssertionError(f"{root.name} cannot follow {stage.anchor.name}")
                result = body.computed(root, indices)
            if root is not stage.roots[-1]:
                result = body.keep(root, result)
            if root in self.memory:
                slot = self.memory[root]
                body.statements.append(Store(slot.buffer, slot.offset(root, indices), result))
        return Block(body.statements)

    def finisher(self, stage: Stage, place: Callable[[Indices], Indices] = lambda indices: indices) -> StoreFn:
        """What stores a contraction's elements; `place` gives their indices for those of a nest."""
        anchor = stage.anchor

        def store(indices: Indices, value: Expr) -> Stmt:
            mapping = graph.bind(stage.axes, place(indices))
            if isinstance(value, Var) and value not in mapping:
                return substituted(self.finish(stage, value), mapping)
            # the value may use the axes as loop variables of its own
            register = Var(anchor.name, anchor.dtype)
            return Block((Declare(register, value), substituted(self.finish(stage, register), mapping)))

        return store
