# SPDX-License-Identifier: Apache-2.0
"""Passes over programs of kernels, in the order of `program_passes`; instruments that watch tensor passes see them.

with PassContext(instruments=[ProgramVerifier()]):
    program = scheduled(called(program), target)     # no copies; memory planned, kernels divided among threads

In: a Program as lowering makes it.  Out: one that code generation prints.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from aotc.ir import AotcError, Pass, PassContext, PassInfo, PassInstrument, Sequential, report_progress
from aotc.tir import C, Kernel, Program, Target, Threads
from aotc.tir.device.lower_to_launches import launched
from aotc.tir.functions.fma_contraction import fused_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.loops.loop_vectorization import with_vectors
from aotc.tir.plan.copy_elimination import take_views
from aotc.tir.plan.loop_fusion import with_fused_loops
from aotc.tir.plan.memory_plan import check_plan, plan_memory, savings, with_io, work_in_place
from aotc.tir.plan.pack_int4 import narrowed
from aotc.tir.plan.step_order import least_peak, ordered
from aotc.tir.threads.parallel_kernels import for_teams


class ProgramPass(Pass[Any]):
    """A pass from a Program to a Program.  A subclass gives `name` and `run`."""

    level: ClassVar[str] = "tensor"
    kind: ClassVar[str] = "Program"

    def accepts(self, module: Any) -> bool:
        return isinstance(module, Program)

    def state(self, module: Any) -> object:
        parts = (module, module.plan, *module.steps, *module.kernels)
        return [getattr(part, f.name) for part in parts for f in fields(part)], dict(module.plan.offsets)


class TakeViews(ProgramPass):
    """Kernels read parts of tensors where they lie, and write into the caller's outputs."""

    def run(self, module: Program, ctx: PassContext) -> Program:
        return take_views(module)


@dataclass(frozen=True, repr=False)
class LaunchOnDevice(ProgramPass):
    """Kernels become those of blocks and threads; one that must not run all at once becomes several."""

    target: Target

    def run(self, module: Program, ctx: PassContext) -> Program:
        return launched(module, self.target)


def _wanted(key: str, target: Target) -> bool:
    """What the configuration says, else whether the target is short of memory."""
    return bool(PassContext.current().get_config(key, target.bare))


def _may_overlap(target: Target) -> bool:
    """Whether results may lie over inputs that die: iterations run in the order in which they are written down."""
    return target.is_scalar and target.gpu is None and _wanted("compile.overlap", target)


class KeepInputsAndOutputs(ProgramPass):
    """Inputs and outputs get their places in the arena, where callers may have them."""

    def run(self, module: Program, ctx: PassContext) -> Program:
        return with_io(module)


def _alignment(target: Target) -> int:
    """Bytes that every temporary in the arena is aligned to."""
    spaces = target.spaces_for("arena")
    return max(space.align for space in (spaces if target.bare else spaces[:1]))


@dataclass(frozen=True, repr=False)
class OrderSteps(ProgramPass):
    """Steps come in the order that needs least memory."""

    target: Target = C

    def run(self, module: Program, ctx: PassContext) -> Program:
        align = _alignment(self.target)
        return ordered(module, savings(module, _may_overlap(self.target), align), align)


@dataclass(frozen=True, repr=False)
class FuseLoops(ProgramPass):
    """A step that reads what another one writes, block by block, becomes one with it where that saves memory."""

    target: Target = C

    def run(self, module: Program, ctx: PassContext) -> Program:
        align, over = _alignment(self.target), _may_overlap(self.target)
        return with_fused_loops(module, lambda program: least_peak(program, savings(program, over, align), align))


class WorkInPlace(ProgramPass):
    """Kernels write over inputs that nobody needs any more, where they may."""

    def run(self, module: Program, ctx: PassContext) -> Program:
        return work_in_place(module)


@dataclass(frozen=True, repr=False)
class PlanMemory(ProgramPass):
    """Every temporary gets its place in the arena; where iterations have an order, results may overlap inputs that die.

    Without an operating system the arena may lie in several memories.

    over    they do
    """

    target: Target = C
    over: bool = False

    def run(self, module: Program, ctx: PassContext) -> Program:
        rooms = {s.name: s.bytes for s in self.target.spaces_for("arena")} if self.target.bare else None
        return plan_memory(module, _alignment(self.target), self.over, rooms)


@dataclass(frozen=True, repr=False)
class DivideAmongThreads(ProgramPass):
    """Kernels that are worth it become those of a team: every thread calls them, and does its share."""

    threads: Threads

    def run(self, module: Program, ctx: PassContext) -> Program:
        return for_teams(module, self.threads)


@dataclass(frozen=True, repr=False)
class KernelPass(ProgramPass):
    """A pass that looks at one kernel at a time.  A subclass gives `kernel`."""

    target: Target

    def kernel(self, kernel: Kernel) -> Kernel:
        """The kernel as the target wants it."""
        raise NotImplementedError

    def run(self, module: Program, ctx: PassContext) -> Program:
        made = {}
        for k, kernel in enumerate(module.kernels):
            report_progress(k, len(module.kernels), f"{self.name}, kernel {kernel.name}")
            made[kernel] = self.kernel(kernel)
        return module.with_kernels(made)


class FuseMultiplyAdds(KernelPass):
    """Products and their sums are rounded once, where the target has an instruction for both."""

    def kernel(self, kernel: Kernel) -> Kernel:
        return fused_kernel(kernel) if self.target.fma else kernel


class VectorizeLoops(KernelPass):
    """Iterations that are independent run in the lanes of vectors."""

    def kernel(self, kernel: Kernel) -> Kernel:
        return with_vectors(kernel, self.target)


#: Bytes of second-level cache of a core: weights that fit are read from there, where whole bytes are faster.
CACHED: Final = 1 << 20


@dataclass(frozen=True, repr=False)
class HalveBytes(ProgramPass):
    """Constant bytes that 4 bits tell apart take half a byte each.

    The configuration says whether ("compile.halve_bytes"), else they do where memory is short, or caches are.
    """

    target: Target = C

    opt_level: ClassVar[int] = 3

    def run(self, module: Program, ctx: PassContext) -> Program:
        always = ctx.get_config("compile.halve_bytes", self.target.bare or self.target.small)
        return narrowed(module, 0 if always else CACHED)


_KERNELS: Final = (FuseMultiplyAdds, VectorizeLoops)
#: The tensor passes in the order in which they run.
PASSES: Final = (
    TakeViews,
    KeepInputsAndOutputs,
    FuseLoops,
    OrderSteps,
    LaunchOnDevice,
    WorkInPlace,
    PlanMemory,
    DivideAmongThreads,
    *_KERNELS,
    HalveBytes,
)
NAMES: Final = tuple(p.name for p in PASSES)


def kernel_passes(target: Target) -> list[KernelPass]:
    """The passes that make a kernel by itself ready to be printed for a target."""
    return [kind(target) for kind in _KERNELS]


def program_passes(target: Target, threads: bool = True) -> list[ProgramPass]:
    """The passes that make calls of kernels ready to be printed for a target."""
    if target.gpu is not None:
        return [LaunchOnDevice(target), WorkInPlace(), PlanMemory(target), *kernel_passes(target)]
    first: list[ProgramPass] = []
    if PassContext.current().get_config("compile.workspace_io", False):
        first.append(KeepInputsAndOutputs())
    if _wanted("compile.reorder", target):
        first += [FuseLoops(target), OrderSteps(target)]
    divide = [DivideAmongThreads(target.threads)] if threads and target.threads is not None else []
    last = [*divide, *kernel_passes(target), HalveBytes(target)]
    if _may_overlap(target):
        # accesses are followed in the kernels that are printed
        return [*first, WorkInPlace(), *last, PlanMemory(target, over=True)]
    return [*first, WorkInPlace(), PlanMemory(target), *last]


def _through(program: Program, *passes: ProgramPass) -> Program:
    made: Program = Sequential[Any](passes).run(program, PassContext.current())
    return made


def called(program: Program) -> Program:
    """A lowered program without copies, if the current context enables TakeViews."""
    return _through(program, TakeViews())


def scheduled(program: Program, target: Target, threads: bool = True) -> Program:
    """Calls of kernels through the tensor passes that the current context enables."""
    return _through(program, *program_passes(target, threads))


class ProgramVerifier(PassInstrument):
    """Verifies every kernel and its arguments, and that what lives at once does not overlap, after each tensor pass.

    Raises AotcError (code "tir-verify") with every violation.
    """

    levels: ClassVar[frozenset[str]] = frozenset({"tensor"})

    def __init__(self) -> None:
        # passes leave most kernels as they are
        self._verified: set[Kernel] = set()

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        if not isinstance(module, Program):
            return
        for kernel in module.kernels:
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
        if not module.plan.offsets:
            return
        try:
            check_plan(module)
        except AssertionError as error:
            text = f"{info.name}: temporaries that live at the same time overlap, or lie outside of the arena"
            raise AotcError("tir-verify", f"{text}: {error}") from error
