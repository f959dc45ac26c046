# SPDX-License-Identifier: Apache-2.0
"""Lower the stages of a fused function to one kernel: assign buffers, then build and simplify the
loop nests.

    kernel = Lowering(name, inputs, outputs, target).build_kernel()
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir import AotcError, SymDim, is_static, largest_number_of_elements, sum_of_dims
from aotc.tir import Buffer, Expr, Target, Var, simplify_stmt, te, tensor_graph
from aotc.tir.loops.gpu_vector_access_predicate import MAX_ACCESS_BYTES
from aotc.tir.loops.loop_dependence import read_buffers, remove_unread_stores, written_buffers
from aotc.tir.loops.loop_nest_rewrites import copy_buffer_loop, hoist_costly_loop_invariants, optimize_loop_nests
from aotc.tir.schedule.algorithms.attention import build_attention_loop_nest, has_tiles_for_products
from aotc.tir.schedule.algorithms.attention_chain import find_attention_chains
from aotc.tir.schedule.algorithms.winograd import build_winograd
from aotc.tir.schedule.algorithms.winograd_channels_last import build_winograd_channels_last
from aotc.tir.schedule.contraction import build_contraction_nest, build_contraction_nest_of_run_time_extents
from aotc.tir.schedule.contraction.untiled_contraction import contraction_as_reduction
from aotc.tir.schedule.stages.inplace_outputs import output_input_pairs_that_may_share_memory
from aotc.tir.schedule.stages.kernel_builder import KernelBuilder
from aotc.tir.schedule.stages.reduction_loops import build_reduction_nest
from aotc.tir.schedule.stages.split_axis_by_reduction_group import split_outputs_axis_by_reduction_groups
from aotc.tir.schedule.stages.stage_grouping import (
    ComputeStage,
    StageGroup,
    form_compute_stages,
    group_stages_with_shared_loops,
)
from aotc.tir.schedule.stages.store_or_inline_tensors import plan_storage
from aotc.tir.schedule.stages.tensor_element_lowering import TensorLocation
from aotc.tir.stmt import (
    Block,
    Kernel,
    Number,
    Stmt,
    all_exprs_in_stmt,
    loop_nest,
    remove_dead_registers,
    substitute_in_stmt,
)


class Lowering:
    """Schedules one kernel: holds its stages, their groups, and the builder with the buffers that
    all of them use.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[te.Placeholder],
        outputs: Sequence[te.Tensor],
        target: Target,
        numbers: Sequence[Number] = (),
    ) -> None:
        plan = plan_storage(outputs, target)
        if target.gpu is not None and not plan.is_static:
            text = f"kernel {name} has sizes that are known at run time only, which kernels of GPUs cannot have"
            raise AotcError("target", text)
        if target.can_split_reduction_in_thread_block and (
            groups := split_outputs_axis_by_reduction_groups(outputs, plan)
        ) != tuple(outputs):
            outputs, plan = groups, plan_storage(groups, target)
        self.name, self.inputs, self.outputs = name, tuple(inputs), tuple(outputs)
        self.builder = KernelBuilder(plan, target, tuple(numbers))
        self.stages = form_compute_stages(plan)
        self.groups = group_stages_with_shared_loops(self.stages, plan, target)
        chains = find_attention_chains(plan, self.groups, outputs)
        self.chains = {g: c for g, c in chains.items() if plan.is_static or has_tiles_for_products(c, target)}
        # on a GPU, unaligned arguments are copied before vector loads
        # (aotc.tir.device.parameter_alignment)
        align = MAX_ACCESS_BYTES if target.gpu is not None else 4
        self.input_buffers = tuple(Buffer(t.name, t.dtype, t.capacity, align=align) for t in inputs)
        self.output_buffers = tuple(Buffer(t.name, t.dtype, t.capacity) for t in outputs)
        memory = self.builder.memory
        memory.update({t: TensorLocation(buffer) for t, buffer in zip(inputs, self.input_buffers, strict=True)})
        for tensor in plan.order:
            if isinstance(tensor, te.Placeholder) and tensor not in memory:
                raise AotcError("schedule", f"kernel {name} reads {tensor.name}, which is not among its inputs")
        for output, buffer in zip(outputs, self.output_buffers, strict=True):
            memory.setdefault(tensor_graph.strip_views(output), TensorLocation(buffer))
        self._allocate_scratch_between_stages()

    def build_kernel(self) -> Kernel:
        """Return the scheduled kernel."""
        absorbed = {group for chain in self.chains.values() for group in chain.absorbed}
        groups = (self._loop_nest_of_group(g) for g in self.groups if g not in absorbed)
        scratch = {*self.builder.workspace, *self.builder.stack}
        body = remove_unread_stores(Block([*groups, *self._copy_loops_for_duplicate_outputs()]), scratch)
        body = remove_dead_registers(body)
        used = {*read_buffers(body), *written_buffers(body)}
        macs = sum_of_dims(stage.anchor.macs_of_run for stage in self.stages)
        return Kernel(
            name=self.name,
            inputs=self.input_buffers,
            outputs=self.output_buffers,
            body=body,
            workspace=tuple(b for b in self.builder.workspace if b in used),
            stack=tuple(b for b in self.builder.stack if b in used),
            shared=tuple(self.builder.shared),
            # strips interleave reads and writes: no group is complete before the next one begins
            inplace=()
            if self.chains
            else output_input_pairs_that_may_share_memory(self.builder.plan, self.groups, self.inputs, self.outputs),
            macs=sum(stage.anchor.macs for stage in self.stages),
            macs_formula=macs.name if isinstance(macs, SymDim) else "",
            approximate=any(isinstance(stage.anchor, te.Winograd) for stage in self.stages),
            numbers=self._numbers_in_use(body),
        )

    def _numbers_in_use(self, body: Stmt) -> tuple[Number, ...]:
        """Return the numbers that occur in the body of the kernel."""
        if not self.builder.numbers:
            return ()
        used = {node for node in all_exprs_in_stmt(body) if isinstance(node, Var)}
        return tuple(number for number in self.builder.numbers if number.var in used)

    def _copy_loops_for_duplicate_outputs(self) -> list[Stmt]:
        """Return copies to the outputs that equal an input or another output, possibly reshaped."""
        sources = (self.builder.memory[tensor_graph.strip_views(output)].buffer for output in self.outputs)
        copies = zip(sources, self.output_buffers, self.outputs, strict=True)
        return [
            copy_buffer_loop(source, buffer, output.live_size)
            for source, buffer, output in copies
            if source is not buffer
        ]

    def _allocate_scratch_between_stages(self) -> None:
        """Allocate memory for the tensors that one stage computes and another stage reads.

        Tensors used within one group only are allocated per iteration of the group's shared loops.
        """
        plan, memory = self.builder.plan, self.builder.memory
        home = {root: group for group in self.groups for root in group.tensors}
        elsewhere = set().union(*(chain.tensors_held_in_strips for chain in self.chains.values()))
        for stage in self.stages:
            for root in stage.roots:
                readers = {read.stage for read in plan.reads.get(root, ())}
                is_read_elsewhere = any(reader not in stage.roots for reader in readers)
                whole = root in plan.operands or isinstance(root, te.Extern)
                if root in memory or root in elsewhere or not (is_read_elsewhere or whole):
                    continue
                local = not whole and all(home[reader] is home[root] for reader in readers)
                skip = home[root].depth if local else 0
                size = largest_number_of_elements(root.shape[skip:])
                memory[root] = TensorLocation(
                    self.builder.allocate_scratch(root.name, root.dtype, size, private=skip > 0), skip
                )

    def _loop_nest_of_group(self, group: StageGroup) -> Stmt:
        """Return the loop nest of a group of stages, which share outer loops."""
        if group in self.chains:
            chain = self.chains[group]
            nest = build_attention_loop_nest(self.builder, chain, lambda: self._stmts_inside_shared_loops(chain.middle))
            return hoist_costly_loop_invariants(nest)
        if len(group.stages) == 1:
            return self._loop_nest_of_single_stage(group.stages[0])
        shared, bodies = group.stages[0].anchor_axes[: group.depth], self._stmts_inside_shared_loops(group)
        if not bodies:
            return Block(())
        return optimize_loop_nests(loop_nest(shared, Block(bodies), "independent"), self.builder.target.budget)

    def _stmts_inside_shared_loops(self, group: StageGroup) -> list[Stmt]:
        """Return the statements of a group's stages in order, inside the loops that all of the
        group's stages share.
        """
        shared = group.stages[0].anchor_axes[: group.depth]
        bodies: list[Stmt] = []
        for stage in group.stages:
            if 0 in stage.anchor_extents:
                continue
            shared_vars: dict[Var, Expr] = {
                var: outer for (var, _), (outer, _) in zip(stage.anchor_axes, shared, strict=False)
            }
            stmt = self._stmts_of_stage(stage, group.depth)
            bodies.append(stmt if stage is group.stages[0] else substitute_in_stmt(stmt, shared_vars))
        return bodies

    def _loop_nest_of_single_stage(self, stage: ComputeStage) -> Stmt:
        """Return the loop nest of a stage that shares no loops with other stages."""
        if 0 in stage.anchor_extents:
            return Block(())
        nest = self._contraction_nest_of_run_time_extents(stage)
        stmt = self._stmts_of_stage(stage, 0) if nest is None else nest
        builds_loops = isinstance(stage.anchor, (te.Contraction, te.Winograd, te.Extern))
        if nest is not None or (builds_loops and _has_known_extents(stage.anchor)) or _has_channels_last(stage.anchor):
            # these builders optimize their own loops; simplify what was added to store each element
            return hoist_costly_loop_invariants(simplify_stmt(stmt, {}))
        return optimize_loop_nests(stmt, self.builder.target.budget)

    def _contraction_nest_of_run_time_extents(self, stage: ComputeStage) -> Stmt | None:
        """Return the loop nest in tiles of a stage whose anchor is a contraction with extents that are known
        at run time only; None for another stage, and if no tiling fits.
        """
        anchor, builder = stage.anchor, self.builder
        if not isinstance(anchor, te.Contraction) or _has_known_extents(anchor):
            return None
        a, b = (builder.memory[tensor_graph.strip_views(t)].buffer for t in (anchor.a, anchor.b))
        store = builder.function_finishing_and_storing_element(stage)
        nest = build_contraction_nest_of_run_time_extents(anchor, a, b, store, builder.target, builder.numbers)
        return None if nest is None else builder.add_buffers_of_nest_and_return_stmt(nest)

    def _stmts_of_stage(self, stage: ComputeStage, outer_loop_count: int) -> Stmt:
        """Return the statements of one stage (an anchor tensor with its epilogue) inside its outer
        `outer_loop_count` loops.
        """
        builder, anchor = self.builder, stage.anchor
        match anchor:
            case te.Reduce():
                return build_reduction_nest(builder, stage, anchor, outer_loop_count)
            case te.Contraction() if not _has_known_extents(anchor):
                return build_reduction_nest(builder, stage, contraction_as_reduction(anchor), outer_loop_count)
            case te.Contraction() | te.Winograd():
                a, b = (builder.memory[tensor_graph.strip_views(t)].buffer for t in (anchor.a, anchor.b))
                store = builder.function_finishing_and_storing_element(stage)
                if isinstance(anchor, te.Winograd):
                    build = build_winograd_channels_last if anchor.channels_last else build_winograd
                    return builder.add_buffers_of_nest_and_return_stmt(build(anchor, a, b, store, builder.target))
                # thread blocks must be the outermost loops of a kernel
                alone = len(self.stages) == 1 and not self._copy_loops_for_duplicate_outputs()
                nest = build_contraction_nest(anchor, a, b, store, builder.target, is_whole_kernel=alone)
                return builder.add_buffers_of_nest_and_return_stmt(nest)
            case te.Extern():
                return _stmts_of_extern_group(builder, anchor.group)
            case _:
                return loop_nest(
                    stage.anchor_axes[outer_loop_count:],
                    builder.stmts_storing_element_of_stage_tensors(stage, None),
                    "independent",
                )


def _has_channels_last(anchor: te.Tensor) -> bool:
    """Return True if the anchor of a stage is a Winograd convolution with the channels last."""
    return isinstance(anchor, te.Winograd) and anchor.channels_last


def _has_known_extents(anchor: te.Tensor) -> bool:
    """Return True if the extents of all loops and operands of a stage's anchor are known."""
    axes = tensor_graph.output_and_reduction_axes(anchor)
    sources = tensor_graph.source_tensors(anchor)
    return is_static([extent for _, extent in axes]) and all(t.is_static for t in (anchor, *sources))


def _stmts_of_extern_group(builder: KernelBuilder, group: te.ExternGroup) -> Stmt:
    """Return the statements of an extern group: a tensor program that an operator supplies for the
    target.
    """
    memory = builder.memory
    for output in group.outputs:
        if output not in memory:  # unused output, which the program writes nevertheless
            memory[output] = TensorLocation(builder.allocate_scratch(output.name, output.dtype, output.capacity))
    inputs = [memory[tensor_graph.strip_views(t)].buffer for t in group.inputs]
    outputs = [memory[t].buffer for t in group.outputs]
    program = group.program(builder.target)
    scratch = [
        builder.allocate_scratch(f"{group.name}_tmp{k}", s.dtype, s.elements, private=s.private, scope=s.scope)
        for k, s in enumerate(program.scratch)
    ]
    return program.build(inputs, outputs, scratch)
