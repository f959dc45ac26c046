# SPDX-License-Identifier: Apache-2.0
"""Comparison of a compiled model with an independent implementation, and search for the first node
and kernel that differ.

    report = verify("net.onnx", seeds=3)
    report.ok, report.cases[0].outputs[0].relative
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import onnx

from aotc.checking.compare_model_runs import (
    Case,
    Run,
    compare_runs_grouped_by_input_scale,
    compare_runs_in_reduced_precision,
    messages_on_inconclusive_or_weak_outputs,
    select_runs_for_report,
)
from aotc.checking.evaluation_memory_budget import DEFAULT_MEMORY_BYTES
from aotc.checking.input_generation import (
    NO_INPUT_RANGES,
    Arrays,
    InputRanges,
    InputSet,
    dequantize_tensors,
    domains_overridden_by_user_ranges,
    file_or_random_and_scaled_inputs,
    quantize_real_inputs,
)
from aotc.checking.inputs_of_several_sizes import input_sets_of_sizes
from aotc.checking.kernel_bisection import find_first_wrong_kernel
from aotc.checking.model_reference_runs import (
    ModelRunner,
    Reference,
    has_quantized_operators,
    make_onnx_reference,
    make_relay_reference,
)
from aotc.checking.prebuilt_project import interface_of_compilation, load_prebuilt_project
from aotc.checking.reference_tflite import TfliteFile, make_tflite_reference, stated_or_installed_interpreter_rounding
from aotc.checking.state_runs import (
    ReferenceState,
    has_shapes_of_inputs,
    input_types_of_all_sizes,
    inputs_of_consecutive_runs,
    types_of_inputs_without_state,
)
from aotc.driver.accuracy_and_precision import (
    graph_with_reduced_products,
    precision_metadata,
    precision_of_context,
    rounding_error_of_precision,
)
from aotc.driver.compile import CompileOptions, show_compile_options_in_signature
from aotc.driver.cuda_emulation import is_gpu_emulated
from aotc.driver.import_model import (
    cut_model_at_tensors,
    functional_exported_program,
    is_exported_program_or_pt2_path,
    is_relay_text_path,
    is_tflite_path,
    load_exported_program,
    read_relay_text,
    require_tflite_model_is_not_cut,
)
from aotc.driver.pipeline import Compilation, CompiledModel
from aotc.driver.toolchain import require_cpu_can_run
from aotc.ir import AotcError, Array, TensorType, frozen, gpu_count, option_text, text_for_command_or_python
from aotc.ir.option_description import FULL_PRECISION
from aotc.ir.string_slots import STRING_INPUTS_ATTRIBUTE
from aotc.relay.frontend.onnx import load_model
from aotc.relay.graph_api import IRModule, infer_module, output_names_or_default
from aotc.relay.op.infer_valid_model_input_values import infer_input_domains
from aotc.runtime.session import Session
from aotc.runtime.state import State
from aotc.tir import Program

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: Exit status of `aotc verify` for each verdict.
EXIT_CODE_BY_VERDICT: Final = {"agree": 0, "differ": 1, "inconclusive": 3}

#: Number of evaluations whose results are in memory at one time: the compiled model, the
#: reference, and two in onnx's evaluator.
MAX_RESULTS_IN_MEMORY: Final = 4

Model: TypeAlias = "onnx.ModelProto | ExportedProgram | IRModule | TfliteFile"


@frozen
class Report:
    """Result of `verify`: the comparisons for all sets of inputs.

    reference          name of the implementation that the compiled model was compared with
    reference_note     why another implementation than ONNX Runtime was used for an ONNX model, "" if
                       ONNX Runtime was used or the model has another format
    cases              comparisons, one Case for each set of inputs
    first_difference   first node whose result differs, if bisection was requested
    wrong_kernel       first wrong kernel, if bisection was requested
    blame              cause of the wrong kernel: "the C compiler" or "the schedule"
    device             device that ran a model for GPUs
    unchecked          parts of the C compiler's work that were not checked, with the reasons
    inconclusive       outputs that could not be compared, since they have no finite element
    warnings           outputs that make a weak comparison: they are constant, or have NaN or
                       infinite elements
    verdict            "differ" if a comparison fails, else "inconclusive" if an output could not be
                       compared, else "agree"
    ok                 True if the verdict is "agree"
    """

    reference: str
    cases: tuple[Case, ...]
    first_difference: str = ""
    wrong_kernel: str = ""
    blame: str = ""
    device: str = ""
    unchecked: tuple[str, ...] = ()
    inconclusive: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reference_note: str = ""
    verdict: str = field(init=False)
    ok: bool = field(init=False)

    def __post_init__(self) -> None:
        agree = all(case.ok for case in self.cases)
        verdict = "differ" if not agree else "inconclusive" if self.inconclusive else "agree"
        object.__setattr__(self, "verdict", verdict)
        object.__setattr__(self, "ok", verdict == "agree")

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary of plain values, ready for JSON."""
        return asdict(self)


def pin_static_input_shapes(model: onnx.ModelProto, types: Mapping[str, TensorType]) -> onnx.ModelProto:
    """Return a copy of an ONNX model whose inputs declare the static shapes in `types`, for which
    the model was compiled.
    """
    pinned = copy.deepcopy(model)
    for value in pinned.graph.input:
        if value.name in types and value.type.HasField("tensor_type"):
            if not types[value.name].is_static:
                continue
            dims = [onnx.TensorShapeProto.Dimension(dim_value=d) for d in types[value.name].static_shape]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))
    return pinned


def make_reference_for_model(
    model: Model, types: Mapping[str, TensorType], output_names: Sequence[str], max_bytes: int = DEFAULT_MEMORY_BYTES
) -> Reference:
    """Return the Reference that a loaded model is compared with, by kind of model.

    types           input types with static shapes
    output_names    names of the outputs, in order
    max_bytes       largest number of bytes that a float64 evaluation may take
    """
    if isinstance(model, IRModule):
        return make_relay_reference(infer_module(model), output_names, max_bytes)
    if isinstance(model, TfliteFile):
        return make_tflite_reference(model, output_names)
    if is_exported_program_or_pt2_path(model):
        # torch is an optional dependency
        from aotc.checking.reference_torch import make_torch_reference

        return make_torch_reference(functional_exported_program(model), output_names, max_bytes)
    return make_onnx_reference(pin_static_input_shapes(model, types), max_bytes)


def load_model_of_any_format(model: str | Path | Model, rounding: str = "tflm", signature: str | None = None) -> Model:
    """Return the model in memory: load a file of any supported format, return a loaded model
    unchanged.

    rounding    rounding of a TFLite file: "tflm" or "litert"
    signature   function of a TFLite file; None for its first subgraph
    """
    if isinstance(model, IRModule):
        return model
    if isinstance(model, TfliteFile):
        return model
    if is_relay_text_path(model):
        return read_relay_text(model)
    if isinstance(model, (str, Path)) and is_tflite_path(model):
        return TfliteFile(Path(model), rounding, signature)
    return load_exported_program(model) if is_exported_program_or_pt2_path(model) else load_model(model)


def _options_with_installed_tflite_rounding(model: str | Path | Model, options: Mapping[str, Any]) -> CompileOptions:
    """Return the compile options; for a TFLite file, with a rounding whose interpreter is
    installed.
    """
    chosen = CompileOptions.from_keywords(options, verify)
    if not (isinstance(model, (str, Path)) and is_tflite_path(model)):
        return chosen
    stated = chosen.rounding or (chosen.config or {}).get("tflite.rounding")
    # TFLite Micro runs the first subgraph only
    stated = stated or ("litert" if chosen.signature is not None else None)
    return replace(chosen, rounding=stated_or_installed_interpreter_rounding(Path(model), stated))


def _load_and_cut_model(path: str | Path | Model, chosen: CompileOptions) -> Model:
    """Return the model, or the part of it that is left when it is cut as the options ask."""
    loaded = load_model_of_any_format(path, chosen.tflite_rounding_or_default, chosen.signature)
    return cut_model_at_tensors(loaded, chosen.graph_cut)


def _require_sizes_known_when_compiling(program: Program) -> None:
    """Raise AotcError (code "dims") if the shape of a tensor depends on sizes that are known at run time only."""
    if not program.symbol_intervals:
        return
    text = "the kernels of a model whose sizes vary at run time cannot be compared one by one"
    hint = "compile one size: " + option_text("dims", {"NAME": 1}) + " instead of a range"
    if program.found or program.operands:
        hint = "compare without " + option_text("bisect", True) + "; with " + option_text("cut_after", ["NAME"])
        hint += " the model ends at a tensor, whose values are compared"
    raise AotcError("dims", text, hint=hint)


def _require_inputs_can_be_drawn(module: IRModule) -> None:
    """Raise AotcError (code "reference") for a model with inputs of strings."""
    for name in module.attrs.get(STRING_INPUTS_ATTRIBUTE, ()):
        text = f"input {name!r} holds strings, which are not drawn at random"
        hint = "compare outputs of `session.run` with those of ONNX Runtime for strings that the model knows"
        raise AotcError("reference", text, hint=hint)


def _require_model_allows_comparison(work: Compilation, bisect: bool) -> None:
    """Raise AotcError for a model that cannot be compared or bisected."""
    _require_inputs_can_be_drawn(work.module)
    if bisect:
        _require_sizes_known_when_compiling(work.scheduled_programs[0])


@show_compile_options_in_signature
def verify(
    path: str | Path | Model,
    *,
    inputs: str | Path | None = None,
    input_ranges: InputRanges = NO_INPUT_RANGES,
    seeds: int = 3,
    bisect: bool = False,
    check_compiler: bool | None = None,
    memory: int = DEFAULT_MEMORY_BYTES,
    project: str | Path | None = None,
    **options: Any,
) -> Report:
    """Compile a model, run it, compare its outputs with an independent implementation; return a Report.

    The implementation is ONNX Runtime or onnx's evaluator for ONNX models, torch for .pt2 files,
    tflite-micro or LiteRT for .tflite files (by the rounding that is asked for, else the one that
    is installed), and the numpy interpreter for .relay files. A model for GPUs runs on the first
    GPU; without one, the CPU emulates it.

    An output passes if its error relative to the reference's standard deviation is within the bound
    of its dtype or precision. In networks that amplify rounding errors beyond the bound, it passes
    if it is about as close to the float64 result as the reference is, and as a second evaluation in
    the precision of the model. Products in reduced precision are compared with the reference itself.

    If an output has no finite element in any run, the verdict is "inconclusive", which is not ok.

    inputs    an .npz file with inputs; if None, `seeds` random sets, with values from the domains that the model
              accepts, and at least as many sets whose floats are scaled
    input_ranges   smallest and largest value of random inputs by name, where the caller knows them better
    bisect    on a difference, search for the first node of an ONNX model whose result differs, and for the first kernel
              whose compiled code differs from its loop nest or whose loop nest differs from its operators
    check_compiler   as for `aotc.compile`; None: True unless `bisect` or `project` is given or for GPUs
    memory    bytes that float64 evaluations and `bisect` may take; AotcError (code "memory") if exceeded
    project   a project of the model that was built earlier, or its library, to run instead of a new compilation
    options   as for `aotc.compile`
    """
    chosen = _options_with_verification_defaults(path, options, check_compiler, bisect, project)
    require_cpu_can_run(chosen.machine)
    _require_options_allow_comparison(path, chosen, bisect, project)
    model = _load_and_cut_model(path, chosen)
    source = path if isinstance(model, (onnx.ModelProto, TfliteFile)) else model
    work = chosen.start_compilation(source, toolchain=chosen.toolchain_factory())
    _require_model_allows_comparison(work, bisect)
    types, drawn = input_types_of_all_sizes(work), types_of_inputs_without_state(work)
    domains = domains_overridden_by_user_ranges(drawn, infer_input_domains(work.module.main), input_ranges, inputs)
    compiled = work.emit_project_and_build_library() if project is None else _load_project(Path(project), work, chosen)
    chosen.progress("running the reference")
    if compiled.metadata.get("dims"):
        sets = input_sets_of_sizes(drawn, domains, work.scheduled_programs[0], inputs, seeds, input_ranges)
    else:
        sets = file_or_random_and_scaled_inputs(
            drawn, domains, inputs, seeds, int(compiled.metadata["macs"]), within_scales=_is_quantized_onnx(model)
        )
    runs, report = _run_input_sets_and_compare_outputs(compiled, model, types, sets, memory, work)
    if report.verdict != "differ" or not bisect:
        return report
    wrong_run = next(run for run, case in zip(runs, report.cases, strict=True) if not case.ok)
    bound = compiled.metadata["error_bound"]
    return _add_first_wrong_node_to_report(report, model, types, wrong_run.inputs, work, chosen, bound, memory)


def _load_project(project: Path, compilation: Compilation, options: CompileOptions) -> CompiledModel:
    """Return a project as the compiled model of a compilation, to which it must correspond.

    The error bound of a reduced precision is computed from the model, not read from the project.
    """
    context = compilation.context
    precision = precision_of_context(context)
    compiled = load_prebuilt_project(project, interface_of_compilation(compilation), options.machine, precision)
    if precision == FULL_PRECISION:
        return compiled
    facts = precision_metadata(compilation.optimized_graph, context, compiled.metadata["error_bound"])
    return replace(compiled, metadata={**compiled.metadata, **facts})


def _options_with_verification_defaults(
    model: str | Path | Model,
    options: Mapping[str, Any],
    check_compiler: bool | None,
    bisect: bool,
    project: str | Path | None,
) -> CompileOptions:
    """Return the compile options of `verify`: with an installed rounding, the C compiler checked
    or not, and GPUs emulated if there are none.
    """
    chosen = _options_with_installed_tflite_rounding(model, options)
    default = chosen.machine.gpu is None and not bisect and project is None
    checked = default if check_compiler is None else check_compiler
    emulated = chosen.machine.gpu is not None and (is_gpu_emulated() or not gpu_count())
    return replace(chosen, check_compiler=checked, emulated=emulated)


def _is_quantized_onnx(model: Model) -> bool:
    """Return True for quantized ONNX models, whose scales suit inputs of ordinary magnitude only."""
    return isinstance(model, onnx.ModelProto) and has_quantized_operators(model)


def _require_options_allow_comparison(
    model: object, options: CompileOptions, bisect: bool, project: str | Path | None
) -> None:
    """Raise AotcError for options with which a model cannot be compared or bisected."""
    if bisect and options.io_dtype:
        text = "a model with integer inputs and outputs cannot be bisected"
        raise AotcError(
            "io-dtype", text, hint="compare without " + option_text("io_dtype") + "; the kernels are identical"
        )
    if bisect and project is not None:
        text = "the kernels in a project cannot be called one by one"
        hint = option_text("bisect", True) + " without " + option_text("project") + " compiles the model anew"
        raise AotcError("project", text, hint=hint + " and looks there")
    if bisect and options.state:
        text = "the kernels of a model with state cannot be compared one by one"
        hint = "leave " + option_text("state") + " out: the state is an input and an output then"
        raise AotcError("state", text, hint=hint)
    require_tflite_model_is_not_cut(model, options.graph_cut)


def _add_first_wrong_node_to_report(
    report: Report,
    model: Model,
    types: Mapping[str, TensorType],
    inputs: Arrays,
    compilation: Compilation,
    options: CompileOptions,
    bound: float,
    max_reference_bytes: int,
) -> Report:
    """Return a report of a difference with the first node of an ONNX model that differs on these
    inputs and, unless the model is for GPUs, the first wrong kernel and the cause of its error.

    types                  input types with static shapes
    bound                  largest accepted error of a float32 result, relative to its standard deviation
    max_reference_bytes    bytes that float64 evaluations and results that become outputs may take
    """
    first, has_nodes = "", isinstance(model, onnx.ModelProto)
    if isinstance(model, onnx.ModelProto):
        first = describe_first_wrong_node(model, types, inputs, options, max_reference_bytes)
    if options.machine.gpu is not None:
        return replace(report, first_difference=first)
    return _add_first_wrong_kernel_to_report(report, first, has_nodes, compilation, inputs, bound, max_reference_bytes)


def _add_first_wrong_kernel_to_report(
    report: Report,
    first_wrong_node: str,
    has_nodes: bool,
    compilation: Compilation,
    inputs: Arrays,
    bound: float,
    max_reference_bytes: int,
) -> Report:
    """Return a report of a difference with the first kernel that is wrong on these inputs and the
    cause of the error.

    first_wrong_node    description of the first node that differs, "" for none
    has_nodes           True if the results of single nodes were compared
    bound               largest accepted error of a float32 result, relative to its standard deviation
    """
    suspect = find_first_wrong_kernel(compilation, inputs, bound=bound, memory=max_reference_bytes)
    if not first_wrong_node and has_nodes:
        first_wrong_node = "no node differs when every result is an output"
    if not suspect.blame:
        checker = text_for_command_or_python(
            command="`aotc compile --check-passes`", python="aotc.instrument.NumericCheck"
        )
        first_wrong_node += ", and " if first_wrong_node else ""
        first_wrong_node += "no kernel is wrong: a pass on the graph is (" + checker + " names it)"
    return replace(report, first_difference=first_wrong_node, wrong_kernel=suspect.kernel, blame=suspect.blame)


def _run_consecutively(
    input_set: InputSet, session: Session, reference: Reference, first: ReferenceState
) -> Iterator[Run]:
    """Run the compiled model and the reference on one set of inputs, or on several that derive from
    it if the model keeps state between runs.

    first    contents of the state before the first run
    """
    state, contents = session.new_state_or_none(), first
    for given in inputs_of_consecutive_runs(input_set, first.pairs):
        run, outputs = _run_compiled_and_reference(given, session, reference, state, contents)
        contents = contents.after_run(outputs)
        yield run


def _run_compiled_and_reference(
    input_set: InputSet, session: Session, reference: Reference, state: State | None, contents: ReferenceState
) -> tuple[Run, Arrays]:
    """Run the compiled model and the reference on one set of inputs; return the Run, and all
    outputs of the reference.

    state       state of the compiled model; None for a model without
    contents    contents of the state inputs of the reference

    If the compiled model has quantized inputs or outputs and the reference does not, the values are
    quantized for the compiled model and dequantized for the reference and the comparison.
    """
    sides = session.get_inputs(), session.get_outputs()
    arrays = input_set.arrays
    given = quantize_real_inputs(session, arrays)
    stored = {n: a for n, a in given.items() if a is not arrays[n]}
    real = {**arrays, **dequantize_tensors(sides[0], stored), **contents.arrays}
    output_arrays = session.run(None, given, state=state)
    outputs = reference.run(real)
    expected = contents.without_state(outputs)
    actual = dict(zip(expected, output_arrays, strict=True))
    actual, expected = _strings_as_numbers(actual, expected)
    whole = {n: a for n, a in actual.items() if a.dtype != expected[n].dtype}
    return Run(input_set, real, actual | dequantize_tensors(sides[1], whole), expected), outputs


def _strings_as_numbers(actual: Arrays, expected: Arrays) -> tuple[Arrays, Arrays]:
    """Return outputs with a number in place of each string, equal numbers for equal strings."""
    numbers: dict[str, int] = {}

    def numbered(array: Array) -> Array:
        if array.dtype != object:
            return array
        codes = [numbers.setdefault(str(text), len(numbers)) for text in array.reshape(-1)]
        shaped: Array = np.array(codes, np.int64).reshape(array.shape)
        return shaped

    actual, expected = ({name: numbered(a) for name, a in side.items()} for side in (actual, expected))
    return actual, expected


def _run_input_sets_and_compare_outputs(
    compiled: CompiledModel,
    model: Model,
    types: Mapping[str, TensorType],
    inputs: Iterable[InputSet],
    max_reference_bytes: int,
    compilation: Compilation,
) -> tuple[list[Run], Report]:
    """Run a compiled model and its reference on sets of inputs; return the runs that are reported,
    and the Report.

    Quantized models run only on sets of inputs that are within their scales: neither enlarged nor
    shifted.
    """
    session = compiled.session()
    names = [o.name for o in session.get_outputs()]
    first = ReferenceState.at_first_run((), {})
    if compilation.state:
        names = list(output_names_or_default(compilation.module, len(names) + len(compilation.state)))
        first = ReferenceState.at_first_run(compilation.state, types)
    reference = make_reference_for_model(model, types, names, max_reference_bytes)
    runs = [
        run
        for given in inputs
        if given.within_scales or not reference.quantized
        for run in _run_consecutively(given, session, reference, first)
    ]
    device = "" if session.device is None else "an emulated GPU" if compiled.emulated else "GPU 0"
    bound = compiled.metadata["error_bound"]
    if precision_of_context(compilation.context) != FULL_PRECISION and not reference.quantized:
        reduced = _evaluation_in_reduced_precision(compilation, names, max_reference_bytes)
        rounding = rounding_error_of_precision(precision_of_context(compilation.context))
        cases = compare_runs_in_reduced_precision(runs, bound, rounding, reduced)
    else:
        cases = compare_runs_grouped_by_input_scale(runs, bound, reference)
    runs, cases = select_runs_for_report(runs, cases, reference.quantized)
    nothing, little = messages_on_inconclusive_or_weak_outputs([run.expected for run in runs if run.given.usual])
    report = Report(
        reference.name,
        cases,
        device=device,
        unchecked=compiled.unchecked,
        inconclusive=nothing,
        warnings=little,
        reference_note=reference.note,
    )
    return runs, report


def _evaluation_in_reduced_precision(
    compilation: Compilation, output_names: Sequence[str], max_bytes: int
) -> ModelRunner:
    """Return a function that evaluates, in numpy, the graph of a compilation whose products are in
    reduced precision.
    """
    tiers = compilation.tiers
    modules = (compilation.module,) if tiers is None else tiers.modules
    runners: dict[int, ModelRunner] = {}

    def run(inputs: Arrays) -> Arrays:
        number = next(k for k, m in enumerate(modules) if len(modules) == 1 or has_shapes_of_inputs(m, inputs))
        if number not in runners:
            graph = graph_with_reduced_products(modules[number], compilation.target, compilation.context)
            runners[number] = make_relay_reference(graph, output_names, max_bytes).run
        return runners[number](inputs)

    return run


def _copies_with_intermediates_as_outputs(
    model: onnx.ModelProto, known_names: Sequence[str], max_bytes: int
) -> Iterator[tuple[onnx.ModelProto, int]]:
    """Yield copies of an ONNX model in which intermediate results are outputs too, as many per copy
    as `max_bytes` allows, in the order of the nodes.

    With each copy comes the number of leading nodes whose results this copy and the copies before
    it have as outputs.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v for v in inferred.graph.value_info if v.type.HasField("tensor_type")}
    present = {*known_names, *(o.name for o in model.graph.output)}
    node_index_by_name = {name: k for k, node in enumerate(model.graph.node) for name in node.output}
    rest = [types[name] for name in node_index_by_name if name in types and name not in present]
    while True:
        group: list[onnx.ValueInfoProto] = []
        size = 0
        while rest and (not group or size + _float64_bytes_if_made_graph_output(rest[0]) <= max_bytes):
            size += _float64_bytes_if_made_graph_output(rest[0])
            group.append(rest.pop(0))
        part = copy.deepcopy(model)
        part.graph.output.extend(group)
        yield part, node_index_by_name[rest[0].name] if rest else len(model.graph.node)
        if not rest:
            return


def _float64_bytes_if_made_graph_output(value: onnx.ValueInfoProto) -> int:
    """Return the bytes that an intermediate result takes as an output of every evaluation, in
    float64.
    """
    return MAX_RESULTS_IN_MEMORY * 8 * prod(max(1, int(d.dim_value)) for d in value.type.tensor_type.shape.dim)


def describe_first_wrong_node(
    model: onnx.ModelProto, types: Mapping[str, TensorType], inputs: Arrays, options: CompileOptions, max_bytes: int
) -> str:
    """Return a description of the first node of an ONNX model, in its order, whose result differs
    from the reference when it is an output; "" for none.

    Making results outputs changes which operators are fused: a difference that fusion causes may
    disappear.

    max_bytes    largest number of bytes of the results that are outputs at one time, and of float64
                 evaluations
    """
    options.progress("looking for the first node that differs")
    # the model has been cut already
    whole = replace(options, cut_before=(), cut_after=())
    for exposed, count in _copies_with_intermediates_as_outputs(model, list(types), max_bytes):
        work = whole.start_compilation(exposed, toolchain=whole.toolchain_factory())
        _, report = _run_input_sets_and_compare_outputs(
            work.emit_project_and_build_library(), exposed, types, [InputSet("", inputs)], max_bytes, work
        )
        wrong = {c.name: c for c in report.cases[0].outputs if not c.ok}
        for index, node in enumerate(model.graph.node[:count]):
            for result in (wrong[name] for name in node.output if name in wrong):
                return f"node {node.name or f'#{index}'} ({node.op_type}), output {result.name!r}: {result.reason}"
    return ""
