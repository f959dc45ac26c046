# SPDX-License-Identifier: Apache-2.0
"""The compilation pipeline: optimize a graph module, lower it to kernels, emit the project and
build the library.

work = Compilation(module, target, "net", PassContext(3))
work.graph                           # the module of fused functions
work.lowered_programs, work.scheduled_programs    # calls of kernels; these with memory planned, divided among threads
work.emit_project(Path("build/net"))  # C sources on disk
work.emit_project_and_build_library().session()  # compiled by the C compiler

Each stage is computed from the previous one on first access and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from aotc_codegen.c.bare_metal_project import bare_metal_footprint, emit_bare_metal_project
from aotc_codegen.c.host_project import emit_host_project
from aotc_codegen.c.project_metadata import write_metadata_file
from aotc_codegen.cuda.cuda_project import emit_cuda_project, print_cuda_kernels_and_source

from aotc.driver.accuracy_and_precision import (
    accuracy_of_context,
    precision_metadata,
    target_for_accuracy_and_precision,
)
from aotc.driver.compile_sources import build_project_library, record_library_checksum
from aotc.driver.cuda_emulation import EMULATOR_DEVICE_COMPILER, run_models_on_fake_gpu
from aotc.driver.detect_c_compiler_miscompilation import check_c_compiler_on_project
from aotc.driver.failure_replay import write_report_on_internal_error
from aotc.driver.memory_budgets import UNLIMITED_BUDGETS, Budgets, record_code_size_and_symbols
from aotc.driver.memory_savings import measure_memory_savings
from aotc.driver.nvrtc import DeviceCompiler, find_nvrtc_compiler
from aotc.driver.object_cache import digest_of_aotc_python_code, sha256_of_parts, user_object_cache
from aotc.driver.output_folder import stage_output_files
from aotc.driver.pass_observers import PassList
from aotc.driver.selftest_data import draw_selftest_inputs_and_outputs
from aotc.driver.size_tiers import SizeTiers
from aotc.driver.toolchain import Toolchain, best_runnable_version, find_toolchain, index_of_best_runnable_version
from aotc.driver.tuning_store import RecordedTilings
from aotc.driver.weight_bytes_by_cause import project_weight_bytes_by_cause
from aotc.ir import (
    AotcError,
    PassContext,
    frozen,
    memoize_results_in_store,
    option_text,
    running_or_new_budget_scope,
    temporarily_set_context_variable,
    use_typical_sizes,
)
from aotc.ir.garbage_collection import collect_garbage_rarely
from aotc.relay.backend.function_to_kernel import diagnose_dynamic_inputs
from aotc.relay.backend.kernel_deduplication import lower_function_to_kernel
from aotc.relay.backend.module_to_program import lower_main_to_program
from aotc.relay.backend.run_time_sizes import typical_values_of_symbols
from aotc.relay.graph_api import Function, IRModule, infer_module, post_order
from aotc.relay.op.infer_valid_model_input_values import infer_input_domains
from aotc.relay.state_pair import StatePair
from aotc.relay.transform.append_to_state import append_to_states
from aotc.relay.transform.pack_constant_weights import types_of_contraction
from aotc.relay.transform.pipeline import optimize, require_lowering_passes
from aotc.relay.transform.split_state import split_states
from aotc.relay.valid_input_values_and_random_arrays import ValueDomain
from aotc.runtime.fork_safety import ScratchDirectory
from aotc.tir import (
    X86_64_V4,
    C,
    Kernel,
    Program,
    Target,
    eliminate_copies_pass,
    kernel_passes,
    run_tensor_passes,
    target_with_fixed_summation_order,
)
from aotc.tir.bare_metal_portable_and_small_targets import target_with_stack_array_limit
from aotc.tir.plan.copy_elimination import eliminate_copies
from aotc.tir.plan.numerics_fingerprint import numerics_fingerprint
from aotc.tir.schedule.contraction.tiling_choice import TilingSite, use_tiling_chooser

if TYPE_CHECKING:
    from aotc.runtime.kernel_library import KernelLibrary
    from aotc.runtime.session import Session

IMPORTING, OPTIMIZING, LOWERING = "importing the model", "optimizing the graph", "lowering to kernels"
#: The stages of a compilation.
PLANNING, WRITING, BUILDING = "running tensor passes", "writing the C project", "compiling the C project"
CHECKING_COMPILER = "checking the C compiler"
COMPILING_DEVICE = "compiling kernels for GPUs"
#: Target whose weight layouts all reproducible graphs use: its blocks also fit shorter vectors.
REPRODUCIBLE_GRAPH_TARGET: Final = target_with_fixed_summation_order(X86_64_V4)
#: Function called with the name of each stage when it begins.
Progress = Callable[[str], None]


class Tilings(Protocol):
    """Chooses the tiling of a contraction (see `aotc.tir.schedule.contraction.tiling_choice`).

    Called with a `TilingSite`, returns a tiling, or None for the tiling with the least estimated
    cost. Choosers with equal `digest` make equal choices.
    """

    @property
    def digest(self) -> str: ...

    def __call__(self, site: TilingSite) -> str | None: ...


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
            hint = "compile without " + option_text("build", False)
            raise AotcError("no-library", f"{self.path} holds sources but no library", hint=hint)
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
        from aotc.runtime.session import load

        with run_models_on_fake_gpu() if self.emulated else nullcontext():
            session = load(self.built, threads=threads, device=device)
        session.keep_alive = self.temporary
        return session


_CURRENT_COMPILATION: Final[ContextVar[object]] = ContextVar("aotc_compilation", default=None)


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
    checked    compare the kernels of a library with -O0 (see `aotc.driver.detect_c_compiler_miscompilation`)
    emulated   compile GPU kernels for this machine's CPU
    budgets    upper bounds on RAM, flash and stack
    selftest   bare-metal only: emit a self-test with stored inputs and outputs
    single_file    bare-metal only: emit one source and one header
    separate_weights    emit the parameters as a file whose address each run gets
    overwrite      replace foreign files in the output directory (see `aotc.driver.output_folder`)
    cflags         C compiler flags that the build files of the project add after the target's
    state          inputs and outputs that the model keeps between runs
    typical_sizes  for sizes that are known at run time only, by name: the size of a typical run, as far as known
    tiers          parts of the sizes, each of which has code of its own; `module` is the model for the typical one

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
    budgets: Budgets = UNLIMITED_BUDGETS
    selftest: bool = False
    single_file: bool = False
    separate_weights: bool = False
    overwrite: bool = False
    cflags: tuple[str, ...] = ()
    state: tuple[StatePair, ...] = ()
    typical_sizes: Mapping[str, int] = field(default_factory=dict)
    tiers: SizeTiers | None = None
    _tier_compilations: tuple[Compilation, ...] = field(default=(), init=False, repr=False)
    #: The module with each state split into the parts that its operators use, and their pairs.
    _module_and_state_parts: tuple[IRModule, tuple[StatePair, ...]] = field(init=False, repr=False)
    _passes: PassList = field(default_factory=PassList, init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.selftest or self.single_file) and not self.target.bare:
            text = f"projects for {self.target.name} have neither a self-test nor a single source"
            hint = "take " + option_text("environment", "bare") + ", or the target of a microcontroller"
            raise AotcError("target", text, hint=hint)
        if self.separate_weights and (self.selftest or self.target.gpu is not None):
            text = f"the parameters of projects for {self.target.name} cannot be a file of their own"
            text = "a self-test keeps its values with the parameters in the library" if self.selftest else text
            raise AotcError("target", text, hint="leave " + option_text("separate_weights") + " out")
        if self.context.get_config("compile.workspace_io", False) and (self.target.versions or self.target.gpu):
            text = f"inputs and outputs have no one place in the workspaces of {self.target.name}"
            hint = "take a target of one instruction set, or leave " + option_text("workspace_io") + " out"
            raise AotcError("target", text, hint=hint)
        if (arrays := self.context.get_config("compile.stack_bytes")) is not None:
            object.__setattr__(self, "target", target_with_stack_array_limit(self.target, arrays))
        if self.target.gpu is not None and (growing := [pair for pair in self.state if pair.growth is not None]):
            text = f"code for {self.target.name} keeps no state that grows: "
            text += option_text("state", {pair.past: pair.present for pair in growing})
            hint = "leave it out of " + option_text("state") + ", as inputs and outputs may stay on the GPU, or "
            hint += "compile for a processor, for example with " + option_text("target", "host")
            raise AotcError("target", text, hint=hint)
        parts: tuple[IRModule, tuple[StatePair, ...]] = (self.module, ())
        if self.state:
            parts = split_states(append_to_states(infer_module(self.module), self.state), self.state)
        object.__setattr__(self, "_module_and_state_parts", parts)
        object.__setattr__(self, "target", target_for_accuracy_and_precision(self.target, self.context))
        if (tiers := self.tiers) is not None:
            pairs = tiers.modules_and_typical_sizes
            of_tiers = tuple(replace(self, module=module, tiers=None, typical_sizes=s) for module, s in pairs)
            object.__setattr__(self, "_tier_compilations", of_tiers)
            object.__setattr__(self, "_passes", _typical_tier(self)._passes)

    @property
    def accuracy(self) -> str:
        """Accuracy of the compiled model: "fast", "strict" or "reproducible", from the
        configuration key `compile.accuracy`.
        """
        return accuracy_of_context(self.context)

    @property
    def uses_kernel_and_object_cache(self) -> bool:
        """Return True if kernels and object files come from the user's cache."""
        return self.cache and bool(self.context.get_config("compile.cache", True))

    @contextmanager
    def activate_cache_tilings_and_reports(self) -> Iterator[None]:
        """Context manager for all work of this compilation: enables the kernel cache, the chosen
        tilings and failure reports.
        """
        if _CURRENT_COMPILATION.get() is self:
            yield
            return
        result_cache = user_object_cache() if self.uses_kernel_and_object_cache else None
        tilings = self.tilings or RecordedTilings(None if self.context.get_config("compile.tuning", True) else False)
        salt = sha256_of_parts(digest_of_aotc_python_code(), tilings.digest) if result_cache is not None else ""
        with (
            collect_garbage_rarely(),
            temporarily_set_context_variable(_CURRENT_COMPILATION, self),
            write_report_on_internal_error(),
            use_tiling_chooser(tilings),
            use_typical_sizes(typical_values_of_symbols(self.module, self.typical_sizes)),
            memoize_results_in_store(result_cache, salt),
        ):
            yield
        if result_cache is not None and result_cache.misses:
            result_cache.trim_cache_if_enough_was_added()

    @contextmanager
    def _activate_pass_context(self) -> Iterator[None]:
        """Context manager: run passes under the pass context, kernel cache and failure reports of this compilation."""
        with self.activate_cache_tilings_and_reports(), ExitStack() as stack:
            if PassContext.current() is not self.context:
                stack.enter_context(self.context)
            stack.enter_context(running_or_new_budget_scope())
            yield

    @cached_property
    def target_without_duplicate_versions(self) -> Target:
        """The target, without instruction sets whose kernels would equal those of another one for
        this graph.
        """
        if not self.target.versions:
            return self.target
        functions = self.optimized_graph.functions.values()
        nodes = chain.from_iterable(map(post_order, functions))
        products = {types for node in nodes if (types := types_of_contraction(node)) is not None}
        distinct_versions = (
            version
            for version in self.target.versions
            if not version.has_integer_dot_instruction
            or any(version.micro_kernel_for_types(*types) is not None for types in products)
        )
        return replace(self.target, versions=tuple(distinct_versions))

    @property
    def target_versions(self) -> tuple[Target, ...]:
        """The instruction sets of a multi-versioned target as a tuple of targets; otherwise the
        target alone.
        """
        return self.target_without_duplicate_versions.versions or (self.target_without_duplicate_versions,)

    @property
    def index_of_best_runnable_version(self) -> int:
        """The index of the best instruction set, among the compiled versions, that this machine can
        run; 0 if none.
        """
        return index_of_best_runnable_version(self.target_versions)

    @cached_property
    def optimized_graph(self) -> IRModule:
        """The graph module of fused functions after all passes; that of the typical tier if there are several."""
        if self.tiers is not None:
            with self.tiers.use_layouts_of_tier(self.tiers.typical):
                return _typical_tier(self).optimized_graph
        with self._activate_pass_context(), self.context.temporarily_add_instrument(self._passes):
            self.progress(OPTIMIZING)
            try:
                module, _ = self._module_and_state_parts
                return optimize(module, REPRODUCIBLE_GRAPH_TARGET if self.target.ordered else self.target)
            except AotcError as error:
                if dynamic := diagnose_dynamic_inputs(self.module.main):
                    raise AotcError.collect([*dynamic, *error.diagnostics]) from error
                raise

    @cached_property
    def lowered_programs(self) -> tuple[Program, ...]:
        """For each target version, the kernel calls of the model, before memory planning: every
        tensor has its own memory.
        """
        if self.tiers is not None:
            return self.tiers.join_programs(lambda k: self._tier_compilations[k].lowered_programs)
        with self._activate_pass_context():
            require_lowering_passes(self.context)
            graph = self.optimized_graph
            self.progress(LOWERING)
            return tuple(
                eliminate_copies_pass(
                    lower_main_to_program(
                        graph, version, self.name, self._module_and_state_parts[1], self.typical_sizes
                    ),
                    version,
                )
                for version in self.target_versions
            )

    @cached_property
    def scheduled_programs(self) -> tuple[Program, ...]:
        """For each version, the complete program to print as C: kernels, their schedule and the
        memory plan.
        """
        if self.tiers is not None:
            return self.tiers.join_programs(lambda k: self._tier_compilations[k].scheduled_programs)
        with self._activate_pass_context():
            calls = self.lowered_programs
            self.progress(PLANNING)
            shared = self.threads and bool(self.context.get_config("compile.threads", 1))
            return tuple(
                run_tensor_passes(p, version, shared) for p, version in zip(calls, self.target_versions, strict=True)
            )

    @cached_property
    def numerics_id_per_target_version(self) -> tuple[str, ...]:
        """For each version, an identifier of everything that determines its result bits
        (`aotc.tir.plan.numerics_fingerprint`).

        With accuracy "reproducible", all versions have the identifier of the scalar program,
        because every target gives the bits of that program.
        """
        if self.tiers is not None:
            # computed before each tier is asked for its identifiers, so that tiers agree on layouts of weights
            _ = self.scheduled_programs
            ids = zip(*(c.numerics_id_per_target_version for c in self._tier_compilations), strict=True)
            return tuple(sha256_of_parts(*of_tiers)[:16] for of_tiers in ids)
        if not self.target.ordered:
            return tuple(map(numerics_fingerprint, self.scheduled_programs))
        graph, pairs = self.optimized_graph, self._module_and_state_parts[1]
        ordered = target_with_fixed_summation_order(C)
        with self.activate_cache_tilings_and_reports(), running_or_new_budget_scope(self.context.config):
            program = eliminate_copies(lower_main_to_program(graph, ordered, self.name, pairs, self.typical_sizes))
            for item in kernel_passes(ordered):
                program = item.run(program, self.context)
            return (numerics_fingerprint(program),) * len(self.target_versions)

    def emit_project(self, output: Path | None = None) -> CompiledModel:
        """Emit the C or CUDA project to a directory, or to a temporary one for None; on failure
        nothing is left.
        """
        return self._emit_and_optionally_build_project(output, None)

    def emit_project_and_build_library(self, output: Path | None = None) -> CompiledModel:
        """Emit the C project as `emit_project` does, and build its library with the C compiler."""
        return self._emit_and_optionally_build_project(output, self._find_c_toolchain())

    def _emit_and_optionally_build_project(self, output: Path | None, toolchain: Toolchain | None) -> CompiledModel:
        temporary = ScratchDirectory("aotc-") if output is None else None
        path = Path(temporary.name) / self.name if temporary is not None else Path(output or ".")
        with self.activate_cache_tilings_and_reports():
            # raise early, before any work is done
            _device_compiler_or_none(self)
            _ = self.scheduled_programs
            checksums: dict[str, str] = {}
            with stage_output_files(path, self.overwrite, checksums) as work:
                metadata = _record_domains_and_weight_sizes(self, work, self._emit_project_sources(work))
                library, unchecked = None, []
                if toolchain is not None:
                    self.progress(BUILDING)
                    library = build_project_library(work, metadata, toolchain, self.target_without_duplicate_versions)
                    metadata["library"] = library.relative_to(work).as_posix()
                    if self.checked:
                        self.progress(CHECKING_COMPILER)
                        unchecked = check_c_compiler_on_project(
                            work, metadata, self.scheduled_programs, toolchain, self.target_without_duplicate_versions
                        )
                if library is not None and toolchain is not None:
                    record_code_size_and_symbols(metadata, library, toolchain)
                    metadata["sizes"]["library"] = library.stat().st_size
                self._check_memory_budgets(metadata, toolchain)
                if library is not None:
                    record_library_checksum(work, metadata, library)
                checksums.update(metadata["sha256"])
        left, library_path = tuple(unchecked), path / library.relative_to(work) if library else None
        return CompiledModel(
            path, library_path, metadata, self.target_without_duplicate_versions, temporary, self.emulated, left
        )

    def _check_memory_budgets(self, metadata: dict[str, Any], toolchain: Toolchain | None) -> None:
        """Raise AotcError (code "over-budget") if the project exceeds a budget."""
        if not self.budgets:
            return
        if "footprint" not in metadata:
            text = f"target {self.target.name} has no budgets of ram, flash and stack"
            raise AotcError("over-budget", text, hint="leave them out")
        facts = metadata["footprint"]
        self.budgets.check_within_memory_budgets(
            self.scheduled_programs[0], facts, partial(measure_memory_savings, self, facts, toolchain)
        )

    def _emit_project_sources(self, empty_folder: Path) -> dict[str, Any]:
        """Emit the project into an empty directory; return its metadata."""
        first, *other_programs = self.scheduled_programs
        facts: dict[str, Any] = {
            "target": self.target_without_duplicate_versions,
            "accuracy": self.accuracy,
            "passes": self._passes.names,
            "cflags": self.cflags,
        }
        separate = {"separate_weights": self.separate_weights}
        compiler = _device_compiler_or_none(self)
        if compiler is None:
            self.progress(WRITING)
            if self.target_without_duplicate_versions.bare:
                known = (
                    draw_selftest_inputs_and_outputs(
                        self.optimized_graph,
                        _value_domains_of_unconverted_inputs(self),
                        self._module_and_state_parts[1],
                        {s.name: first.typical_shape(s) for s in first.inputs if s.dims is not None},
                    )
                    if self.selftest
                    else None
                )
                facts |= {"golden": known, "single_file": self.single_file, **separate}
                return emit_bare_metal_project(
                    first, empty_folder, numerics=self.numerics_id_per_target_version[0], **facts
                )
            facts |= {"other_programs": other_programs, "numerics": self.numerics_id_per_target_version, **separate}
            return emit_host_project(first, empty_folder, **facts)
        self.progress(COMPILING_DEVICE)
        printed, text = print_cuda_kernels_and_source(first, self.target)
        images = compiler.images(text, compiler.requested_or_supported_architectures(self.target.gpu))
        self.progress(WRITING)
        return emit_cuda_project(
            first,
            printed,
            text,
            images,
            empty_folder,
            least_driver=compiler.least_driver,
            numerics=self.numerics_id_per_target_version[0],
            **facts,
        )

    def _find_c_toolchain(self) -> Toolchain:
        return self.toolchain or find_toolchain(cache=self.uses_kernel_and_object_cache, target=self.target)

    # --- kernels without their schedule

    def compile_functions(self, functions: Mapping[str, Function]) -> KernelLibrary:
        """Compile each function to a kernel; return a library of the kernels under the names of the
        functions.

        functions    of static types; each a fused function, one operator call, or a function that the user's
                     code computes.  Tuples in the types are flattened: kernels read and write tensors
        """
        with self.activate_cache_tilings_and_reports(), running_or_new_budget_scope(self.context.config):
            target = best_runnable_version(self.target)
            kernels = {
                name: self.apply_kernel_passes(lower_function_to_kernel(f, target)) for name, f in functions.items()
            }
        return self.compile_kernels(kernels)

    def compile_kernels(self, kernels: Mapping[str, Kernel]) -> KernelLibrary:
        """Compile kernels to a shared library without running further passes on them; return the library."""
        from aotc.driver.kernel_libraries import compile_kernel_library

        with self.activate_cache_tilings_and_reports():
            return compile_kernel_library(
                kernels, best_runnable_version(self.target), self._find_c_toolchain() if kernels else None
            )

    def apply_kernel_passes(self, kernel: Kernel) -> Kernel:
        """Apply the passes that turn a kernel of `lowered_programs` into a kernel of
        `scheduled_programs`; return the result.
        """
        for item in kernel_passes(best_runnable_version(self.target)):
            kernel = item.rewrite_kernel(kernel) if self.context.pass_enabled(item.info) else kernel
        return kernel


def _typical_tier(c: Compilation) -> Compilation:
    """Return the compilation of the tier that runs with the typical sizes; the compilation itself without tiers."""
    return c if c.tiers is None else c._tier_compilations[c.tiers.typical]


def _value_domains_of_unconverted_inputs(c: Compilation) -> dict[str, ValueDomain]:
    """Return the ranges of values that suit each model input, by name, as far as known.

    Inputs that the compiler changed to quantized integers are left out.
    """
    module = _typical_tier(c).module
    before, after = ({p.name: p.checked_type for p in m.main.params} for m in (module, c.optimized_graph))
    domains = infer_input_domains(c.module.main)
    return {name: domain for name, domain in domains.items() if after.get(name) == before[name]}


def _record_domains_and_weight_sizes(c: Compilation, project_folder: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """Add the suitable values of inputs, the sizes of weights and the precision to a project's
    metadata; rewrite its file.
    """
    if domains := _value_domains_of_unconverted_inputs(c):
        described = {name: {"values": domain.to_json_fields} for name, domain in domains.items()}
        metadata["inputs"] = [row | described.get(row["name"], {}) for row in metadata["inputs"]]
    metadata |= precision_metadata(c.optimized_graph, c.context, metadata["error_bound"])
    metadata["sizes"] = project_weight_bytes_by_cause(
        _typical_tier(c).module,
        c.optimized_graph,
        c.target_without_duplicate_versions,
        c.scheduled_programs[0],
        metadata["weights_bytes"],
    )
    write_metadata_file(project_folder, metadata)
    return metadata


def bare_metal_footprint_or_none(c: Compilation) -> dict[str, Any] | None:
    """Return the memory needed by a bare-metal project, with estimated code size; None for other
    targets.
    """
    return (
        bare_metal_footprint(c.scheduled_programs[0], c.target_without_duplicate_versions)
        if c.target_without_duplicate_versions.bare
        else None
    )


def _device_compiler_or_none(c: Compilation) -> DeviceCompiler | None:
    """Return the compiler of GPU code; None if the target has no GPU."""
    if c.target.gpu is None:
        return None
    return (
        EMULATOR_DEVICE_COMPILER
        if c.emulated
        else find_nvrtc_compiler(user_object_cache() if c.uses_kernel_and_object_cache else None, strict=False)
    )
