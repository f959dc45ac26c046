# SPDX-License-Identifier: Apache-2.0
"""The compilation pipeline: optimize a graph module, lower it to kernels, emit the project and
build the library.

work = Compilation(module, target, "net", PassContext(3))
work.graph                           # the module of fused functions
work.calls, work.programs            # calls of kernels; these with memory planned, divided among threads
work.project(Path("build/net"))      # C sources on disk
work.library().session()             # compiled by the C compiler

Each stage is computed from the previous one on first access and cached.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol

from aotc_codegen.c.bare_metal_project import bare_footprint, emit_bare
from aotc_codegen.c.host_project import emit
from aotc_codegen.c.kernel_table import emit_kernels
from aotc_codegen.c.metadata import write_metadata
from aotc_codegen.cuda.cuda_project import device_text, emit_device

from aotc.driver.compile_sources import build_library, record_checksum
from aotc.driver.compiler_check import check_kernels, check_project
from aotc.driver.cuda_emulation import EMULATOR, emulating
from aotc.driver.failure_replay import keeping_failures
from aotc.driver.memory_budgets import (
    COUNTED,
    UNLIMITED,
    Budgets,
    Change,
    Way,
    measured_code,
    undefined_symbols,
    ways_by_changes,
    ways_to_bytes,
)
from aotc.driver.nvrtc import DeviceCompiler, find_nvrtc
from aotc.driver.object_cache import code_digest, default_cache, digest
from aotc.driver.output_folder import staged
from aotc.driver.pass_observers import PassList
from aotc.driver.selftest_data import golden
from aotc.driver.toolchain import Toolchain, find_toolchain, require_cpu
from aotc.driver.tuning_store import Recorded
from aotc.driver.weight_sizes import weight_sizes
from aotc.ir import AotcError, PassContext, frozen, remembering, require_known, setting, spending
from aotc.ir.atomic_write import temporary_folder
from aotc.relay.backend.function_to_kernel import dynamic_inputs
from aotc.relay.backend.kernel_table import lower_kernel
from aotc.relay.backend.lower import lower_calls
from aotc.relay.graph_api import Function, IRModule, post_order
from aotc.relay.op.input_domains import input_domains
from aotc.relay.transform.alter_op_layout import sums_bytes
from aotc.relay.transform.pipeline import optimize, require_lowering
from aotc.relay.value_domains import Domain
from aotc.runtime.fork_safety import ScratchDirectory
from aotc.runtime.kernel_library import KernelInfo, KernelLibrary
from aotc.runtime.session import Session, load
from aotc.runtime.tensor_info import TensorInfo
from aotc.tir import (
    X86_64_V4,
    C,
    Kernel,
    Program,
    Target,
    called,
    for_environment,
    for_size,
    in_order,
    kernel_passes,
    scheduled,
)
from aotc.tir.plan.copy_elimination import take_views
from aotc.tir.plan.numerics_id import numerics
from aotc.tir.schedule.contraction.tiling_choice import Site, choosing

IMPORTING, OPTIMIZING, LOWERING = "importing the model", "optimizing the graph", "lowering to kernels"
#: The stages of a compilation.
PLANNING, WRITING, BUILDING = "running tensor passes", "writing the C project", "compiling the C project"
CHECKING = "checking the C compiler"
COMPILING_DEVICE = "compiling kernels for GPUs"
ACCURACIES: Final = ("fast", "strict", "reproducible")
#: Target whose weight layouts all reproducible graphs use: its blocks also fit shorter vectors.
GRAPHS: Final = in_order(X86_64_V4)
#: Function called with the name of each stage when it begins.
Progress = Callable[[str], None]


class Tilings(Protocol):
    """Chooses the tiling of a contraction (see `aotc.tir.schedule.contraction.tiling_choice`).

    Called with a `Site`, returns a tiling, or None for the tiling with the least estimated cost.
    Choosers with equal `digest` make equal choices.
    """

    @property
    def digest(self) -> str: ...

    def __call__(self, site: Site) -> str | None: ...


@frozen
class CompiledModel:
    """Result of a compilation: an emitted project and its library.

    path        directory of the project
    library     path of the library; None if only sources were emitted
    target      target of the compilation
    emulated    True if the project is for a GPU emulated by this machine's CPU
    unchecked   if the C compiler was to be checked: the parts that could not be, with reasons
    """

    path: Path
    library: Path | None
    metadata: Mapping[str, Any]
    target: Target
    temporary: ScratchDirectory | None = field(default=None, repr=False)
    emulated: bool = False
    unchecked: tuple[str, ...] = ()

    @property
    def built(self) -> Path:
        """The path of the library; accessing it raises AotcError (code "no-library") if none was
        built.
        """
        if self.library is None:
            raise AotcError(
                "no-library", f"{self.path} holds sources but no library", hint="compile without --no-build"
            )
        return self.library

    def session(self, threads: int = 1, device: int | None = None) -> Session:
        """Load the library and return a session; `threads` divide the work of a run, or GPU number
        `device` runs it.

        Raises AotcError (code "no-library") if there is no library, or only a static one for
        firmware.
        """
        if self.target.bare:
            hint = "compile for a hosted environment and the target c or host to run the model here"
            raise AotcError(
                "no-library", f"{self.path} holds a static library for firmware, which cannot be loaded here", hint=hint
            )
        with emulating() if self.emulated else nullcontext():
            session = load(self.built, threads=threads, device=device)
        session.keep_alive = self.temporary
        return session


_UNDER_WAY: Final[ContextVar[object]] = ContextVar("aotc_compilation", default=None)


@dataclass(frozen=True, eq=False)
class Compilation:
    """The compilation of a typed graph module for one target, with access to each intermediate
    stage.

    name       prefix of every C symbol
    context    pass context of all passes
    threads    generate kernels that divide work among threads, if the target has several
    cache      reuse kernels and object files from the user's cache
    tilings    chooser of tilings for contractions; None for the recorded tilings
    toolchain  the C compiler; None for the machine's default
    progress   function called with the name of each stage when it begins
    checked    compare the kernels of a library with -O0 (see `aotc.driver.compiler_check`)
    emulated   compile GPU kernels for this machine's CPU
    budgets    upper bounds on RAM, flash and stack
    selftest   bare-metal only: emit a self-test with stored inputs and outputs
    single_file    bare-metal only: emit one source and one header
    overwrite      replace foreign files in the output directory (see `aotc.driver.output_folder`)
    cflags         C compiler flags that the build files of the project add after the target's

    The configuration of the context also applies: `compile.threads` 0 and `compile.cache` false
    switch these features off, `compile.tuning` false ignores the user's recorded tilings,
    `compile.accuracy` is one of `ACCURACIES`.

    Each stage raises AotcError if the model cannot be expressed, or if the context disables passes
    that the stage needs.
    """

    module: IRModule
    target: Target
    name: str
    context: PassContext
    threads: bool = True
    cache: bool = True
    tilings: Tilings | None = None
    toolchain: Toolchain | None = None
    progress: Progress = lambda _: None
    checked: bool = False
    emulated: bool = False
    budgets: Budgets = UNLIMITED
    selftest: bool = False
    single_file: bool = False
    overwrite: bool = False
    cflags: tuple[str, ...] = ()
    _passes: PassList = field(default_factory=PassList, init=False, repr=False)

    def __post_init__(self) -> None:
        require_known("accuracy", "accuracy", self.accuracy, ACCURACIES)
        if (self.selftest or self.single_file) and not self.target.bare:
            text = f"projects for {self.target.name} have neither a self-test nor a single source"
            raise AotcError("target", text, hint="take --environment bare, or the target of a microcontroller")
        if self.context.get_config("compile.workspace_io", False) and (self.target.versions or self.target.gpu):
            text = f"inputs and outputs have no one place in the workspaces of {self.target.name}"
            raise AotcError("target", text, hint="take a target of one instruction set, or leave --workspace-io out")
        if (arrays := self.context.get_config("compile.stack_bytes")) is not None:
            object.__setattr__(self, "target", _with_stack(self.target, arrays))
        if self.accuracy == "reproducible":
            object.__setattr__(self, "target", in_order(self.target))
        tf32 = self.context.get_config("compile.tf32", False)
        fast = self.accuracy == ACCURACIES[0]
        if tf32 and not fast:
            text = f"compile.tf32 rounds float32 to a fraction of 10 bits, which is not {self.accuracy}"
            raise AotcError("accuracy", text, hint="it requires the accuracy fast")
        if self.target.gpu is not None and (tf32 or not fast):
            matrices = (*self.target.gpu.matrices, "float32") if tf32 else ()
            gpu = replace(self.target.gpu, matrices=matrices)
            object.__setattr__(self, "target", replace(self.target, gpu=gpu))

    @property
    def accuracy(self) -> str:
        """Accuracy of the compiled model: "fast", "strict" or "reproducible", from the
        configuration key `compile.accuracy`.
        """
        return str(self.context.get_config("compile.accuracy", ACCURACIES[0]))

    @property
    def uses_cache(self) -> bool:
        """Return True if kernels and object files come from the user's cache."""
        return self.cache and bool(self.context.get_config("compile.cache", True))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager for all work of this compilation: enables the kernel cache, the chosen
        tilings and failure reports.
        """
        if _UNDER_WAY.get() is self:
            yield
            return
        kept = default_cache() if self.uses_cache else None
        tilings = self.tilings or Recorded(None if self.context.get_config("compile.tuning", True) else False)
        salt = digest(code_digest(), tilings.digest) if kept is not None else ""
        with setting(_UNDER_WAY, self), keeping_failures(), choosing(tilings), remembering(kept, salt):
            yield
        if kept is not None and kept.misses:
            kept.trim()

    @contextmanager
    def _passing(self) -> Iterator[None]:
        """Context manager: run passes of this compilation under its pass context, kernel cache and
        failure reports.
        """
        with self.running(), ExitStack() as stack:
            if PassContext.current() is not self.context:
                stack.enter_context(self.context)
            stack.enter_context(spending())
            yield

    @cached_property
    def machine(self) -> Target:
        """The target, without instruction sets whose kernels would equal those of another one for
        this graph.
        """
        every = self.target.versions
        if not every:
            return self.target
        functions = self.graph.functions.values()
        if any(map(sums_bytes, chain.from_iterable(map(post_order, functions)))):
            return self.target
        kept = (v for v in every if v.dots is None or v.dots.registers > 1)
        return replace(self.target, versions=tuple(kept))

    @property
    def versions(self) -> tuple[Target, ...]:
        """The instruction sets of a multi-versioned target as a tuple of targets; otherwise the
        target alone.
        """
        return self.machine.versions or (self.machine,)

    @property
    def here(self) -> int:
        """The index of the best instruction set, among the compiled versions, that this machine can
        run; 0 if none.
        """
        return _best(self.versions)

    @cached_property
    def graph(self) -> IRModule:
        """The graph module after the passes of the context's optimization level, with fused
        functions.
        """
        with self._passing(), self.context.watched_by(self._passes):
            self.progress(OPTIMIZING)
            try:
                return optimize(self.module, GRAPHS if self.target.ordered else self.target)
            except AotcError as error:
                if dynamic := dynamic_inputs(self.module.main):
                    raise AotcError.collect([*dynamic, *error.diagnostics]) from error
                raise

    @cached_property
    def calls(self) -> tuple[Program, ...]:
        """For each target version, the kernel calls of the model, before memory planning: every
        tensor has its own memory.
        """
        with self._passing():
            require_lowering(self.context)
            graph = self.graph
            self.progress(LOWERING)
            return tuple(called(lower_calls(graph, one, self.name)) for one in self.versions)

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """For each version, the complete program to print as C: kernels, their schedule and the
        memory plan.
        """
        with self._passing():
            calls = self.calls
            self.progress(PLANNING)
            shared = self.threads and bool(self.context.get_config("compile.threads", 1))
            return tuple(scheduled(p, one, shared) for p, one in zip(calls, self.versions, strict=True))

    @cached_property
    def numerics(self) -> tuple[str, ...]:
        """For each version, an identifier of everything that determines its result bits
        (`aotc.tir.plan.numerics_id`).

        With accuracy "reproducible", all versions have the identifier of the scalar program,
        because every target gives the bits of that program.
        """
        if not self.target.ordered:
            return tuple(map(numerics, self.programs))
        graph = self.graph
        with self.running(), spending(self.context.config):
            program = take_views(lower_calls(graph, in_order(C), self.name))
            for item in kernel_passes(in_order(C)):
                program = item.run(program, self.context)
            return (numerics(program),) * len(self.versions)

    def project(self, output: Path | None = None) -> CompiledModel:
        """Emit the C or CUDA project to a directory, or to a temporary one for None; on failure
        nothing is left.
        """
        return self._written(output, None)

    def library(self, output: Path | None = None) -> CompiledModel:
        """Emit the C project as `project` does, and build its library with the C compiler."""
        return self._written(output, self._compiler())

    def _written(self, output: Path | None, toolchain: Toolchain | None) -> CompiledModel:
        temporary = ScratchDirectory("aotc-") if output is None else None
        path = Path(temporary.name) / self.name if temporary is not None else Path(output or ".")
        with self.running():
            # raise early, before any work is done
            _device_compiler(self)
            _ = self.programs
            with staged(path, self.overwrite) as work:
                metadata = _with_values(self, work, self._emitted(work))
                library, unchecked = None, []
                if toolchain is not None:
                    self.progress(BUILDING)
                    library = build_library(work, metadata, toolchain, self.machine)
                    if self.checked:
                        self.progress(CHECKING)
                        unchecked = check_project(work, metadata, self.programs, toolchain, self.machine)
                if library is not None and toolchain is not None:
                    _measure(metadata, library, toolchain)
                    metadata["sizes"]["library"] = library.stat().st_size
                self._within_budgets(metadata, toolchain)
                if library is not None:
                    record_checksum(work, metadata, library)
        made = path / library.relative_to(work) if library else None
        left = tuple(unchecked)
        return CompiledModel(path, made, metadata, self.machine, temporary, self.emulated, left)

    def _within_budgets(self, metadata: dict[str, Any], toolchain: Toolchain | None) -> None:
        """Raise AotcError (code "over-budget") if the project exceeds a budget."""
        if not self.budgets:
            return
        if "footprint" not in metadata:
            text = f"target {self.target.name} has no budgets of ram, flash and stack"
            raise AotcError("over-budget", text, hint="leave them out")
        facts = metadata["footprint"]
        self.budgets.check(self.programs[0], facts, partial(_ways, self, facts, toolchain))

    def _emitted(self, work: Path) -> dict[str, Any]:
        """Emit the project into an empty directory; return its metadata."""
        first, *others = self.programs
        facts: dict[str, Any] = {"target": self.machine, "accuracy": self.accuracy, "passes": self._passes.names}
        facts["cflags"] = self.cflags
        compiler = _device_compiler(self)
        if compiler is None:
            self.progress(WRITING)
            if self.machine.bare:
                known = golden(self.graph, _domains(self)) if self.selftest else None
                facts |= {"golden": known, "single_file": self.single_file}
                return emit_bare(first, work, numerics=self.numerics[0], **facts)
            return emit(first, work, others=others, numerics=self.numerics, **facts)
        self.progress(COMPILING_DEVICE)
        printed, text = device_text(first, self.target)
        images = compiler.images(text, compiler.chosen(self.target.gpu))
        self.progress(WRITING)
        return emit_device(
            first, printed, text, images, work, least_driver=compiler.least_driver, numerics=self.numerics[0], **facts
        )

    def _compiler(self) -> Toolchain:
        return self.toolchain or find_toolchain(cache=self.uses_cache, target=self.target)

    # --- kernels without their schedule

    def compile_functions(self, functions: Mapping[str, Function]) -> KernelLibrary:
        """Compile each function to a kernel; return a library of the kernels under the names of the
        functions.

        functions    of static types; each a fused function, one operator call, or a function that the user's
                     code computes.  Tuples in the types are flattened: kernels read and write tensors
        """
        with self.running(), spending(self.context.config):
            target = _own(self.target)
            kernels = {name: self.vectorized(lower_kernel(f, target)) for name, f in functions.items()}
        return self.compile_kernels(kernels)

    def compile_kernels(self, kernels: Mapping[str, Kernel]) -> KernelLibrary:
        """Compile kernels to a shared library without running further passes on them; return the
        library.
        """
        with self.running():
            return compile_table(kernels, _own(self.target), self._compiler() if kernels else None)

    def vectorized(self, kernel: Kernel) -> Kernel:
        """Apply the passes that turn a kernel of `calls` into a kernel of `programs`; return the
        result.
        """
        for item in kernel_passes(_own(self.target)):
            kernel = item.kernel(kernel) if self.context.pass_enabled(item.info) else kernel
        return kernel


def _domains(c: Compilation) -> dict[str, Domain]:
    """Return the ranges of values that suit each model input, by name, as far as known.

    Inputs that the compiler changed to quantized integers are left out.
    """
    before, after = ({p.name: p.checked_type for p in m.main.params} for m in (c.module, c.graph))
    found = input_domains(c.module.main)
    return {name: domain for name, domain in found.items() if after.get(name) == before[name]}


def _with_values(c: Compilation, work: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """Add the suitable values of inputs and the sizes of weights to a project's metadata; rewrite
    its file.
    """
    if found := _domains(c):
        described = {name: {"values": domain.described} for name, domain in found.items()}
        metadata["inputs"] = [row | described.get(row["name"], {}) for row in metadata["inputs"]]
    metadata["sizes"] = weight_sizes(c.module, c.graph, c.machine, c.programs[0], metadata["weights_bytes"])
    write_metadata(work, metadata)
    return metadata


def _measure(metadata: dict[str, Any], library: Path, toolchain: Toolchain) -> None:
    """Record the measured code size of a library and its undefined external symbols in the
    metadata.
    """
    if "footprint" in metadata and (code := measured_code(library, toolchain)) is not None:
        metadata["footprint"] |= {"code": code, "code_measured": True}
    if "links" in metadata:
        metadata["links"]["undefined"] = undefined_symbols(library, toolchain)


def footprint(c: Compilation) -> dict[str, Any] | None:
    """Return the memory needed by a bare-metal project, with estimated code size; None for other
    targets.
    """
    return bare_footprint(c.programs[0], c.machine) if c.machine.bare else None


def _ways(c: Compilation, facts: Mapping[str, Any], toolchain: Toolchain | None, name: str) -> list[Way]:
    """Return suggestions that reduce "ram", "flash" or "stack", found by compiling and measuring
    each alternative.
    """

    def taken(change: Change) -> int | None:
        """Return the bytes that the model needs with a change of options; None if the change cannot
        be applied.
        """
        if change.size and (c.target.small or toolchain is None or not facts["code_measured"]):
            return None
        if not (change.selftest or c.selftest):
            return None
        c.progress(f"trying to {change.what}")
        with suppress(AotcError):
            other = _changed(c, change)
            built = toolchain if name == "flash" else None
            made = (replace(other, toolchain=built).library if built is not None else other.project)()
            return _sum(made.metadata["footprint"], name)
        return None

    return [*ways_by_changes(name, _sum(facts, name), taken), *ways_to_bytes(c.programs[0], name)]


def _sum(facts: Mapping[str, Any], name: str) -> int:
    """Return the bytes that a project needs of "ram", "flash" or "stack", from the footprint in its
    metadata.
    """
    return sum(facts[key] for key in COUNTED[name])


def _changed(c: Compilation, change: Change) -> Compilation:
    """Return the compilation with a change applied, without memory bounds, instruments and
    progress.
    """
    ctx = c.context
    context = PassContext(ctx.opt_level, ctx.required_pass, ctx.disabled_pass, None, {**ctx.config, **change.config})
    target = for_environment(c.target, change.environment) if change.environment else c.target
    target = for_size(target) if change.size else target
    tested, any_size = c.selftest and change.selftest, Budgets(flash=sys.maxsize)
    made = replace(c, context=context, target=target, selftest=tested, budgets=any_size)
    return replace(made, checked=False, progress=lambda _: None)


def _with_stack(target: Target, size: int) -> Target:
    """Return the target with a limit, in bytes, on the arrays that kernels place on the stack.

    Raise AotcError (code "config") for a negative limit.
    """
    if size < 0:
        raise AotcError("config", f"compile.stack_bytes must be a number of bytes, not {size}")
    versions = tuple(_with_stack(version, size) for version in target.versions)
    return replace(target, budget=replace(target.budget, stack_bytes=size), versions=versions)


def _device_compiler(c: Compilation) -> DeviceCompiler | None:
    """Return the compiler of GPU code; None if the target has no GPU."""
    if c.target.gpu is None:
        return None
    return EMULATOR if c.emulated else find_nvrtc(default_cache() if c.uses_cache else None, strict=False)


def _best(versions: Sequence[Target]) -> int:
    """Return the index of the first target version that this machine can run; 0 if it can run none."""
    for k, candidate in enumerate(versions):
        with suppress(AotcError):
            require_cpu(candidate)
            return k
    return 0


def _own(target: Target) -> Target:
    """Return the version of a target for which stand-alone kernels are compiled: the best that runs
    here.
    """
    every = target.versions or (target,)
    return every[_best(every)]


# --- libraries of kernels


def _info(kernel: Kernel) -> KernelInfo:
    """Describe the buffers of a kernel for the runtime, as one-dimensional tensors."""

    inputs, outputs = (
        tuple(TensorInfo(b.name, [b.size], b.dtype) for b in buffers) for buffers in (kernel.inputs, kernel.outputs)
    )
    return KernelInfo(inputs, outputs, tuple(b.nbytes for b in kernel.workspace))


def compile_table(kernels: Mapping[str, Kernel], target: Target, toolchain: Toolchain | None = None) -> KernelLibrary:
    """Compile kernels to a library that calls them by name.

    toolchain    the C compiler; None for the machine's default
    """
    folder = ScratchDirectory("aotc-kernels-")
    path = Path(folder.name)
    if kernels:
        require_cpu(target)
        metadata = emit_kernels(list(kernels.values()), path, target)
        path = build_library(path, metadata, toolchain or find_toolchain(target=target), target)
    return KernelLibrary(path, {name: _info(kernel) for name, kernel in kernels.items()}, folder)


def check_table(kernels: Sequence[Kernel], target: Target, toolchain: Toolchain) -> None:
    """Raise AotcError (code "compiler-check") if the results of compiled kernels differ from those
    at -O0.
    """
    with temporary_folder("aotc-check-") as folder:
        metadata = emit_kernels(kernels, Path(folder), target)
        check_kernels(Path(folder), metadata, kernels, target, toolchain)
