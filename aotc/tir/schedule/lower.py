# SPDX-License-Identifier: Apache-2.0
"""Lower the stages of a fused function to one kernel: assign buffers, then build and simplify the
loop nests.

    kernel = Lowering(name, inputs, outputs, target).kernel()
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aotc.ir.diagnostics import AotcError
from aotc.tir import Buffer, Expr, Target, Var, graph, simplify_stmt, te
from aotc.tir.loops.loop_nest_rewrites import copied, hoist_invariants, optimized
from aotc.tir.loops.vector_access import MOST
from aotc.tir.schedule.algorithms.attention import build_chain, find_chains
from aotc.tir.schedule.algorithms.winograd import build_winograd
from aotc.tir.schedule.contraction import build_contraction, by_warps
from aotc.tir.schedule.stages.inplace_outputs import inplace_pairs
from aotc.tir.schedule.stages.kernel_builder import KernelBuilder
from aotc.tir.schedule.stages.reduction_loops import reduce_nest
from aotc.tir.schedule.stages.scalar_expressions import Slot
from aotc.tir.schedule.stages.split_pooled_axes import divided
from aotc.tir.schedule.stages.stage_grouping import Group, Stage, form_groups, form_stages
from aotc.tir.schedule.stages.storage_plan import plan_storage
from aotc.tir.stmt import Block, Kernel, Stmt, drop_dead, loops, substituted


class Lowering:
    """Schedules one kernel: holds its stages, their groups, and the builder with the buffers that
    all of them use.
    """

    def __init__(
        self, name: str, inputs: Sequence[te.Placeholder], outputs: Sequence[te.Tensor], target: Target
    ) -> None:
        plan = plan_storage(outputs, target)
        if target.shares_sums and (groups := divided(outputs, plan)) != tuple(outputs):
            outputs, plan = groups, plan_storage(groups, target)
        self.name, self.inputs, self.outputs = name, tuple(inputs), tuple(outputs)
        self.builder = KernelBuilder(plan, target)
        self.stages = form_stages(plan)
        self.groups = form_groups(self.stages, plan, target)
        self.chains = find_chains(plan, self.groups, outputs)
        # on a GPU, unaligned arguments are copied before vector loads
        # (aotc.tir.device.parameter_alignment)
        align = MOST if target.gpu is not None else 4
        self.input_buffers = tuple(Buffer(t.name, t.dtype, t.size, align=align) for t in inputs)
        self.output_buffers = tuple(Buffer(t.name, t.dtype, t.size) for t in outputs)
        memory = self.builder.memory
        memory.update({t: Slot(buffer) for t, buffer in zip(inputs, self.input_buffers, strict=True)})
        for tensor in plan.order:
            if isinstance(tensor, te.Placeholder) and tensor not in memory:
                raise AotcError("schedule", f"kernel {name} reads {tensor.name}, which is not among its inputs")
        for output, buffer in zip(outputs, self.output_buffers, strict=True):
            memory.setdefault(graph.base(output), Slot(buffer))
        self._place_scratch()

    def kernel(self) -> Kernel:
        """Return the scheduled kernel."""
        absorbed = {group for chain in self.chains.values() for group in chain.absorbed}
        groups = (self._group(g) for g in self.groups if g not in absorbed)
        body = drop_dead(Block([*groups, *self._copies()]))
        return Kernel(
            name=self.name,
            inputs=self.input_buffers,
            outputs=self.output_buffers,
            body=body,
            workspace=tuple(self.builder.workspace),
            stack=tuple(self.builder.stack),
            shared=tuple(self.builder.shared),
            # strips interleave reads and writes: no group is complete before the next one begins
            inplace=() if self.chains else inplace_pairs(self.builder.plan, self.groups, self.inputs, self.outputs),
            macs=sum(stage.anchor.macs for stage in self.stages),
            approximate=any(isinstance(stage.anchor, te.Winograd) for stage in self.stages),
        )

    def _copies(self) -> list[Stmt]:
        """Return copies to the outputs that equal an input or another output, possibly reshaped."""
        sources = (self.builder.memory[graph.base(output)].buffer for output in self.outputs)
        pairs = zip(sources, self.output_buffers, strict=True)
        return [copied(source, buffer) for source, buffer in pairs if source is not buffer]

    def _place_scratch(self) -> None:
        """Allocate memory for the tensors that one stage computes and another stage reads.

        Tensors used within one group only are allocated per iteration of the group's shared loops.
        """
        plan, memory = self.builder.plan, self.builder.memory
        home = {root: group for group in self.groups for root in group.tensors}
        elsewhere = set().union(*(chain.roots for chain in self.chains.values()))
        for stage in self.stages:
            for root in stage.roots:
                readers = {read.stage for read in plan.reads.get(root, ())}
                kept = any(reader not in stage.roots for reader in readers)
                whole = root in plan.operands or isinstance(root, te.Extern)
                if root in memory or root in elsewhere or not (kept or whole):
                    continue
                local = not whole and all(home[reader] is home[root] for reader in readers)
                skip = home[root].depth if local else 0
                size = math.prod(root.shape[skip:])
                memory[root] = Slot(self.builder.scratch(root.name, root.dtype, size, private=skip > 0), skip)

    def _group(self, group: Group) -> Stmt:
        """Return the loop nest of a group of stages, which share outer loops."""
        if group in self.chains:
            chain = self.chains[group]
            nest = build_chain(self.builder, chain, lambda: self._inside(chain.middle))
            return hoist_invariants(nest)
        if len(group.stages) == 1:
            return self._alone(group.stages[0])
        shared, bodies = group.stages[0].axes[: group.depth], self._inside(group)
        if not bodies:
            return Block(())
        return optimized(loops(shared, Block(bodies), "independent"), self.builder.target.budget)

    def _inside(self, group: Group) -> list[Stmt]:
        """Return the statements of a group's stages in order, inside the loops that all of the
        group's stages share.
        """
        shared = group.stages[0].axes[: group.depth]
        bodies: list[Stmt] = []
        for stage in group.stages:
            if 0 in stage.extents:
                continue
            own: dict[Var, Expr] = {var: outer for (var, _), (outer, _) in zip(stage.axes, shared, strict=False)}
            stmt = self._stage(stage, group.depth)
            bodies.append(stmt if stage is group.stages[0] else substituted(stmt, own))
        return bodies

    def _alone(self, stage: Stage) -> Stmt:
        """Return the loop nest of a stage that shares no loops with other stages."""
        if 0 in stage.extents:
            return Block(())
        stmt = self._stage(stage, 0)
        if isinstance(stage.anchor, (te.Contraction, te.Winograd, te.Extern)):
            # these builders optimize their own loops; simplify what was added to store each element
            return hoist_invariants(simplify_stmt(stmt, {}))
        return optimized(stmt, self.builder.target.budget)

    def _stage(self, stage: Stage, depth: int) -> Stmt:
        """Return the statements of one stage (an anchor tensor with its epilogue) inside its outer
        `depth` loops.
        """
        builder, anchor = self.builder, stage.anchor
        match anchor:
            case te.Reduce():
                return reduce_nest(builder, stage, anchor, depth)
            case te.Contraction() | te.Winograd():
                a, b = (builder.memory[graph.base(t)].buffer for t in (anchor.a, anchor.b))
                store = builder.finisher(stage)
                if isinstance(anchor, te.Winograd):
                    return builder.placed(build_winograd(anchor, a, b, store, builder.target))
                # thread blocks must be the outermost loops of a kernel
                alone = len(self.stages) == 1 and not self._copies()
                nest = by_warps(anchor, a, b, store, builder.target) if alone else None
                return builder.placed(nest or build_contraction(anchor, a, b, store, builder.target))
            case te.Extern():
                return _extern(builder, anchor.group)
            case _:
                return loops(stage.axes[depth:], builder.finish(stage, None), "independent")


def _extern(builder: KernelBuilder, group: te.ExternGroup) -> Stmt:
    """Return the statements of an extern group: a tensor program that an operator supplies for the
    target.
    """
    memory = builder.memory
    for output in group.outputs:
        if output not in memory:  # unused output, which the program writes nevertheless
            memory[output] = Slot(builder.scratch(output.name, output.dtype, output.size))
    inputs = [memory[graph.base(t)].buffer for t in group.inputs]
    outputs = [memory[t].buffer for t in group.outputs]
    program = group.program(builder.target)
    scratch = [
        builder.scratch(f"{group.name}_tmp{k}", s.dtype, s.elements, private=s.private, scope=s.scope)
        for k, s in enumerate(program.scratch)
    ]
    return program.build(inputs, outputs, scratch)
