# SPDX-License-Identifier: Apache-2.0
"""A kernel under construction: the buffers of its tensors, its scratch memory, and the epilogues of
its stages.

    builder = KernelBuilder(plan, target) row = builder.allocate_scratch("row", "float32", 64)  # a
    buffer of the kernel, on the stack while there is room
    builder.stmts_storing_element_of_stage_tensors(stage, acc)  # statements: bias, ReLU ... of one
    element, and its store
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TypeAlias

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Declare, Expr, Stmt, Store, Target, Var, substitute_in_stmt, te, tensor_graph
from aotc.tir.loops.gpu_vector_access_predicate import MAX_ACCESS_BYTES
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest, StoreFn
from aotc.tir.schedule.stages.stage_grouping import ComputeStage
from aotc.tir.schedule.stages.store_or_inline_tensors import StoragePlan
from aotc.tir.schedule.stages.tensor_element_lowering import ElementLowering, TensorLocation
from aotc.tir.simplify import Interval
from aotc.tir.stmt import Number

Indices: TypeAlias = "tuple[Expr, ...]"


@frozen(eq=False)
class KernelBuilder:
    """Common state of the stages of a kernel; `memory` and the scratch lists grow as stages are
    built.

    plan, target               storage plan and target
    numbers                    scalar parameters of the kernel: the sizes that are known at run time only
    memory                     the buffer of each tensor in memory
    stack, workspace, shared   scratch buffers on the stack, in the workspace, and in GPU shared
                               memory
    """

    plan: StoragePlan
    target: Target
    numbers: tuple[Number, ...] = ()
    memory: dict[te.Tensor, TensorLocation] = field(default_factory=dict)
    stack: list[Buffer] = field(default_factory=list)
    workspace: list[Buffer] = field(default_factory=list)
    shared: list[Buffer] = field(default_factory=list)

    @property
    def ranges_of_numbers(self) -> dict[Var, Interval]:
        """The interval of each number of the kernel."""
        return {number.var: number.interval for number in self.numbers}

    def allocate_scratch(
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
            places.append(Buffer(name, dt, size, scope, MAX_ACCESS_BYTES))
            return places[-1]
        needed = sum(b.nbytes for b in self.stack) + size * dt.itemsize
        fits = needed <= self.target.budget.stack_bytes
        place, buffers = ("stack", self.stack) if fits and not shared else ("workspace", self.workspace)
        buffers.append(Buffer(name, dt, size, place, private=private))
        return buffers[-1]

    def add_buffers_of_nest_and_return_stmt(self, nest: ContractionNest) -> Stmt:
        """Return the statement of a contraction's loop nest, and add its scratch buffers to the
        kernel.
        """
        self.stack.extend(nest.stack)
        self.workspace.extend(nest.workspace)
        self.shared.extend(nest.shared)
        return nest.stmt

    def new_element_lowering_for_stage(self, stage: ComputeStage) -> ElementLowering:
        """Return an empty `ElementLowering`, which lowers expressions, for the elements of a stage."""
        axes = tensor_graph.output_and_reduction_axes(stage.anchor)
        ranges = {**self.ranges_of_numbers, **tensor_graph.inclusive_ranges_of_axes(axes)}
        return ElementLowering(self.plan, self.memory, ranges, dict(axes))

    def stmts_storing_element_of_stage_tensors(self, stage: ComputeStage, anchor_value: Expr | None) -> Stmt:
        """Return the statements that compute and store one element of all tensors of a stage, given
        the anchor's `anchor_value`.
        """
        body = self.new_element_lowering_for_stage(stage)
        axis_vars = [var for var, _ in stage.anchor_axes]
        for root in stage.roots:
            indices = tensor_graph.indices_in_reshaped_tensor(stage.anchor, axis_vars, root, body.ranges)
            result = anchor_value
            if result is None or root is not stage.anchor:
                if not isinstance(root, te.Compute):
                    raise AssertionError(f"{root.name} cannot follow {stage.anchor.name}")
                result = body.lower_definition_of_element(root, indices)
            if root is not stage.roots[-1]:
                result = body.bind_known_value_of_current_element(root, result)
            if root in self.memory:
                slot = self.memory[root]
                body.needed_register_declarations.append(
                    Store(slot.buffer, slot.element_address(root, indices), result)
                )
        return Block(body.needed_register_declarations)

    def function_finishing_and_storing_element(
        self, stage: ComputeStage, map_indices: Callable[[Indices], Indices] = lambda indices: indices
    ) -> StoreFn:
        """Return the function that finishes and stores an element of a stage's contraction.

        `map_indices` maps the indices that a loop nest uses to indices of the contraction.
        """
        anchor = stage.anchor

        def finish_and_store_element(indices: Indices, value: Expr) -> Stmt:
            mapping = tensor_graph.substitution_for_axes(stage.anchor_axes, map_indices(indices))
            if isinstance(value, Var) and value not in mapping:
                return substitute_in_stmt(self.stmts_storing_element_of_stage_tensors(stage, value), mapping)
            # the value may use the axes as loop variables of its own
            register = Var(anchor.name, anchor.dtype)
            return Block(
                (
                    Declare(register, value),
                    substitute_in_stmt(self.stmts_storing_element_of_stage_tensors(stage, register), mapping),
                )
            )

        return finish_and_store_element
