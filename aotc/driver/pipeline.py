# SPDX-License-Identifier: Apache-2.0
"""The one road from a graph module to a library, and the stops on it.

work = Compilation(module, target, "net", PassContext(3))
work.graph                           # the module of fused functions
work.calls, work.programs            # calls of kernels; these with memory planned, divided among threads
work.project(Path("build/net"))      # C sources on disk
work.library().session()             # compiled by the C compiler

Each stop is made from the one before when it is first asked for, and kept.
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
#: The machine whose layouts all graphs get that are to give equal bits: its blocks of weights fit shorter vectors, too.
GRAPHS: Final = in_order(X86_64_V4)
#: Told the name of each stage as it begins.
Progress = Callable[[str], None]


class Tilings(Protocol):
    """Says which tiling a contraction takes (see `aotc.tir.schedule.contraction.tiling_choice`), None for the
    cheapest by estimate.  Two that have one digest give the same answers.
    """

    @property
    def digest(self) -> str: ...

    def __call__(self, site: Site) -> str | None: ...


@frozen
class CompiledModel:
    """An emitted project.  `library` is the shared library, None where only sources were asked for.

    target      what it was compiled for
    emulated    whether it is for a GPU that this machine's processor emulates
    unchecked   where the C compiler was to be checked, what of its work was not, and why
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
        """The library; AotcError (code "no-library") where there is none."""
        if self.library is None:
            raise AotcError(
                "no-library", f"{self.path} holds sources but no library", hint="compile without --no-build"
            )
        return self.library

    def session(self, threads: int = 1, device: int | None = None) -> Session:
        """The library, loaded; `threads` share the work of a run, or GPU number `device` does it.

        AotcError (code "no-library") for a static one.
        """
        if self.target.bare:
            hint = "compile without the profile bare, for --target c or host, to run the model here"
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
    """A typed graph module on its way to a library.

    name       prefix of every C symbol
    context    under which all passes run
    threads    make kernels that threads can share, for targets that run several
    cache      take kernels and objects that were made before from the user's cache
    tilings    of contractions
    toolchain  the C compiler; the machine's for None
    progress   told the name of each stage as it begins
    checked    check what the C compiler makes of the kernels of a library (see `aotc.driver.compiler_check`)
    emulated   make kernels for GPUs so that this machine's processor runs them
    budgets    what a project, or its library, may take of a machine
    selftest   a project for no operating system tests itself on known values
    single_file    one source and one header for it
    overwrite      replace files of others in the directory of the project (see `aotc.driver.output_folder`)
    cflags         flags of the C compiler that the build files of the project put after those of the target

    The configuration of the context decides as well: `compile.threads` 0 and `compile.cache` false switch these off,
    `compile.tuning` false leaves the user's records of tilings alone, `compile.accuracy` is one of `ACCURACIES`.

    Each stop raises AotcError for what it cannot express, and for a context without the passes that it needs.
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
        """One of `ACCURACIES`."""
        return str(self.context.get_config("compile.accuracy", ACCURACIES[0]))

    @property
    def uses_cache(self) -> bool:
        """Whether kernels and objects come from the user's cache."""
        return self.cache and bool(self.context.get_config("compile.cache", True))

    @contextmanager
    def running(self) -> Iterator[None]:
        """What all work for this compilation is done in: kernels that are remembered, tilings that are known, and
        failures that are kept as files.
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
        """`running`, under the pass context."""
        with self.running(), ExitStack() as stack:
            if PassContext.current() is not self.context:
                stack.enter_context(self.context)
            stack.enter_context(spending())
            yield

    @cached_property
    def machine(self) -> Target:
        """The target, of several instruction sets with those only that make kernels of this graph other ones."""
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
        """The instruction sets of a multi-versioned target, else the target."""
        return self.machine.versions or (self.machine,)

    @property
    def here(self) -> int:
        """The number of the best version that this machine runs, the first where it runs none."""
        return _best(self.versions)

    @cached_property
    def graph(self) -> IRModule:
        """The module after the passes of the context's level."""
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
        """For each version the calls of its kernels, where every tensor has memory of its own."""
        with self._passing():
            require_lowering(self.context)
            graph = self.graph
            self.progress(LOWERING)
            return tuple(called(lower_calls(graph, one, self.name)) for one in self.versions)

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """For each version everything that is printed as C: kernels, their schedule, the memory plan."""
        with self._passing():
            calls = self.calls
            self.progress(PLANNING)
            shared = self.threads and bool(self.context.get_config("compile.threads", 1))
            return tuple(scheduled(p, one, shared) for p, one in zip(calls, self.versions, strict=True))

    @cached_property
    def numerics(self) -> tuple[str, ...]:
        """For each version a name of what decides its bits (`aotc.tir.plan.numerics_id`).

        Reproducible ones have the name of what is computed without vectors, which every target gives the bits of.
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
        """The C project in a directory, for None in a temporary one; a failure leaves nothing."""
        return self._written(output, None)

    def library(self, output: Path | None = None) -> CompiledModel:
        """As `project`, with the library that the C compiler makes of it."""
        return self._written(output, self._compiler())

    def _written(self, output: Path | None, toolchain: Toolchain | None) -> CompiledModel:
        temporary = ScratchDirectory("aotc-") if output is None else None
        path = Path(temporary.name) / self.name if temporary is not None else Path(output or ".")
        with self.running():
            # complains before work is done
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
        """AotcError (code "over-budget") for a project that takes more than it may."""
        if not self.budgets:
            return
        if "footprint" not in metadata:
            text = f"target {self.target.name} has no budgets of ram, flash and stack"
            raise AotcError("over-budget", text, hint="leave them out")
        facts = metadata["footprint"]
        self.budgets.check(self.programs[0], facts, partial(_ways, self, facts, toolchain))

    def _emitted(self, work: Path) -> dict[str, Any]:
        """The project in an empty directory, and its metadata."""
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
        """A library with a kernel for each function, under its name.

        functions    of static types, each a fused function, one call of an operator, or a function that the user's
                     code computes; tuples in their types are flattened: a kernel takes and gives tensors
        """
        with self.running(), spending(self.context.config):
            target = _own(self.target)
            kernels = {name: self.vectorized(lower_kernel(f, target)) for name, f in functions.items()}
        return self.compile_kernels(kernels)

    def compile_kernels(self, kernels: Mapping[str, Kernel]) -> KernelLibrary:
        """A library of kernels as they are."""
        with self.running():
            return compile_table(kernels, _own(self.target), self._compiler() if kernels else None)

    def vectorized(self, kernel: Kernel) -> Kernel:
        """A kernel of `calls` through the passes that it goes through in `programs`."""
        for item in kernel_passes(_own(self.target)):
            kernel = item.kernel(kernel) if self.context.pass_enabled(item.info) else kernel
        return kernel


def _domains(c: Compilation) -> dict[str, Domain]:
    """The values that suit the inputs, by name, as far as known; none for integers that stand for real numbers."""
    before, after = ({p.name: p.checked_type for p in m.main.params} for m in (c.module, c.graph))
    found = input_domains(c.module.main)
    return {name: domain for name, domain in found.items() if after.get(name) == before[name]}


def _with_values(c: Compilation, work: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a project with the values that suit each input and the sizes of its parts, also in its file."""
    if found := _domains(c):
        described = {name: {"values": domain.described} for name, domain in found.items()}
        metadata["inputs"] = [row | described.get(row["name"], {}) for row in metadata["inputs"]]
    metadata["sizes"] = weight_sizes(c.module, c.graph, c.machine, c.programs[0], metadata["weights_bytes"])
    write_metadata(work, metadata)
    return metadata


def _measure(metadata: dict[str, Any], library: Path, toolchain: Toolchain) -> None:
    """Note what the compiler's tools say of a library: the bytes of its code, and what it calls of others."""
    if "footprint" in metadata and (code := measured_code(library, toolchain)) is not None:
        metadata["footprint"] |= {"code": code, "code_measured": True}
    if "links" in metadata:
        metadata["links"]["undefined"] = undefined_symbols(library, toolchain)


def footprint(c: Compilation) -> dict[str, Any] | None:
    """What a project takes of a machine without an operating system, code estimated; None for other machines."""
    return bare_footprint(c.programs[0], c.machine) if c.machine.bare else None


def _ways(c: Compilation, facts: Mapping[str, Any], toolchain: Toolchain | None, name: str) -> list[Way]:
    """What would take less of "ram", "flash" or "stack": each change is made, and measured as the project was."""

    def taken(change: Change) -> int | None:
        """What the model takes with a change; None where it cannot be made."""
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
    """Bytes that a project takes of a budget."""
    return sum(facts[key] for key in COUNTED[name])


def _changed(c: Compilation, change: Change) -> Compilation:
    """The compilation with a change, which may take any memory."""
    ctx = c.context
    context = PassContext(ctx.opt_level, ctx.required_pass, ctx.disabled_pass, None, {**ctx.config, **change.config})
    target = for_environment(c.target, change.environment) if change.environment else c.target
    target = for_size(target) if change.size else target
    tested, any_size = c.selftest and change.selftest, Budgets(flash=sys.maxsize)
    made = replace(c, context=context, target=target, selftest=tested, budgets=any_size)
    return replace(made, checked=False, progress=lambda _: None)


def _with_stack(target: Target, size: int) -> Target:
    """The target whose kernels may have so many bytes of arrays on the stack; AotcError (code "config") for none."""
    if size < 0:
        raise AotcError("config", f"compile.stack_bytes must be a number of bytes, not {size}")
    versions = tuple(_with_stack(version, size) for version in target.versions)
    return replace(target, budget=replace(target.budget, stack_bytes=size), versions=versions)


def _device_compiler(c: Compilation) -> DeviceCompiler | None:
    """What makes code for GPUs, if the target has one."""
    if c.target.gpu is None:
        return None
    return EMULATOR if c.emulated else find_nvrtc(default_cache() if c.uses_cache else None, strict=False)


def _best(versions: Sequence[Target]) -> int:
    """The number of the best version that this machine runs, the first where it runs none."""
    for k, candidate in enumerate(versions):
        with suppress(AotcError):
            require_cpu(candidate)
            return k
    return 0


def _own(target: Target) -> Target:
    """What kernels by themselves are made for."""
    every = target.versions or (target,)
    return every[_best(every)]


# --- libraries of kernels


def _info(kernel: Kernel) -> KernelInfo:
    """What a kernel takes, as flat memory."""

    inputs, outputs = (
        tuple(TensorInfo(b.name, [b.size], b.dtype) for b in buffers) for buffers in (kernel.inputs, kernel.outputs)
    )
    return KernelInfo(inputs, outputs, tuple(b.nbytes for b in kernel.workspace))


def compile_table(kernels: Mapping[str, Kernel], target: Target, toolchain: Toolchain | None = None) -> KernelLibrary:
    """The library of kernels by name.

    toolchain    the C compiler; the one of the machine for None
    """
    folder = ScratchDirectory("aotc-kernels-")
    path = Path(folder.name)
    if kernels:
        require_cpu(target)
        metadata = emit_kernels(list(kernels.values()), path, target)
        path = build_library(path, metadata, toolchain or find_toolchain(target=target), target)
    return KernelLibrary(path, {name: _info(kernel) for name, kernel in kernels.items()}, folder)


def check_table(kernels: Sequence[Kernel], target: Target, toolchain: Toolchain) -> None:
    """AotcError (code "compiler-check") where the C compiler makes something else of kernels than at -O0."""
    with temporary_folder("aotc-check-") as folder:
        metadata = emit_kernels(kernels, Path(folder), target)
        check_kernels(Path(folder), metadata, kernels, target, toolchain)
