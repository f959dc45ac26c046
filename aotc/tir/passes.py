# SPDX-License-Identifier: Apache-2.0
"""Tensor passes: passes over programs of kernels, run in the order of `TENSOR_PIPELINE` and visible
to instruments.

with PassContext(instruments=[ProgramVerifier()]):
    # no copies; memory planned, kernels divided among threads
    program = run_tensor_passes(eliminate_copies_pass(program, target), target)

In: the program that lowering returns.  Out: the program that code generation prints.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice, product
from typing import Any, ClassVar, Final, TypeAlias

from aotc.ir import AotcError, DType, Pass, PassContext, PassInfo, PassInstrument, Sequential, SymDim, report_progress
from aotc.ir.dimension_formulas import formula_of_name
from aotc.ir.parallel_memo import memoize_in_parallel
from aotc.tir import Branch, C, Define, Kernel, Leave, Loop, Program, ProgramNode, Step, Storage, Target
from aotc.tir.device.lower_to_launches import copy_launches, lower_program_to_gpu_launches
from aotc.tir.expr import INDEX, Const
from aotc.tir.functions.fma_contraction import contract_kernel_to_fma
from aotc.tir.kernel_verifier import are_loops_proven_for, verify
from aotc.tir.loops.loop_vectorization import vectorize_kernel
from aotc.tir.plan.carried_values import carry_values_in_place
from aotc.tir.plan.copy_elimination import eliminate_copies
from aotc.tir.plan.loop_fusion import fuse_loops_while_peak_falls
from aotc.tir.plan.memory_plan import (
    check_memory_plan,
    place_inputs_and_outputs_in_arena,
    plan_memory,
    shareable_bytes_of_output_input_pairs,
    write_outputs_over_dying_inputs,
)
from aotc.tir.plan.pack_int4 import pack_constants_as_int4
from aotc.tir.plan.state_placement import place_state
from aotc.tir.plan.step_order import least_peak_bytes, reorder_steps_for_least_peak
from aotc.tir.threads.parallel_kernels import parallelize_program

#: Numbers of sizes for which the verifier evaluates formulas that it cannot prove.
_MAX_SIZES_AT_ENDS: Final = 64
_RANDOM_SIZES: Final = 64


class ProgramPass(Pass[Any]):
    """A pass from a Program to a Program.  A subclass gives `name` and `run`."""

    level: ClassVar[str] = "tensor"
    kind: ClassVar[str] = "Program"

    def accepts_module(self, module: Any) -> bool:
        return isinstance(module, Program)

    def comparable_module_state(self, module: Any) -> object:
        parts = (module, module.plan, *module.steps, *module.distinct_kernels)
        return [getattr(part, f.name) for part in parts for f in fields(part)], dict(module.plan.offsets)


class TakeViews(ProgramPass):
    """Eliminate copies: kernels read parts of tensors in place and write directly to the caller's
    outputs.
    """

    def run(self, module: Program, ctx: PassContext) -> Program:
        return eliminate_copies(module)


@dataclass(frozen=True, repr=False)
class LaunchOnDevice(ProgramPass):
    """Turn kernels into GPU kernels of blocks and threads, or into several where all blocks must
    wait.
    """

    target: Target

    def run(self, module: Program, ctx: PassContext) -> Program:
        return lower_program_to_gpu_launches(module, self.target)


def _config_value_or_is_bare_metal(config_key: str, target: Target) -> bool:
    """Return the configured value of a key, or by default True if the target's memory is limited."""
    return bool(PassContext.current().get_config(config_key, target.bare))


def _are_outputs_allowed_over_dying_inputs(target: Target) -> bool:
    """Return True if outputs may overlap dying inputs, that is if iterations run in program order."""
    return target.is_scalar and target.gpu is None and _config_value_or_is_bare_metal("compile.overlap", target)


class KeepInputsAndOutputs(ProgramPass):
    """Place inputs and outputs in the arena, so that callers can access them there."""

    def run(self, module: Program, ctx: PassContext) -> Program:
        return place_inputs_and_outputs_in_arena(module)


def _arena_alignment_bytes(target: Target) -> int:
    """Return the alignment of temporaries in the arena, in bytes."""
    spaces = target.memory_spaces_for_role("arena")
    return max(space.align for space in (spaces if target.bare else spaces[:1]))


@dataclass(frozen=True, repr=False)
class OrderSteps(ProgramPass):
    """Reorder steps to minimize peak memory."""

    target: Target = C

    def run(self, module: Program, ctx: PassContext) -> Program:
        align = _arena_alignment_bytes(self.target)
        return reorder_steps_for_least_peak(
            module,
            shareable_bytes_of_output_input_pairs(module, _are_outputs_allowed_over_dying_inputs(self.target), align),
            align,
        )


@dataclass(frozen=True, repr=False)
class FuseLoops(ProgramPass):
    """Fuse a producer and a consumer step block by block where that lowers peak memory (loop
    fusion).
    """

    target: Target = C

    def run(self, module: Program, ctx: PassContext) -> Program:
        align, over = _arena_alignment_bytes(self.target), _are_outputs_allowed_over_dying_inputs(self.target)
        return fuse_loops_while_peak_falls(
            module,
            lambda program: least_peak_bytes(
                program, shareable_bytes_of_output_input_pairs(program, over, align), align
            ),
        )


@dataclass(frozen=True, repr=False)
class KeepState(ProgramPass):
    """Place tensors that are kept between runs in the caller's block of state: updated in place
    where possible, otherwise in two copies that change roles at each run. On GPUs, whose launches have fixed
    addresses, a run copies the new contents at its end instead.
    """

    target: Target = C

    def run(self, module: Program, ctx: PassContext) -> Program:
        if not module.state:
            return module
        gpu = self.target.gpu is not None
        return place_state(module, partial(copy_launches, target=self.target) if gpu else None)


class WorkInPlace(ProgramPass):
    """Let kernels write outputs over inputs that no later step reads, where the kernel allows it, and
    loops the values of the next iteration over those of the current one.
    """

    def run(self, module: Program, ctx: PassContext) -> Program:
        return write_outputs_over_dying_inputs(carry_values_in_place(module), are_loops_proven_for)


@dataclass(frozen=True, repr=False)
class PlanMemory(ProgramPass):
    """Assign every temporary its offset in the arena; where iterations run in order, outputs may
    overlap dying inputs.

    Without an operating system the arena may lie in several memories.

    over    True to let outputs overlap dying inputs
    """

    target: Target = C
    over: bool = False

    def run(self, module: Program, ctx: PassContext) -> Program:
        rooms = {s.name: s.bytes for s in self.target.memory_spaces_for_role("arena")} if self.target.bare else None
        return plan_memory(module, _arena_alignment_bytes(self.target), self.over, rooms)


@dataclass(frozen=True, repr=False)
class DivideAmongThreads(ProgramPass):
    """Turn expensive kernels into team kernels, which every thread calls and whose iterations the
    threads divide.
    """

    target: Target

    def run(self, module: Program, ctx: PassContext) -> Program:
        return module if self.target.threads is None else parallelize_program(module, self.target.threads)


@dataclass(frozen=True, repr=False)
class KernelPass(ProgramPass):
    """A pass that rewrites one kernel at a time.  A subclass defines `rewrite_kernel`."""

    target: Target

    def rewrite_kernel(self, kernel: Kernel) -> Kernel:
        """Return the rewritten kernel for the target."""
        raise NotImplementedError

    def run(self, module: Program, ctx: PassContext) -> Program:
        new_kernels = {}
        for k, kernel in enumerate(module.distinct_kernels):
            report_progress(k, len(module.distinct_kernels), f"{self.name}, kernel {kernel.name}")
            new_kernels[kernel] = self.rewrite_kernel(kernel)
        return module.replace_kernels(new_kernels)


class FuseMultiplyAdds(KernelPass):
    """Replace products and sums by fused multiply-adds if the target has such an instruction."""

    def rewrite_kernel(self, kernel: Kernel) -> Kernel:
        return contract_kernel_to_fma(kernel) if self.target.fma else kernel


class VectorizeLoops(KernelPass):
    """Vectorize loops with independent iterations."""

    def run(self, module: Program, ctx: PassContext) -> Program:
        memoize_in_parallel([partial(self.rewrite_kernel, kernel) for kernel in module.distinct_kernels])
        return super().run(module, ctx)

    def rewrite_kernel(self, kernel: Kernel) -> Kernel:
        return vectorize_kernel(kernel, self.target)


@dataclass(frozen=True, repr=False)
class HalveBytes(ProgramPass):
    """Pack int8 constants with at most 16 distinct consecutive values as int4, two to a byte.

    Controlled by "compile.halve_bytes"; by default on if memory is limited or the constants exceed
    the caches.
    """

    target: Target = C

    opt_level: ClassVar[int] = 3

    def run(self, module: Program, ctx: PassContext) -> Program:
        always = ctx.get_config("compile.halve_bytes", self.target.bare or self.target.small)
        cache_bytes = 0 if always else self.target.budget.unpacked_bytes
        return pack_constants_as_int4(module, self.target.code_size.min_int4_elements, cache_bytes)


# --- the pipeline

#: Condition under which the pipeline contains a pass: of the target, and of whether kernels may be
#: divided among threads.  Conditions also read the configuration of the current pass context.
PipelineCondition: TypeAlias = Callable[[Target, bool], bool]


def _reorders_steps(target: Target, multithreaded: bool) -> bool:
    """Return True if steps of the schedule may be reordered and fused to need less memory."""
    return target.gpu is None and _config_value_or_is_bare_metal("compile.reorder", target)


def _places_inputs_and_outputs_in_arena(target: Target, multithreaded: bool) -> bool:
    """Return True if the arena holds the inputs and outputs of the model."""
    return target.gpu is None and bool(PassContext.current().get_config("compile.workspace_io", False))


@dataclass(frozen=True)
class PipelineRow:
    """One tensor pass of the pipeline, with its place, condition and options.

    pass_class      class of the pass, whose name, docstring and fields document it
    create          function that returns the pass with the options for a target
    condition       condition as text for the documentation
    is_included     condition under which the pipeline contains the pass
    runs_on_lowered_program   True if `eliminate_copies_pass` runs it, False for `run_tensor_passes`
    """

    pass_class: type[ProgramPass]
    create: Callable[[Target], ProgramPass]
    condition: str = "always"
    is_included: PipelineCondition = lambda target, multithreaded: True
    runs_on_lowered_program: bool = False


_REORDER_CONDITION: Final = "CPUs, if `compile.reorder` is true (by default on bare-metal targets)"
_OVERLAP_CONDITION: Final = "scalar CPUs, if `compile.overlap` is true (by default on bare-metal targets)"
#: All tensor passes in the order in which they run.  The names that options such as --disable-pass
#: accept, the pipelines of all targets and the documentation are read from this table.
TENSOR_PIPELINE: Final = (
    PipelineRow(TakeViews, lambda target: TakeViews(), runs_on_lowered_program=True),
    PipelineRow(
        KeepInputsAndOutputs, lambda target: KeepInputsAndOutputs(), "CPUs, if `compile.workspace_io` is true",
        _places_inputs_and_outputs_in_arena,
    ),
    PipelineRow(FuseLoops, FuseLoops, _REORDER_CONDITION, _reorders_steps),
    PipelineRow(OrderSteps, OrderSteps, _REORDER_CONDITION, _reorders_steps),
    PipelineRow(LaunchOnDevice, LaunchOnDevice, "GPUs", lambda target, multithreaded: target.gpu is not None),
    PipelineRow(KeepState, KeepState),
    PipelineRow(WorkInPlace, lambda target: WorkInPlace()),
    PipelineRow(
        PlanMemory, PlanMemory, "unless the last row plans the memory",
        lambda target, multithreaded: not _are_outputs_allowed_over_dying_inputs(target),
    ),
    PipelineRow(
        DivideAmongThreads, DivideAmongThreads, "targets with threads, unless the option `threads` is False",
        lambda target, multithreaded: target.gpu is None and target.threads is not None and multithreaded,
    ),
    PipelineRow(FuseMultiplyAdds, FuseMultiplyAdds),
    PipelineRow(VectorizeLoops, VectorizeLoops),
    PipelineRow(HalveBytes, HalveBytes, "CPUs", lambda target, multithreaded: target.gpu is None),
    # last, because it follows the accesses of kernels in the order in which they are printed
    PipelineRow(
        PlanMemory, lambda target: PlanMemory(target, over=True), _OVERLAP_CONDITION,
        lambda target, multithreaded: _are_outputs_allowed_over_dying_inputs(target),
    ),
)  # fmt: skip
#: Names of the tensor passes, each once, in the order of their first row.
TENSOR_PASS_NAMES: Final = tuple(dict.fromkeys(row.pass_class.name for row in TENSOR_PIPELINE))


def kernel_passes(target: Target) -> list[KernelPass]:
    """Return the passes that prepare a single kernel for printing for a target."""
    created = (row.create(target) for row in TENSOR_PIPELINE if issubclass(row.pass_class, KernelPass))
    return [item for item in created if isinstance(item, KernelPass)]


def program_passes(target: Target, multithreaded: bool = True) -> list[ProgramPass]:
    """Return the passes that prepare a program for printing for a target, in order.

    multithreaded    False to leave out the division of kernels among threads
    """
    return [
        row.create(target)
        for row in TENSOR_PIPELINE
        if not row.runs_on_lowered_program and row.is_included(target, multithreaded)
    ]


def _run_passes_in_current_context(program: Program, *passes: ProgramPass) -> Program:
    new_program: Program = Sequential[Any](passes).run(program, PassContext.current())
    return new_program


def eliminate_copies_pass(program: Program, target: Target) -> Program:
    """Run the passes of lowered programs (TakeViews) that the current pass context enables."""
    passes = [row.create(target) for row in TENSOR_PIPELINE if row.runs_on_lowered_program]
    return _run_passes_in_current_context(program, *passes)


def run_tensor_passes(program: Program, target: Target, multithreaded: bool = True) -> Program:
    """Run the tensor passes that the current pass context enables on a program."""
    return _run_passes_in_current_context(program, *program_passes(target, multithreaded))


class ProgramVerifier(PassInstrument):
    """An instrument that verifies kernels, their arguments and the memory plan after each tensor
    pass.

    Raises AotcError (code "tir-verify") with every violation.
    """

    levels: ClassVar[frozenset[str]] = frozenset({"tensor"})

    def __init__(self) -> None:
        # passes leave most kernels as they are
        self._verified: set[Kernel] = set()

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        if not isinstance(module, Program):
            return
        for kernel in module.distinct_kernels:
            if kernel.source is None and kernel not in self._verified:
                verify(kernel)
                self._verified.add(kernel)
        for step in module.steps:
            for buffer, view in zip(step.kernel.params, step.args, strict=True):
                at, storage = range(view.offset, view.offset + buffer.size), view.storage
                if buffer.dtype != storage.dtype or at.start < 0 or at.stop > storage.size:
                    text = f"{info.name}: kernel {step.kernel.name} takes elements {at.start} to {at.stop} of"
                    text += f" {storage.name}, {storage.size} of {storage.dtype}, for {buffer.name}"
                    raise AotcError("tir-verify", text, span=step.span)
        _verify_numbers(module, info.name)
        _verify_conditions_and_definitions(module, info.name)
        if not module.plan.offsets:
            return
        try:
            check_memory_plan(module)
        except AssertionError as error:
            text = f"{info.name}: temporaries that live at the same time overlap, or lie outside of the arena"
            raise AotcError("tir-verify", f"{text}: {error}") from error


def _verify_numbers(program: Program, pass_name: str) -> None:
    """Raise AotcError (code "tir-verify") if a call passes a value for a number of its kernel that is not in
    the interval of this number.

    A formula whose interval follows from the ranges of sizes is proven; others, whose values the checks of
    the program limit, are evaluated for the ends of ranges and for random sizes that fulfill the checks.
    """
    intervals = program.symbol_intervals
    accepted: list[Mapping[str, int]] | None = None
    for step in program.steps:
        if len(step.numbers) != len(step.kernel.numbers):
            text = f"{pass_name}: kernel {step.kernel.name} has {len(step.kernel.numbers)} numbers"
            raise AotcError("tir-verify", f"{text}, got {len(step.numbers)}", span=step.span)
        for number, value in zip(step.kernel.numbers, step.numbers, strict=True):
            if number.var.dtype != INDEX:
                continue
            low, high = number.interval
            values: list[Any]
            if isinstance(value, Const):
                values = [value.value]
            else:
                formula = formula_of_name(value.name)
                least, most = formula.interval(intervals)
                if low <= least and most <= high:
                    continue
                accepted = _accepted_symbols(program) if accepted is None else accepted
                values = [formula.evaluate(symbols) for symbols in accepted]
            wrong = [v for v in values if v is None or not low <= v <= high]
            if wrong:
                text = f"{pass_name}: number {number.var.name} of kernel {step.kernel.name} is in [{low}, {high}]"
                raise AotcError("tir-verify", f"{text}, got {wrong[0]}", span=step.span)


def _accepted_symbols(program: Program) -> list[Mapping[str, int]]:
    """Return values of the symbols in formulas, for sizes that fulfill the checks of a program."""
    rng = random.Random(0)
    ranges = program.sizes
    ends = islice(product(*(dict.fromkeys((r.least, r.most)) for r in ranges.values())), _MAX_SIZES_AT_ENDS)
    sizes = [dict(zip(ranges, values, strict=True)) for values in ends]
    sizes += [
        {name: rng.randint(r.least // r.step, r.most // r.step) * r.step for name, r in ranges.items()}
        for _ in range(_RANDOM_SIZES)
    ]
    symbols = map(program.symbols_of_sizes, sizes)
    return list(filter(program.are_accepted, symbols))


def _verify_conditions_and_definitions(program: Program, pass_name: str) -> None:
    """Raise AotcError (code "tir-verify") unless conditions are single elements of type bool, and each
    way to a call writes the temporaries that it reads, and all outputs.
    """
    given = {storage for storage in program.inputs if storage not in program.resident}
    written = _WaysThroughProgram(program, pass_name).written_after(program.body, frozenset(given)) or frozenset()
    missing = [s.name for s in program.outputs if s.size and s not in written and s not in given]
    if missing and program.has_control_flow:
        text = f"{pass_name}: not every way through the program writes the outputs {', '.join(missing)}"
        raise AotcError("tir-verify", text)


class _WaysThroughProgram:
    """Check of what is written on all ways through sequences of calls.

    left   for each loop around the current sequence: what is written where it is left
    """

    def __init__(self, program: Program, pass_name: str) -> None:
        self._pass_name = pass_name
        self._left: list[list[frozenset[Storage]]] = []
        self._found = {node.size for node in program.defined if node.size}
        self._defined: set[str] = set()

    def _define(self, node: Define) -> None:
        """Note that a size is known; raise AotcError if it is known already, if calls may not reach this point, or
        if it is no single integer.
        """
        storage, offset = node.value.storage, node.value.offset
        fits = storage.dtype in ("int32", "int64", "bool") and 0 <= offset < storage.size
        if not fits or node.size in self._defined:
            text = f"{self._pass_name}: the size {node.size} is element {offset} of {storage.name}"
            raise AotcError("tir-verify", f"{text}, or is defined twice", span=node.span)
        if node.size:
            self._defined.add(node.size)
        for check in node.checks:
            self._require_defined(node, (d for d in (check.left, check.right) if isinstance(d, SymDim)))

    def _require_defined(self, node: Step | Define, dims: Iterable[SymDim]) -> None:
        """Raise AotcError for a formula with a size that calls find later."""
        unknown = {s for d in dims for s in d.symbols} & self._found - self._defined
        if unknown:
            text = f"{self._pass_name}: the size {', '.join(sorted(unknown))} is used before it is found"
            raise AotcError("tir-verify", text, span=node.span)

    def written_after(self, nodes: Sequence[ProgramNode], written: frozenset[Storage]) -> frozenset[Storage] | None:
        """Return what is written after a sequence on all ways through it, given what was written
        before; None if all ways leave the loop around it. Raise AotcError if anything reads a
        temporary that may not be written.
        """
        for node in nodes:
            self._require_written(node, written)
            match node:
                case Step():
                    self._require_defined(node, (n for n in node.numbers if isinstance(n, SymDim)))
                    after: frozenset[Storage] | None = written | {view.storage for view in node.outputs}
                case Define():
                    self._define(node)
                    after = written
                case Leave():
                    if not self._left:
                        raise AotcError("tir-verify", f"{self._pass_name}: the program leaves a loop outside of loops")
                    self._left[-1].append(written)
                    after = None
                case Loop():
                    after = self._written_after_loop(node, written)
                case Branch():
                    after = self._written_after_branch(node, written)
            if after is None:
                return None
            written = after
        return written

    def _written_after_part(
        self, nodes: Sequence[ProgramNode], written: frozenset[Storage]
    ) -> frozenset[Storage] | None:
        """Return what `written_after` does, for an arm or the body of a loop: sizes that are found in it are not
        known behind it.
        """
        known = set(self._defined)
        after = self.written_after(nodes, written)
        self._defined = known
        return after

    def _written_after_branch(self, node: Branch, written: frozenset[Storage]) -> frozenset[Storage] | None:
        storage, offset = node.condition.storage, node.condition.offset
        if storage.dtype != DType("bool") or not 0 <= offset < storage.size:
            text = f"a condition is element {offset} of {storage.name}, {storage.size} of {storage.dtype}"
            raise AotcError("tir-verify", f"{self._pass_name}: {text}", span=node.span)
        ways = [way for arm in node.arms if (way := self._written_after_part(arm, written)) is not None]
        if not ways:
            return None
        return self._with_results(node, frozenset.intersection(*ways))

    def _written_after_loop(self, node: Loop, written: frozenset[Storage]) -> frozenset[Storage]:
        if missing := [s.name for s in node.carried if s.size and s not in written]:
            text = f"{self._pass_name}: a loop begins without the values {', '.join(missing)}"
            raise AotcError("tir-verify", text, span=node.span)
        self._left.append([])
        self._written_after_part(node.body, written)
        left = self._left.pop()
        if not left:
            raise AotcError("tir-verify", f"{self._pass_name}: a loop does not end", span=node.span)
        return self._with_results(node, frozenset.intersection(*left))

    def _with_results(self, node: Branch | Loop, written: frozenset[Storage]) -> frozenset[Storage]:
        if missing := [s.name for s in node.results if s.size and s not in written]:
            text = f"{self._pass_name}: a way through a branch or loop does not write {', '.join(missing)}"
            raise AotcError("tir-verify", text, span=node.span)
        return written

    def _require_written(self, node: ProgramNode, written: frozenset[Storage]) -> None:
        read = node.inputs if isinstance(node, (Step, Define)) else ()
        if isinstance(node, Branch):
            read = (node.condition,)
        for view in read:
            if view.storage.kind == "temp" and view.storage.size and view.storage not in written:
                text = f"{self._pass_name}: {view.storage.name} is read, but not every way to its reader writes it"
                raise AotcError("tir-verify", text, span=node.span)
