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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

from aotc_codegen.c.c_identifiers import c_model_identifier

from aotc.driver.board_memory_map import read_memory_regions
from aotc.driver.check_option_value_types import is_collection_but_not_str_or_mapping, require_option_types
from aotc.driver.compile_option_fields import CompileOptionFields
from aotc.driver.import_model import (
    Cut,
    bind_params_as_constants,
    changed_buffers_of_exported_program,
    export_pytorch_module,
    functional_exported_program,
    import_input_types,
    import_model_and_state,
    inputs_without_default_values,
    is_exported_program_or_pt2_path,
    is_pytorch_module,
    is_tflite_path,
    ranges_of_growing_states,
)
from aotc.driver.memory_budgets import Budgets
from aotc.driver.output_folder import check_project_can_be_written_to_folder
from aotc.driver.pass_observers import require_known_passes
from aotc.driver.pipeline import IMPORTING, Compilation, CompiledModel, Tilings
from aotc.driver.size_tiers import (
    SizeTiers,
    dims_of_all_tiers,
    dims_of_each_tier,
    import_tiers,
    input_types_without_state,
    module_without_state,
    require_target_supports_tiers,
)
from aotc.driver.state_pairs import input_names_matching_state, resolve_state_pairs
from aotc.driver.toolchain import Toolchain, ToolchainFactory, find_toolchain, flags_in_compiler_command, resolve_target
from aotc.driver.tuning_store import RecordedTilings, require_tuning_store_exists
from aotc.ir import (
    AotcError,
    AotcTypeError,
    Array,
    DimRange,
    DimSpecification,
    PassContext,
    TieredDimSpecification,
    did_you_mean_hint,
    dim_size_range_or_tiers,
    option_text,
    require_known_name,
    running_or_new_budget_scope,
)
from aotc.ir.option_description import ACCURACIES, OPTIONS_WITH_CONFIG_KEY, described_options, options_documentation
from aotc.relay.module import IRModule
from aotc.relay.state_pair import StatePair
from aotc.tir.bare_metal_portable_and_small_targets import (
    portable_c99_target_of_scalar_target,
    target_for_environment,
    target_optimized_for_size,
)
from aotc.tir.float_abi import select_float_abi
from aotc.tir.reject_fast_math_c_flags import reject_result_changing_c_flags
from aotc.tir.target import Target

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import nn
    from torch.export import ExportedProgram

Model: TypeAlias = "str | Path | ModelProto | ExportedProgram | nn.Module | IRModule"


def c_name_of_model(model: object, name: str | None) -> str:
    """Return the C name of a model: `name` if given, else an identifier derived from the model's
    file name.
    """
    if name is not None:
        identifier = c_model_identifier(name)
        if identifier != name:
            text = f"{name!r} cannot be the name of a model: it is no identifier of C that is free"
            raise AotcError("name", text, hint=f"for example: {identifier}")
        return name
    return c_model_identifier(Path(model).stem) if isinstance(model, (str, Path)) else "model"


def _is_onnx_model(model: object) -> bool:
    """Return True for a ModelProto, without importing onnx."""
    return hasattr(model, "graph") and hasattr(model, "opset_import")


def _require_positive_dims(dims: Mapping[str, TieredDimSpecification], shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise AotcError (code "dims") naming every symbolic dimension whose value is neither an integer
    of at least 1 nor a range or a list of these, and every dimension of an input's shape that is less than 1.
    """
    values: dict[str, Any] = {}
    for symbol, given in dims.items():
        value: object = given
        if isinstance(given, (tuple, list, DimRange)) or (isinstance(given, str) and (".." in given or "," in given)):
            try:
                value = dim_size_range_or_tiers(given)
            except ValueError as error:
                hint = ""
                if isinstance(given, tuple) and len(given) != 2:
                    hint = "a list states several sizes: " + option_text("dims", {symbol: [*given]})
                raise AotcError("dims", f"dimension {symbol!r}: {error}", hint=hint) from error
        if isinstance(value, DimRange):
            values |= {f"a tier of dimension {symbol!r}": 0 for tier in value.tiers if tier.most == 0}
        else:
            values[f"dimension {symbol!r}"] = value
    values |= {
        f"dimension {axis} of input {name!r}": d for name, shape in shapes.items() for axis, d in enumerate(shape)
    }
    wrong = {k: v for k, v in values.items() if isinstance(v, bool) or not isinstance(v, Integral) or int(v) < 1}
    if wrong:
        text = ", ".join(f"{dimension} has the value {value!r}" for dimension, value in wrong.items())
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
class CompileOptions(CompileOptionFields):
    """Options of one compilation: model boundaries, target, accuracy, resources, output and
    observers.

    Raises AotcError for an unknown level, accuracy, pass, target or configuration key, and for CUDA
    architectures, memory regions or threads that the target does not support.  Exceeding ram, flash
    or stack is an error at the end of the compilation.
    """

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
            machine = portable_c99_target_of_scalar_target(machine)
        reject_result_changing_c_flags(self.cflags)
        object.__setattr__(self, "machine", target_optimized_for_size(machine) if self.size else machine)
        if self.opt_level not in range(4):
            raise AotcError("opt-level", f"opt_level must be 0, 1, 2 or 3, not {self.opt_level}")
        if self.seed is not None and self.seed not in range(1 << 63):
            raise AotcError("seed", f"seed must be from 0 to 2**63 - 1, not {self.seed}")
        require_known_name("accuracy", "accuracy", self.accuracy_or_default, ACCURACIES)
        require_known_passes(self.disabled_pass)
        if self.check_compiler and not self.build:
            text = "no library is built, so there is nothing of the C compiler's to check"
            hint = option_text("check_compiler", True) + " needs a build: leave "
            raise AotcError("compiler-check", text, hint=hint + option_text("build", False) + " out")
        _require_shapes_are_integer_lists(self.input_shapes or {})
        _require_positive_dims(self.dims or {}, self.input_shapes or {})
        if isinstance(self.tuning, (str, Path)):
            require_tuning_store_exists(Path(self.tuning))
        # raise for invalid values
        self.pass_context()
        _ = self.ram_flash_and_stack_budgets

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any], function: Callable[..., Any] | None = None) -> CompileOptions:
        """Return options from the keywords that a function hands on, besides its own parameters.

        Raise AotcTypeError (code "unknown-option") for a keyword that is no option.
        """
        options = described_options(cls)
        for keyword in keywords:
            if keyword not in options:
                known = dict.fromkeys([*(inspect.signature(function).parameters if function else ()), *options])
                hint = did_you_mean_hint(keyword, [*known]) or f"options: {', '.join(known)}"
                raise AotcTypeError("unknown-option", f"there is no option {keyword!r}", hint=hint)
        return cls(**keywords)

    @property
    def typical_sizes(self) -> dict[str, int]:
        """For dimensions with a range and a typical size, this size by name."""
        ranges = {name: dim_size_range_or_tiers(value) for name, value in (self.dims or {}).items()}
        return {n: r.typical for n, r in ranges.items() if isinstance(r, DimRange) and r.typical is not None}

    @property
    def output_folder(self) -> Path | None:
        """The directory of the project; None for a temporary one."""
        return Path(self.output) if self.output is not None else None

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
        config = {**(self.config or {}), **dict(self._config_entries_of_options())}
        return PassContext(int(self.opt_level), None, self.disabled_pass, instruments, config)

    def _config_entries_of_options(self) -> Iterator[tuple[str, Any]]:
        """Yield configuration keys and values of the options that are not at their defaults and
        are configuration keys, too.
        """
        for keyword, description in OPTIONS_WITH_CONFIG_KEY.items():
            value = getattr(self, keyword)
            value = tuple(value) if is_collection_but_not_str_or_mapping(value) else value
            is_set = value is False or bool(value)
            if is_set and value != description.default and isinstance(value, description.config_type):
                yield description.config_key, value

    @property
    def accuracy_or_default(self) -> str:
        """Return the accuracy from the option or the configuration, "fast" by default.

        Raise AotcError (code "accuracy") if the two disagree.
        """
        return self._option_or_config_value("accuracy", code="accuracy")

    @property
    def tflite_rounding_or_default(self) -> str:
        """Return the reference implementation whose integer results a TFLite model reproduces:
        "tflm" (default) or "litert".

        Raise AotcError (code "tflite-rounding") if the option and the configuration disagree.
        """
        return self._option_or_config_value("rounding", code="tflite-rounding")

    def _option_or_config_value(self, option: str, *, code: str) -> str:
        """Return the value of an option, of its configuration key if the option is unset, or of its
        default; AotcError if option and configuration disagree.
        """
        description = OPTIONS_WITH_CONFIG_KEY[option]
        option_value, stated = getattr(self, option), (self.config or {}).get(description.config_key)
        if option_value and stated and option_value != stated:
            text = f"the {option} is {option_value}, and {description.config_key} says {stated}"
            raise AotcError(code, text, hint="leave one of them out")
        return str(option_value or stated or description.default_text)

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
        return self._import_module_and_state_of_file(model, dims_of_all_tiers(self.dims or {}))[0]

    def _import_module_and_state_of_file(
        self, model: Model, dims: Mapping[str, DimSpecification]
    ) -> tuple[IRModule, tuple[StatePair, ...]]:
        """Convert a model as `import_as_graph_module` does; return the module, and the state that a
        TFLite file states.

        dims    sizes and ranges of dimensions
        """
        if not (
            isinstance(model, (str, Path, IRModule)) or is_exported_program_or_pt2_path(model) or _is_onnx_model(model)
        ):
            kinds = "a path, a ModelProto, an ExportedProgram or an IRModule"
            hint = "torch.export.export(module, example_inputs) exports a module of PyTorch"
            if is_pytorch_module(model):
                hint = "give example inputs, too: aotc.compile(module, (x,))"
            is_module = hasattr(model, "forward")
            text = f"a model is {kinds}, not {type(model).__name__}"
            raise AotcTypeError("model", text, hint=hint if is_module else "")
        if self.rounding and not is_tflite_path(model):
            text = "the rounding is chosen for TFLite models alone; others state their own"
            raise AotcError("tflite-rounding", text, hint="leave " + option_text("rounding") + " out")
        shapes = dict(self.input_shapes or {})
        with running_or_new_budget_scope(self.config or {}):
            module, state = import_model_and_state(
                model,
                shapes,
                dims,
                self.tflite_rounding_or_default,
                self.graph_cut,
                self.machine.gpu is None,
                self.signature,
                self.seed,
            )
        return bind_params_as_constants(module, self._constant_params_and_initial_state()[0]), state

    def _constant_params_and_initial_state(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Divide the option `params` into values of constants, and first contents of state."""
        params = self.params or {}
        kept = input_names_matching_state(self.state or {}, list(params))
        return {n: a for n, a in params.items() if n not in kept}, {n: params[n] for n in kept}

    def _import_module_and_state(
        self, model: Model, dims: Mapping[str, DimSpecification]
    ) -> tuple[IRModule, tuple[StatePair, ...]]:
        """Convert a model as `import_as_graph_module` does; return the module and its state.

        dims    sizes and ranges of dimensions
        """
        model = functional_exported_program(model)
        buffers, contents = changed_buffers_of_exported_program(model)
        state = {**buffers, **(self.state or {})}
        model, initial = inputs_without_default_values(model, state) if state else (model, {})
        dims = {**dims, **ranges_of_growing_states(model, state, dims)}
        module, variables = self._import_module_and_state_of_file(model, dims)
        state = {**{pair.past: pair.present for pair in variables}, **state}
        if not state:
            return module, ()
        contents |= {pair.past: pair.initial for pair in variables if pair.initial is not None}
        first = contents | initial | self._constant_params_and_initial_state()[1]
        return module, resolve_state_pairs(state, module, first)

    def _import_module_state_and_tiers(self, model: Model) -> tuple[IRModule, tuple[StatePair, ...], SizeTiers | None]:
        """Convert a model as `import_as_graph_module` does; return the module, its state and the tiers of its sizes.
        With tiers, the module is that of the tier with the typical sizes, and there is no state.

        Raise AotcError (code "dims") for a model with tiers that keeps state.
        """
        dims = dims_of_all_tiers(self.dims or {})
        if not dims_of_each_tier(self.dims or {}):
            return *self._import_module_and_state(model, dims), None
        whole: IRModule | None = None
        try:
            whole, state = self._import_module_and_state(model, dims)
        except AotcError:  # tiers may compile where their whole range does not: if not, they say why
            source, shapes = functional_exported_program(model), dict(self.input_shapes or {})
            inputs = import_input_types(source, shapes, dims, self.graph_cut, self.signature)
        else:
            inputs = input_types_without_state(whole, state)
        tiers = import_tiers(
            self.dims or {},
            whole,
            inputs,
            lambda dims: module_without_state(*self._import_module_and_state(model, dims)),
        )
        return tiers.modules[tiers.typical], (), tiers

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
        require_target_supports_tiers(self.dims or {}, self.machine)
        module, state, tiers = self._import_module_state_and_tiers(model)
        return Compilation(
            module,
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
            separate_weights=self.separate_weights,
            budgets=self.ram_flash_and_stack_budgets,
            overwrite=self.overwrite,
            cflags=tuple(self.cflags),
            state=state,
            typical_sizes=self.typical_sizes,
            tiers=tiers,
        )

    def compile_model(self, model: Model) -> CompiledModel:
        """Compile a model: write its project and, if `build` is set, compile the library."""
        output = self.output_folder
        if self.build:
            _require_target_with_library(self.machine)
        toolchain = self.toolchain_factory() if self.build else None
        # raise for an invalid name before any work is done
        c_name_of_model(model, self.name)
        if output is not None:
            check_project_can_be_written_to_folder(output, self.overwrite)
        work = self.start_compilation(model, toolchain=toolchain)
        return work.emit_project_and_build_library(output) if self.build else work.emit_project(output)


def _require_target_with_library(target: Target) -> None:
    """Raise AotcError (code "target") for WebAssembly with threads, whose projects are linked with the source of the
    threads by `aotc.packaging.wasm_module`.
    """
    if target.machine == "wasm32" and not target.bare:
        text = f"there is no library for {target.name}: its projects become modules of npm packages"
        hint = option_text("build", False) + " writes the project, which `aotc package` links"
        raise AotcError("target", text, hint=hint)


def _insert_options_documentation(docstring: str | None) -> str:
    """Return a docstring with the documentation of all options after its first paragraph."""
    head, *rest = (docstring or "").split("\n\n")
    return "\n\n".join([head, options_documentation(CompileOptions), *rest])


CompileOptions.__doc__ = _insert_options_documentation(CompileOptions.__doc__)

#: The beginning of the docstring of `compile`; the documentation of `CompileOptions` follows it.
_COMPILE_DOCSTRING_HEAD: Final = """Compile a model to a C project and, with `build`, to a library.

    model            a path or ModelProto of ONNX, a .pt2 file, an ExportedProgram or a torch.nn.Module of PyTorch, a
                     .tflite file, an IRModule or a .relay file
    example_inputs   for a torch.nn.Module, which torch.export exports: a tensor, a tuple of positional arguments or a
                     mapping of keyword arguments

    Returns a CompiledModel: `path`, the folder of the project; `library`, the path of the library, or None;
    `metadata`, the contents of metadata.json; `session()`, which loads the library.  Raises AotcError for a model,
    option, machine or output folder that cannot be used; then nothing is left behind.  The options are keywords:

"""

_Fields = ParamSpec("_Fields")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def show_compile_options_in_signature(function: _Function) -> _Function:
    """Decorator: show the options of a compilation as keywords in the signature of a function that
    hands its last parameter, `**options`, to `CompileOptions.from_keywords`.

    Options that have the name of another parameter of the function are not shown.
    """
    signature = inspect.signature(function)
    *own, _ = signature.parameters.values()
    keywords = inspect.signature(CompileOptions).parameters.values()
    shown = [keyword for keyword in keywords if keyword.name not in signature.parameters]
    function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
    return function


def _exported_program_of_module(model: Any, example_inputs: Any) -> Any:
    """Return a model that is a torch.nn.Module as an ExportedProgram, and others unchanged.

    Raises AotcTypeError (code "unknown-option") for example inputs that are no collection or tensor,
    AotcTypeError (code "model") for example inputs of another model.
    """
    if example_inputs is None:
        return model
    if isinstance(example_inputs, (str, Path)) or not hasattr(example_inputs, "__getitem__"):
        hint = "name the option, for example " + option_text("output", "DIR")
        raise AotcTypeError("unknown-option", "options of aotc.compile are keywords", hint=hint)
    if not is_pytorch_module(model):
        text = f"example inputs are for a torch.nn.Module, and the model is {type(model).__name__}"
        raise AotcTypeError("model", text, hint="leave them out, and name options by keywords")
    return export_pytorch_module(model, example_inputs)


class _CompileFunction(Protocol[_Fields]):
    """Type of the function `compile`: its options are the fields of `CompileOptions`."""

    def __call__(
        self, model: Model, example_inputs: Any = None, *args: _Fields.args, **keywords: _Fields.kwargs
    ) -> CompiledModel:
        """Compile a model."""


def _make_compile_function(options_class: Callable[_Fields, CompileOptions]) -> _CompileFunction[_Fields]:
    """Build the function `compile(model, example_inputs=None, **fields)` from the class
    `CompileOptions`: its fields become keywords.
    """

    def compile(
        model: Model, example_inputs: Any = None, *args: _Fields.args, **keywords: _Fields.kwargs
    ) -> CompiledModel:
        if args:
            hint = "name the option, for example " + option_text("output", "DIR")
            raise AotcTypeError("unknown-option", "options of aotc.compile are keywords", hint=hint)
        options = CompileOptions.from_keywords(keywords)
        return options.compile_model(_exported_program_of_module(model, example_inputs))

    compile.__qualname__ = "compile"
    compile.__doc__ = _COMPILE_DOCSTRING_HEAD + "\n\n".join((CompileOptions.__doc__ or "").split("\n\n")[1:])
    own = inspect.signature(compile).parameters
    keywords = inspect.signature(options_class).parameters.values()
    shown = [own["model"], own["example_inputs"], *keywords]
    compile.__signature__ = inspect.signature(compile).replace(parameters=shown)  # type: ignore[attr-defined]
    return compile


compile = _make_compile_function(CompileOptions)
