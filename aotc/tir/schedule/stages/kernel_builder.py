# SPDX-License-Identifier: Apache-2.0
"""A kernel under construction: the buffers of its tensors, its scratch memory, and the epilogues of
its stages.

    builder = KernelBuilder(plan, target)
    row = builder.scratch("row", "float32", 64)  # a buffer of the kernel, on the stack while there is room
    builder.finish(stage, acc)  # statements: bias, ReLU ... of one element, and its store
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
    """Common state of the stages of a kernel; `memory` and the scratch lists grow as stages are
    built.

    plan, target               storage plan and target
    memory                     the buffer of each tensor in memory
    stack, workspace, shared   scratch buffers on the stack, in the workspace, and in GPU shared
                               memory
    """

    plan: Plan
    target: Target
    memory: dict[te.Tensor, Slot] = field(default_factory=dict)
    stack: list[Buffer] = field(default_factory=list)
    workspace: list[Buffer] = field(default_factory=list)
    shared: list[Buffer] = field(default_factory=list)

    def scratch(
        self, name: str, dtype: str, size: int, *, private: bool = False, shared: bool = False, scope: str = ""
    ) -> Buffer:
        """Return a new scratch buffer: on the stack while there is room and threads do not share
        it; else in the workspace.

        private   each thread needs a copy of its own
        shared    threads pass values to each other in it
        scope     explicit location, for GPU kernels: "stack" (per thread), "shared" (per block) or
                  "workspace"
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
        """Return the statement of a contraction's loop nest, and add its scratch buffers to the
        kernel.
        """
        self.stack.extend(nest.stack)
        self.workspace.extend(nest.workspace)
        self.shared.extend(nest.shared)
        return nest.stmt

    def body(self, stage: Stage) -> Body:
        """Return an empty `Body`, which lowers expressions, for the elements of a stage."""
        return Body(self.plan, self.memory, graph.axis_ranges(graph.domain(stage.anchor)))

    def finish(self, stage: Stage, value: Expr | None) -> Stmt:
        """Return the statements that compute and store one element of all tensors of a stage, given
        the anchor's `value`.
        """
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
        """Return the function that finishes and stores an element of a stage's contraction.

        `place` maps the indices that a loop nest uses to indices of the contraction.
        """
        anchor = stage.anchor

        def store(indices: Indices, value: Expr) -> Stmt:
            mapping = graph.bind(stage.axes, place(indices))
            if isinstance(value, Var) and value not in mapping:
                return substituted(self.finish(stage, value), mapping)
            # the value may use the axes as loop variables of its own
            register = Var(anchor.name, anchor.dtype)
            return Block((Declare(register, value), substituted(self.finish(stage, register), mapping)))

        return store
