# SPDX-License-Identifier: Apache-2.0
"""Options and entry point of the compiler: a model in any supported form in, a C or CUDA project
and its library out.

model = compile("net.onnx", output="build/net", dims={"batch": 1})
model.session().run(None, {"input": array})
work = CompileOptions(target="x86-64-v3").start_compilation("net.onnx")  # to stop on the way: work.scheduled_programs
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias

from aotc_codegen.c.c_identifiers import c_model_identifier

from aotc.driver.board_memory_map import read_memory_regions
from aotc.driver.import_model import (
    Cut,
    bind_params_as_constants,
    import_model_of_any_format,
    is_exported_program,
    is_tflite_path,
)
from aotc.driver.memory_budgets import Budgets
from aotc.driver.option_types import is_collection_but_not_str_or_mapping, require_option_types
from aotc.driver.output_folder import check_output_folder_is_writable
from aotc.driver.pass_observers import require_known_passes
from aotc.driver.pipeline import ACCURACIES, IMPORTING, Compilation, CompiledModel, Progress, Tilings
from aotc.driver.toolchain import Toolchain, ToolchainFactory, find_toolchain, flags_in_compiler_command, resolve_target
from aotc.driver.tuning_store import RecordedTilings
from aotc.ir import (
    AotcError,
    AotcTypeError,
    Array,
    PassContext,
    budget_scope,
    did_you_mean_hint,
    option_text,
    require_known_name,
)
from aotc.relay.module import IRModule
from aotc.tir.fast_math_check import require_exact_math_flags
from aotc.tir.float_abi import select_float_abi
from aotc.tir.target import Target
from aotc.tir.target_variants import portable_c99_target, target_for_environment, target_optimized_for_size

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

Model: TypeAlias = "str | Path | ModelProto | ExportedProgram | IRModule"


def c_name_of_model(model: object, name: str | None) -> str:
    """Return the C name of a model: `name` if given, else an identifier derived from the model's
    file name.
    """
    if name is not None:
        identifier = c_model_identifier(name)
        if identifier != name:
            text = f"{name!r} will not do as the name of a model in C"
            raise AotcError("name", text, hint=f"for example: {identifier}")
        return name
    return c_model_identifier(Path(model).stem) if isinstance(model, (str, Path)) else "model"


def _is_onnx_model(model: object) -> bool:
    """Return True for a ModelProto, without importing onnx."""
    return hasattr(model, "graph") and hasattr(model, "opset_import")


def _require_positive_dims(dims: Mapping[str, int]) -> None:
    """Raise AotcError (code "dims") naming every symbolic dimension whose value is not an integer
    of at least 1.
    """
    wrong = {k: v for k, v in dims.items() if isinstance(v, bool) or not isinstance(v, Integral) or int(v) < 1}
    if wrong:
        text = ", ".join(f"dimension {symbol!r} has the value {value!r}" for symbol, value in wrong.items())
        hint = "give the number of elements along it, at least 1: a model of empty tensors computes nothing"
        raise AotcError("dims", text, hint=hint)


def _warning_stacklevel_of_outside_caller() -> int:
    """Return the `stacklevel` of a warning of the calling function that shows the line of code which
    called this file.
    """
    frame, level = inspect.currentframe(), 0
    # "<string>" is the file of the generated constructor
    while frame is not None and frame.f_code.co_filename in (__file__, "<string>"):
        frame, level = frame.f_back, level + 1
    return level


def _require_shapes_are_integer_lists(shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise AotcTypeError (code "option-type") unless the shapes of inputs are lists of integers."""
    for name, shape in shapes.items():
        if not (
            is_collection_but_not_str_or_mapping(shape)
            and all(isinstance(size, Integral) and not isinstance(size, bool) for size in shape)
        ):
            hint = "for example: " + option_text("input_shapes", {name: (1, 3, 224, 224)})
            text = f"the shape of input {name!r} must be a list of integers, not {shape!r}"
            raise AotcTypeError("option-type", text, hint=hint)


def target_for_cuda_architectures(target: Target, archs: int | Sequence[int]) -> Target:
    """Return `target` with code generated for the given CUDA compute capabilities (80 for 8.0).

    Raise AotcError (code "cuda-arch") if the target has no GPU, if no architecture is given, if one
    is not an integer, or if a GPU of that capability lacks instructions that the target needs.
    """
    if target.gpu is None:
        text = f"code for {target.name} is not for GPUs: it has no CUDA architectures"
        hint = "leave " + option_text("cuda_arch") + " out, or compile with " + option_text("target", "cuda")
        raise AotcError("cuda-arch", text, hint=hint)
    given = archs if isinstance(archs, Collection) else (archs,)
    if wrong := [arch for arch in given if isinstance(arch, bool) or not isinstance(arch, int)]:
        raise AotcError(
            "cuda-arch",
            f"{wrong[0]!r} is not a GPU architecture",
            hint="give architectures as numbers, for instance [80, 90]",
        )
    chosen = tuple(sorted(set(given)))
    if not chosen:
        hint = "name some, for example " + option_text("cuda_arch", [80, 90])
        hint += ", or leave " + option_text("cuda_arch") + " out for those of the target"
        raise AotcError("cuda-arch", "the list of GPU architectures is empty", hint=hint)
    if chosen[0] < target.gpu.oldest:
        text = f"GPUs of compute capability {chosen[0]} lack instructions that kernels have"
        near = f"did you mean {ten}? " if (ten := 10 * chosen[0]) in target.gpu.architectures else ""
        raise AotcError("cuda-arch", text, hint=f"{near}{target.gpu.oldest} is the oldest supported architecture")
    return replace(target, gpu=replace(target.gpu, architectures=chosen))


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of one compilation: model boundaries, target, accuracy, resources, output and
    observers.

    output        directory of the project; None: a temporary directory, removed with the result
    target        "host", or a name of `aotc.tir.target.TARGETS`
    name          prefix of every C symbol; None: derived from the file name
    params        values for some inputs, by name, which become constants
    opt_level     0 (no graph optimization) to 3
    accuracy      "fast"; "strict": no algorithm that rounds more than the operator's definition or
                  spreads infinities; "reproducible": strict, with equal bits on all targets
                  (docs/accuracy.md); None: the configuration's `compile.accuracy`, else "fast"
    rounding      implementation whose integer results a quantized TFLite model reproduces: "tflm"
                  (TFLite Micro) or "litert"; None: the configuration's `tflite.rounding`, else "tflm"
    disabled_pass names of passes to skip; FuseOps and ExpandOps create the kernels and cannot be skipped
    config        options of passes and compile-time limits (`aotc.ir.compile_time_limits`) by key, as in
                  `PassContext`
    instruments   pass instruments, see `aotc.ir.instrument`
    io_dtype      "int8" or "uint8": change float inputs that are only quantized, and outputs that are
                  dequantized, to integers; or a mapping from names of inputs and outputs to "int8",
                  "uint8" or "float32", where "" stands for all other names
    input_shapes  shapes of inputs with dynamic dimensions, by input name
    dims          values of symbolic dimensions, by name
    cut_before    names of tensors of an ONNX or TFLite model that become inputs; the nodes that compute
                  them are removed
    cut_after     names of tensors that become the outputs; nodes after them are removed
    cc            command of the C compiler (see `find_toolchain`)
    cflags        compiler flags after the default flags, also in the emitted Makefile and CMakeLists.txt
    float_abi     float ABI for Arm microcontrollers: "soft" (no FPU instructions), "softfp" or "hard";
                  None: as in cflags, else the target's
    portable      emit C99 without inline assembly and compiler extensions; results are unchanged
    cc_timeout    time limit of one run of the C compiler in seconds; None: 1800
    build         compile the library, not only the C project
    check_compiler   compile all kernels also at -O0 and compare the results; a difference is an error
    cache         reuse object files from the user's cache (see `aotc.driver.object_cache`)
    tuning        file of tilings recorded by `aotc tune`; None: the user's file, False: no file
    threads       generate kernels whose work can be divided among threads; None: if the target
                  supports threads, True: an error unless it does; `load` sets the number of threads
    cuda_arch     compute capabilities to generate GPU code for (80 for 8.0); None: the target's
    environment   "bare": a static library for programs without an operating system, which calls
                  kernels directly; "hosted": a shared library; None: as the target says
    size          prefer small size: do not enlarge weights to save time, and compile code for
                  microcontrollers with -Os; `metadata["sizes"]` estimates the slowdown
    profile       deprecated name of `environment`
    memories      TOML file of the board's memory regions, replacing the target's (see
                  `aotc.driver.board_memory_map`)
    selftest      bare-metal only: emit a function that runs the model on stored inputs and checks the
                  outputs
    single_file   bare-metal only: emit all code as one source file and one header
    emulated      compile GPU kernels for the CPU of this machine, which runs them very slowly
    workspace_io  place inputs and outputs in the arena, at offsets that the header states
    overwrite     replace files in the output directory that aotc did not write or that were changed
    ram           largest size in bytes of the arena, inputs and outputs
    flash         largest size in bytes of code (measured if a library is built) and parameters
    stack         largest size in bytes of the stack
    progress      function called with the name of each stage when it begins

    Raises AotcError for an unknown level, accuracy, pass, target or configuration key, and for CUDA
    architectures, memory regions or threads that the target does not support.  Exceeding ram, flash
    or stack is an error at the end of the compilation.
    """

    output: str | Path | None = None
    target: str | Target = "host"
    name: str | None = None
    params: Mapping[str, Array] | None = None
    opt_level: int = 3
    accuracy: str | None = None
    rounding: str | None = None
    disabled_pass: Sequence[str] = ()
    config: Mapping[str, Any] | None = None
    instruments: Iterable[Any] = ()
    io_dtype: str | Mapping[str, str] | None = None
    input_shapes: Mapping[str, Sequence[int]] | None = None
    dims: Mapping[str, int] | None = None
    cut_before: Sequence[str] = ()
    cut_after: Sequence[str] = ()
    cc: str | None = None
    cflags: Sequence[str] = ()
    float_abi: str | None = None
    portable: bool = False
    cc_timeout: float | None = None
    build: bool = True
    check_compiler: bool = False
    cache: bool = True
    tuning: str | Path | bool | None = None
    threads: bool | None = None
    cuda_arch: int | Sequence[int] | None = None
    environment: str | None = None
    size: bool = False
    profile: str | None = None
    memories: str | Path | None = None
    selftest: bool = False
    single_file: bool = False
    emulated: bool = False
    workspace_io: bool = False
    overwrite: bool = False
    ram: int | None = None
    flash: int | None = None
    stack: int | None = None
    progress: Progress = lambda _: None
    #: The resolved target, with the options applied.
    machine: Target = field(init=False)

    def __post_init__(self) -> None:
        require_option_types(self)
        machine = resolve_target(self.target)
        if self.profile is not None:
            text = "the option profile is now named environment"
            warnings.warn(text, DeprecationWarning, stacklevel=_warning_stacklevel_of_outside_caller())
        if (environment := self.environment or self.profile) is not None:
            machine = target_for_environment(machine, environment)
        if self.threads and machine.threads is None:
            text = f"kernels for {machine.name} cannot run on several CPU threads"
            raise AotcError("target", text, hint="leave " + option_text("threads") + " out")
        if self.memories is not None:
            if not machine.bare:
                text = "a memory map applies to bare-metal targets only, and "
                text += f"{machine.name} runs under an operating system"
                hint = "leave " + option_text("memories") + " out, or compile with "
                hint += option_text("environment", "bare") + " or for a microcontroller"
                raise AotcError("memories", text, hint=hint)
            least = max(space.align for space in machine.spaces)
            spaces = read_memory_regions(Path(self.memories), least)
            machine = replace(machine, spaces=spaces)
        if self.cuda_arch is not None:
            machine = target_for_cuda_architectures(machine, self.cuda_arch)
        machine = select_float_abi(machine, self.float_abi, (*flags_in_compiler_command(self.cc), *self.cflags))
        if self.portable:
            machine = portable_c99_target(machine)
        require_exact_math_flags(self.cflags)
        object.__setattr__(self, "machine", target_optimized_for_size(machine) if self.size else machine)
        if self.opt_level not in range(4):
            raise AotcError("opt-level", f"opt_level must be 0, 1, 2 or 3, not {self.opt_level}")
        require_known_name("accuracy", "accuracy", self.accuracy_or_default, ACCURACIES)
        require_known_passes(self.disabled_pass)
        if self.check_compiler and not self.build:
            text = "no library is built, so there is nothing of the C compiler's to check"
            hint = option_text("check_compiler", True) + " needs a build: leave "
            raise AotcError("compiler-check", text, hint=hint + option_text("build", False) + " out")
        _require_positive_dims(self.dims or {})
        _require_shapes_are_integer_lists(self.input_shapes or {})
        # raise for invalid values
        self.pass_context()
        _ = self.ram_flash_and_stack_budgets

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any], function: Callable[..., Any] | None = None) -> CompileOptions:
        """Return options from the keywords that a function hands on, besides its own parameters.

        Raise AotcTypeError (code "unknown-option") for a keyword that is no option.
        """
        known = [f.name for f in fields(cls) if f.init]
        own = [] if function is None else [*inspect.signature(function).parameters][:-1]
        for keyword in keywords:
            if keyword not in known:
                hint = did_you_mean_hint(keyword, [*own, *known]) or f"options: {', '.join([*own, *known])}"
                raise AotcTypeError("unknown-option", f"there is no option {keyword!r}", hint=hint)
        return cls(**keywords)

    @property
    def graph_cut(self) -> Cut:
        """Names of the tensors at which the model is cut: its new inputs and outputs."""
        return Cut(tuple(self.cut_before), tuple(self.cut_after))

    @property
    def ram_flash_and_stack_budgets(self) -> Budgets:
        """Upper bounds, in bytes, on the RAM, flash and stack that the compiled model may need."""
        return Budgets(ram=self.ram, flash=self.flash, stack=self.stack)

    def pass_context(self, instruments: Iterable[Any] = ()) -> PassContext:
        """Return the pass context with the optimization level, passes, configuration and
        instruments of these options.
        """
        accuracy = {"compile.accuracy": self.accuracy} if self.accuracy in ACCURACIES[1:] else {}
        edges = {"compile.io_dtype": self.io_dtype} if self.io_dtype else {}
        rounding = {"tflite.rounding": self.rounding} if self.rounding else {}
        ends = {"compile.workspace_io": True} if self.workspace_io else {}
        config = {**(self.config or {}), **accuracy, **edges, **rounding, **ends}
        return PassContext(int(self.opt_level), None, self.disabled_pass, instruments, config)

    @property
    def accuracy_or_default(self) -> str:
        """Return the accuracy from the option or the configuration, "fast" by default.

        Raise AotcError (code "accuracy") if the two disagree.
        """
        return self._option_or_config_value("accuracy", "compile.accuracy", code="accuracy") or ACCURACIES[0]

    @property
    def tflite_rounding_or_default(self) -> str:
        """Return the reference implementation whose integer results a TFLite model reproduces:
        "tflm" (default) or "litert".

        Raise AotcError (code "tflite-rounding") if the option and the configuration disagree.
        """
        return self._option_or_config_value("rounding", "tflite.rounding", code="tflite-rounding") or "tflm"

    def _option_or_config_value(self, option: str, config_key: str, *, code: str) -> str:
        """Return the value of an option, or of configuration key `config_key` if the option is
        unset; AotcError if the two disagree.
        """
        option_value, stated = getattr(self, option), (self.config or {}).get(config_key)
        if option_value and stated and option_value != stated:
            text = f"the {option} is {option_value}, and {config_key} says {stated}"
            raise AotcError(code, text, hint="leave one of them out")
        return str(option_value or stated or "")

    @property
    def toolchain_factory(self) -> ToolchainFactory:
        """Return a picklable factory of the C toolchain for this target or another one; it can be
        sent to another machine.
        """
        cache = self.cache and bool((self.config or {}).get("compile.cache", True))
        given = self.cc, tuple(self.cflags)
        return partial(find_toolchain, *given, cache=cache, seconds=self.cc_timeout, target=self.machine)

    def import_as_graph_module(self, model: Model) -> IRModule:
        """Convert a model in any supported form to a graph module whose parameters are constants."""
        if not (isinstance(model, (str, Path, IRModule)) or is_exported_program(model) or _is_onnx_model(model)):
            kinds = "a path, a ModelProto, an ExportedProgram or an IRModule"
            hint = "torch.export.export(module, example_inputs) exports a module of PyTorch"
            is_module = hasattr(model, "forward")
            text = f"a model is {kinds}, not {type(model).__name__}"
            raise AotcTypeError("model", text, hint=hint if is_module else "")
        if self.rounding and not is_tflite_path(model):
            text = "the rounding is chosen for TFLite models alone; others state their own"
            raise AotcError("tflite-rounding", text, hint="leave " + option_text("rounding") + " out")
        shapes, dims = dict(self.input_shapes or {}), dict(self.dims or {})
        with budget_scope(self.config or {}):
            module = import_model_of_any_format(model, shapes, dims, self.tflite_rounding_or_default, self.graph_cut)
        return bind_params_as_constants(module, self.params)

    def start_compilation(
        self, model: Model, *, toolchain: Toolchain | None = None, tilings: Tilings | None = None
    ) -> Compilation:
        """Import a model and return its `Compilation`, from which graph, kernels, project and
        library can be requested.

        `tilings` replaces the tilings recorded by `aotc tune`.
        """
        recorded = RecordedTilings(self.tuning) if self.tuning is not None else None
        name = c_name_of_model(model, self.name)
        self.progress(IMPORTING)
        return Compilation(
            self.import_as_graph_module(model),
            self.machine,
            name,
            self.pass_context(self.instruments),
            threads=self.threads is not False,
            cache=self.cache,
            tilings=tilings or recorded,
            toolchain=toolchain,
            progress=self.progress,
            checked=self.check_compiler,
            emulated=self.emulated,
            selftest=self.selftest,
            single_file=self.single_file,
            budgets=self.ram_flash_and_stack_budgets,
            overwrite=self.overwrite,
            cflags=tuple(self.cflags),
        )

    def compile_model(self, model: Model) -> CompiledModel:
        """Compile a model: write its project and, if `build` is set, compile the library."""
        output = Path(self.output) if self.output is not None else None
        toolchain = self.toolchain_factory() if self.build else None
        # raise for an invalid name before any work is done
        c_name_of_model(model, self.name)
        if output is not None:
            check_output_folder_is_writable(output, self.overwrite)
        work = self.start_compilation(model, toolchain=toolchain)
        return work.emit_project_and_build_library(output) if self.build else work.emit_project(output)


#: The beginning of the docstring of `compile`; the documentation of `CompileOptions` follows it.
_COMPILE_DOCSTRING_HEAD: Final = """Compile a model to a C project and, with `build`, to a library.

    model         a path or ModelProto of ONNX, a .pt2 file or ExportedProgram of PyTorch, a .tflite file, an IRModule
                  or a .relay file

    Returns a CompiledModel: `path`, the folder of the project; `library`, the path of the library, or None;
    `metadata`, the contents of metadata.json; `session()`, which loads the library.  Raises AotcError for a model,
    option, machine or output folder that cannot be used; then nothing is left behind.  The options are keywords:

"""

_Fields = ParamSpec("_Fields")


def _make_compile_function(
    options_class: Callable[_Fields, CompileOptions],
) -> Callable[Concatenate[Model, _Fields], CompiledModel]:
    """Build the function `compile(model, **fields)` from the class `CompileOptions`: its fields
    become keywords.
    """

    def compile(model: Model, *args: _Fields.args, **keywords: _Fields.kwargs) -> CompiledModel:
        if args:
            hint = "name the option, for example " + option_text("output", "DIR")
            raise AotcTypeError("unknown-option", "options of aotc.compile are keywords", hint=hint)
        return CompileOptions.from_keywords(keywords).compile_model(model)

    compile.__qualname__ = "compile"
    compile.__doc__ = _COMPILE_DOCSTRING_HEAD + "\n\n".join((CompileOptions.__doc__ or "").split("\n\n")[1:])
    compile_signature = inspect.signature(compile)
    keywords = inspect.signature(options_class).parameters.values()
    compile.__signature__ = compile_signature.replace(parameters=[compile_signature.parameters["model"], *keywords])  # type: ignore[attr-defined]
    return compile  # type: ignore[return-value]  # the model can be given by name, too


compile = _make_compile_function(CompileOptions)
