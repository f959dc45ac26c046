# SPDX-License-Identifier: Apache-2.0
"""From stages to one kernel: buffers are assigned, loop nests built and simplified.

kernel = Lowering(name, inputs, outputs, target).kernel()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir import graph, te
from aotc.tir.expr import Buffer, Expr, Load, Var, substitute
from aotc.tir.loops.nest import hoist_invariants, polished
from aotc.tir.schedule.algorithms.attention import build_chain, find_chains
from aotc.tir.schedule.algorithms.winograd import build_winograd
from aotc.tir.schedule.contraction import build_contraction
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.stages.body import Body, Slot
from aotc.tir.schedule.stages.grouping import Group, Stage, form_groups, form_stages
from aotc.tir.schedule.stages.inline import plan_storage
from aotc.tir.schedule.stages.inplace import inplace_pairs
from aotc.tir.schedule.stages.reduce import reduce_nest
from aotc.tir.simplify import drop_dead, simplify_stmt
from aotc.tir.stmt import Block, Declare, Kernel, Stmt, Store, loops, map_exprs
from aotc.tir.target import Target

Indices: TypeAlias = tuple[Expr, ...]

STACK_BYTES: Final = 4096
"""How much of a kernel's scratch may lie on the stack."""


class Lowering:
    """The state of scheduling one kernel."""

    def __init__(
        self, name: str, inputs: Sequence[te.Placeholder], outputs: Sequence[te.Tensor], target: Target
    ) -> None:
        self.name = name
        self.target = target
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.plan = plan_storage(outputs)
        self.stages = form_stages(self.plan)
        self.groups = form_groups(self.stages, self.plan)
        self.chains = find_chains(self.plan, self.groups, outputs)
        self.absorbed = {group for chain in self.chains.values() for group in chain.absorbed}
        self.stack: list[Buffer] = []
        self.workspace: list[Buffer] = []
        self.memory: dict[te.Tensor, Slot] = {}
        self.input_buffers = tuple(Buffer(t.name, t.dtype, t.size) for t in inputs)
        self.output_buffers = tuple(Buffer(t.name, t.dtype, t.size) for t in outputs)
        for tensor, buffer in zip(inputs, self.input_buffers, strict=True):
            self.memory[tensor] = Slot(buffer)
        self._place_outputs()
        self._place_scratch()

    def kernel(self) -> Kernel:
        """The finished kernel."""
        groups = (self._group(g) for g in self.groups if g not in self.absorbed)
        body = drop_dead(Block([*groups, *self._copies()]))
        macs = sum(_macs(stage.anchor) for stage in self.stages)
        return Kernel(
            name=self.name,
            inputs=self.input_buffers,
            outputs=self.output_buffers,
            body=body,
            workspace=tuple(self.workspace),
            stack=tuple(self.stack),
            # strips read and write by turns: no group is over before the next one begins
            inplace=() if self.chains else inplace_pairs(self.plan, self.groups, self.inputs, self.outputs),
            macs=macs,
            approximate=any(isinstance(stage.anchor, te.Winograd) for stage in self.stages),
        )

    def _place_outputs(self) -> None:
        for tensor in self.plan.order:
            if isinstance(tensor, te.Placeholder) and tensor not in self.memory:
                raise AotcError("schedule", f"kernel {self.name} reads {tensor.name}, which is not among its inputs")
        for output, buffer in zip(self.outputs, self.output_buffers, strict=True):
            self.memory.setdefault(graph.base(output), Slot(buffer))

    def _copies(self) -> list[Stmt]:
        """Outputs that are an input or another output, perhaps under another shape."""
        copies: list[Stmt] = []
        for output, buffer in zip(self.outputs, self.output_buffers, strict=True):
            source = self.memory[graph.base(output)].buffer
            if source is not buffer:
                i = Var("i")
                copies.append(loops([(i, buffer.size)], Store(buffer, i, Load(source, i)), kind="independent"))
        return copies

    def _place_scratch(self) -> None:
        home = {root: group for group in self.groups for stage in group.stages for root in stage.roots}
        stage_of = {root: stage for stage in self.stages for root in stage.roots}
        elsewhere = {root for chain in self.chains.values() for root in chain.roots}
        for stage in self.stages:
            for root in stage.roots:
                readers = {read.stage for read in self.plan.reads.get(root, ())}
                kept = any(stage_of[reader] is not stage for reader in readers)
                whole = root in self.plan.operands or isinstance(root, te.Extern)
                if root in self.memory or root in elsewhere or not (kept or whole):
                    continue
                local = not whole and all(home[reader] is home[root] for reader in readers)
                skip = home[root].depth if local else 0
                size = math.prod(root.shape[skip:])
                self.memory[root] = Slot(self.scratch(root.name, root.dtype, size, private=skip > 0), skip)

    def scratch(self, name: str, dtype: str, size: int, *, private: bool = False) -> Buffer:
        """A temporary buffer: on the stack as long as there is room, else in the workspace."""
        used = sum(b.nbytes for b in self.stack)
        dt = DType(dtype)
        if used + size * dt.itemsize <= STACK_BYTES:
            self.stack.append(Buffer(name, dt, size, "stack", private=private))
            return self.stack[-1]
        self.workspace.append(Buffer(name, dt, size, "workspace", private=private))
        return self.workspace[-1]

    def shared(self, name: str, dtype: str, size: int) -> Buffer:
        """A temporary buffer that participants hand to each other."""
        self.workspace.append(Buffer(name, DType(dtype), size, "workspace"))
        return self.workspace[-1]

    def _group(self, group: Group) -> Stmt:
        if group in self.chains:
            return hoist_invariants(build_chain(self, self.chains[group]))
        if len(group.stages) == 1:
            return self._alone(group.stages[0])
        bodies = self.inside(group)
        return (
            polished(loops(group.stages[0].axes[: group.depth], Block(bodies), kind="independent"))
            if bodies
            else Block(())
        )

    def inside(self, group: Group) -> list[Stmt]:
        """The stages of a group, one after the other, inside the loops that they share: those of the first."""
        shared = group.stages[0].axes[: group.depth]
        bodies: list[Stmt] = []
        for stage in group.stages:
            if any(extent == 0 for extent in stage.extents):
                continue
            own = {var: outer for (var, _), (outer, _) in zip(stage.axes, shared, strict=False)}
            stmt = self._stage(stage, group.depth)
            bodies.append(stmt if stage is group.stages[0] else _substituted(stmt, dict(own)))
        return bodies

    def _alone(self, stage: Stage) -> Stmt:
        if any(extent == 0 for extent in stage.extents):
            return Block(())
        stmt = self._stage(stage, 0)
        if isinstance(stage.anchor, (te.Contraction, te.Winograd, te.Extern)):
            # these builders make their own loops; what is stored with each element is ours
            return hoist_invariants(simplify_stmt(stmt, {}))
        return polished(stmt)

    def _stage(self, stage: Stage, depth: int) -> Stmt:
        """The statement of a stage inside its outer `depth` loops."""
        match stage.anchor:
            case te.Reduce():
                return reduce_nest(self, stage, depth)
            case te.Contraction() | te.Winograd():
                return self._contraction(stage, stage.anchor)
            case te.Extern():
                return self._extern(stage.anchor.group)
            case _:
                return loops(stage.axes[depth:], self.finish(stage, None), kind="independent")

    def _contraction(self, stage: Stage, c: te.Contraction | te.Winograd) -> Stmt:
        store = self.finisher(stage)
        a, b = (self.memory[graph.base(t)].buffer for t in (c.a, c.b))
        if isinstance(c, te.Winograd):
            return self.placed(build_winograd(c, a, b, store, self.target))
        return self.placed(build_contraction(c, a, b, store, self.target))

    def placed(self, nest: ContractionNest) -> Stmt:
        """The statement of a nest, its scratch being the kernel's."""
        self.stack.extend(nest.stack)
        self.workspace.extend(nest.workspace)
        return nest.stmt

    def finisher(self, stage: Stage, place: Callable[[Indices], Indices] = lambda indices: indices) -> StoreFn:
        """What stores the elements of a contraction's stage; `place` gives an element's indices for those of a nest."""
        anchor = stage.anchor

        def store(indices: Indices, value: Expr) -> Stmt:
            mapping = {var: index for (var, _), index in zip(stage.axes, place(indices), strict=True)}
            if isinstance(value, Var) and value not in mapping:
                return _substituted(self.finish(stage, value), mapping)
            register = Var(anchor.name, anchor.dtype)  # the value may use the axes as loop variables of its own
            return Block((Declare(register, value), _substituted(self.finish(stage, register), mapping)))

        return store

    def _extern(self, group: te.ExternGroup) -> Stmt:
        for output in group.outputs:
            if output not in self.memory:  # nobody wants it, but the program writes it
                self.memory[output] = Slot(self.scratch(output.name, output.dtype, output.size))
        inputs = [self.memory[graph.base(t)].buffer for t in group.inputs]
        outputs = [self.memory[t].buffer for t in group.outputs]
        program = group.program(self.target)
        scratch = [
            self.scratch(f"{group.name}_tmp{k}", s.dtype, s.elements, private=s.private)
            for k, s in enumerate(program.scratch)
        ]
        return program.build(inputs, outputs, scratch)

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


def _substituted(stmt: Stmt, mapping: dict[Var, Expr]) -> Stmt:
    return map_exprs(stmt, lambda expr: substitute(expr, mapping))


def _macs(tensor: te.Tensor) -> int:
    match tensor:
        case te.Contraction() | te.Winograd():
            return tensor.macs
        case te.Extern():
            return tensor.group.macs
        case _:
            return 0
