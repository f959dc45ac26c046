# SPDX-License-Identifier: Apache-2.0
"""Comparison of a compiled model with an independent implementation, and search for the first node
and kernel that differ.

    report = verify("net.onnx", seeds=3)
    report.ok, report.cases[0].outputs[0].relative
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import onnx

from aotc.checking.compare import (
    LARGE_NOISE,
    UNTRUSTED,
    Comparison,
    bound_for,
    compare,
    exact_error,
    judge_by_definition,
    judge_by_exact,
    judge_by_noise,
    judge_by_others,
    little_compared,
    nothing_compared,
)
from aotc.checking.input_generation import (
    NO_RANGES,
    Arrays,
    InputRanges,
    InputSet,
    input_sets,
    input_types,
    ranged,
    real_values,
    stored_inputs,
)
from aotc.checking.kernel_bisection import first_suspect
from aotc.checking.memory_budget import DEFAULT_MEMORY_BYTES
from aotc.checking.prebuilt_project import built_project
from aotc.checking.reference import ExactRun, Reference, is_quantized, no_result, onnx_reference, relay_reference
from aotc.checking.reference_tflite import TfliteFile, rounding_at_hand, tflite_reference
from aotc.driver.compile import CompileOptions
from aotc.driver.cuda_emulation import is_emulated
from aotc.driver.import_model import (
    is_exported_program,
    is_relay_text,
    is_tflite,
    load_exported,
    part_of,
    read_relay_text,
    require_whole_tflite,
)
from aotc.driver.pipeline import Compilation, CompiledModel
from aotc.driver.toolchain import require_cpu
from aotc.ir import AotcError, Array, DType, TensorType, frozen, gpus
from aotc.relay.frontend.onnx import load_model
from aotc.relay.graph_api import IRModule, infer_module
from aotc.relay.op.input_domains import input_domains
from aotc.runtime.session import Session

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: Exit status of `aotc verify` for each verdict.
EXIT_CODES: Final = {"agree": 0, "differ": 1, "inconclusive": 3}

#: Number of evaluations whose results are in memory at one time: the compiled model, the
#: reference, and two in onnx's evaluator.
EVALUATIONS: Final = 4

Model: TypeAlias = "onnx.ModelProto | ExportedProgram | IRModule | TfliteFile"


@frozen
class Case:
    """Comparisons of all outputs for one set of inputs.

    source     "seed 0" or the name of the inputs' file
    outputs    one Comparison per output
    ok         True if all comparisons pass
    """

    source: str
    outputs: tuple[Comparison, ...]
    ok: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ok", all(o.ok for o in self.outputs))


@frozen
class Report:
    """Result of `verify`: the comparisons for all sets of inputs.

    reference          name of the implementation that the compiled model was compared with
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


@frozen
class Run:
    """Outputs of the compiled model and of the reference for one set of inputs.

    given     the inputs as they were drawn
    inputs    the inputs that the reference gets
    actual    outputs of the compiled model
    expected  outputs of the reference
    """

    given: InputSet
    inputs: Arrays
    actual: Arrays
    expected: Arrays


def judged(runs: Sequence[Run], float32_bound: float, reference: Reference) -> tuple[Case, ...]:
    """Compare the outputs of all runs with the reference; return one Case per run.

    Outputs beyond their bound are judged again by the reference's other results: in float64, by
    definition, or by a second evaluation.

    float32_bound    largest accepted relative error of float32 outputs
    """
    found = [
        {n: compare(n, r.actual[n], e, bound_for(DType.of(e), float32_bound)) for n, e in r.expected.items()}
        for r in runs
    ]
    if reference.quantized:
        _judge_integers(runs, found, reference.defined)
    noisy = sorted({name for row in found for name, c in row.items() if not c.ok})
    exact = _exact_results(reference.exact, runs) if noisy else None
    if exact is not None and reference.quantized:
        defined: Sequence[Arrays | None] = _exact_results(reference.defined, runs) or [None] * len(runs)
        for name in noisy:
            rows = [
                (r.actual[name], r.expected[name], e[name], None if d is None else d[name])
                for r, e, d in zip(runs, exact, defined, strict=True)
            ]
            for row in found:
                row[name] = row[name] if row[name].ok else judge_by_noise(row[name], rows)
    elif exact is not None:
        rounded = cache(lambda: _exact_results(reference.rounded, runs))
        for name in noisy:
            _judge_floats(name, runs, found, exact, rounded)
    return tuple(Case(r.given.source, tuple(row.values())) for r, row in zip(runs, found, strict=True))


def _judged_sets(runs: Sequence[Run], float32_bound: float, reference: Reference) -> tuple[Case, ...]:
    """Compare the outputs of all runs as `judged` does, with float64 results only for ordinary
    inputs and for inputs whose outputs differ.

    Runs are judged in groups by scale factor, together with the ordinary runs: the rounding error
    for scaled inputs says nothing about inputs of another magnitude.
    """
    plain = replace(reference, exact=no_result, rounded=no_result)
    cases = list(judged(runs, float32_bound, reference if reference.quantized else plain))
    for factor in sorted({r.given.factor for r in runs}) if not reference.quantized else ():
        wrong = [k for k, r in enumerate(runs) if not cases[k].ok and r.given.factor == factor]
        group = sorted({*wrong, *(k for k, r in enumerate(runs) if r.given.usual)}) if wrong else []
        for k, case in zip(group, judged([runs[k] for k in group], float32_bound, reference), strict=True):
            cases[k] = case if k in wrong else cases[k]
    return tuple(cases)


def _judge_integers(runs: Sequence[Run], found: list[dict[str, Comparison]], defined_run: ExactRun) -> None:
    """Judge integer outputs that differ from the reference's again by the network's definition;
    update `found` in place.
    """
    kinds = runs[0].expected.items() if runs else ()
    wrong = [n for n, e in kinds if e.dtype.kind in "iu" and not all(row[n].ok for row in found)]
    defined = _exact_results(defined_run, runs) if wrong else None
    for name in wrong if defined else ():
        triples = [(r.actual[name], r.expected[name], d[name]) for r, d in zip(runs, defined or (), strict=True)]
        for row in found:
            row[name] = row[name] if row[name].ok else judge_by_definition(row[name], triples)


def _judge_floats(
    name: str,
    runs: Sequence[Run],
    found: list[dict[str, Comparison]],
    exact: Sequence[Arrays],
    rounded: Callable[[], list[Arrays] | None],
) -> None:
    """Judge a float output that differs from the reference's again by the float64 result; update
    `found` in place.

    found      for each run, comparisons by name of the output
    exact      for each run, outputs in float64
    rounded    returns the results of a second evaluation in the precision of the model; called only
               if needed
    """
    wrong = [k for k, row in enumerate(found) if not row[name].ok]
    close = [exact_error(runs[k].actual[name], exact[k][name]) <= found[k][name].bound for k in wrong]
    others = [[r.expected[name] for r in runs]]
    second = None if all(close) else _of_dtype(name, runs, rounded())
    others += [] if second is None else [second]
    errors = [[exact_error(a, e[name]) for a, e in zip(arrays, exact, strict=True)] for arrays in others]
    # an error at a discontinuity that rounding crosses says nothing about the other runs
    usable = [k for k in range(len(runs)) if all(row[k] <= UNTRUSTED for row in errors)] or range(len(runs))
    noise, *rounding = (max(row[k] for k in usable) for row in errors)
    # runs where both other evaluations are far from the exact result, with the distance between them
    beyond = {
        k: exact_error(second[k], r.expected[name])
        for k, r in enumerate(runs)
        if second is not None and min(row[k] for row in errors) > UNTRUSTED
    }
    apart = max((d for d in beyond.values() if d <= UNTRUSTED), default=0.0)
    for k in wrong:
        mine, e = runs[k].actual[name], exact[k][name]
        if k in beyond:
            found[k][name] = judge_by_others(found[k][name], mine, e, runs[k].expected[name], apart)
        else:
            found[k][name] = judge_by_exact(found[k][name], mine, e, noise, rounding[0] if rounding else None)


def _of_dtype(name: str, runs: Sequence[Run], rounded: list[Arrays] | None) -> list[Array] | None:
    """Return one output of a second evaluation for all runs; None if there is no evaluation or it
    has another dtype than the reference.
    """
    if rounded is None or any(
        found[name].dtype != r.expected[name].dtype for found, r in zip(rounded, runs, strict=True)
    ):
        return None
    return [found[name] for found in rounded]


def _exact_results(exact_run: ExactRun, runs: Sequence[Run]) -> list[Arrays] | None:
    """Return the outputs of every run by another evaluation, for instance in float64; None if one
    fails or has other shapes.
    """
    results: list[Arrays] = []
    for r in runs:
        exact = exact_run(r.inputs)
        if exact is None or any(exact[n].shape != a.shape for n, a in r.expected.items()):
            return None
        results.append(exact)
    return results


def with_static_inputs(model: onnx.ModelProto, types: Mapping[str, TensorType]) -> onnx.ModelProto:
    """Return a copy of an ONNX model whose inputs declare the static shapes in `types`, for which
    the model was compiled.
    """
    pinned = copy.deepcopy(model)
    for value in pinned.graph.input:
        if value.name in types and value.type.HasField("tensor_type"):
            dims = [onnx.TensorShapeProto.Dimension(dim_value=d) for d in types[value.name].static_shape]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))
    return pinned


def reference_of(
    model: Model, types: Mapping[str, TensorType], names: Sequence[str], memory: int = DEFAULT_MEMORY_BYTES
) -> Reference:
    """Return the Reference that a loaded model is compared with, by kind of model.

    types     input types with static shapes
    names     names of the outputs, in order
    memory    largest number of bytes that a float64 evaluation may take
    """
    if isinstance(model, IRModule):
        return relay_reference(infer_module(model), names, memory)
    if isinstance(model, TfliteFile):
        return tflite_reference(model, names)
    if is_exported_program(model):
        # torch is an optional dependency
        from aotc.checking.reference_torch import torch_reference

        return torch_reference(model, names, memory)
    return onnx_reference(with_static_inputs(model, types), memory)


def loaded(model: str | Path | Model, rounding: str = "tflm") -> Model:
    """Return the model in memory: load a file of any supported format, return a loaded model
    unchanged.

    rounding    rounding of a TFLite file: "tflm" or "litert"
    """
    if isinstance(model, IRModule):
        return model
    if isinstance(model, TfliteFile):
        return model
    if is_relay_text(model):
        return read_relay_text(model)
    if isinstance(model, (str, Path)) and is_tflite(model):
        return TfliteFile(Path(model), rounding)
    return load_exported(model) if is_exported_program(model) else load_model(model)


def _chosen(model: str | Path | Model, options: Mapping[str, Any]) -> CompileOptions:
    """Return the compile options; for a TFLite file, with a rounding whose interpreter is
    installed.
    """
    chosen = CompileOptions(**options)
    if not (isinstance(model, (str, Path)) and is_tflite(model)):
        return chosen
    stated = chosen.rounding or (chosen.config or {}).get("tflite.rounding")
    return replace(chosen, rounding=rounding_at_hand(Path(model), stated))


def verify(
    path: str | Path | Model,
    *,
    inputs: Path | None = None,
    input_ranges: InputRanges = NO_RANGES,
    seeds: int = 3,
    bisect: bool = False,
    check_compiler: bool | None = None,
    memory: int = DEFAULT_MEMORY_BYTES,
    project: Path | None = None,
    **options: Any,
) -> Report:
    """Compile a model, run it, compare its outputs with an independent implementation; return a Report.

    The implementation is ONNX Runtime or onnx's evaluator for ONNX models, torch for .pt2 files, tflite-micro or LiteRT
    for .tflite files (by the rounding that is asked for, else the one that is installed), and the numpy interpreter for
    .relay files. A model for GPUs runs on the first GPU; without one, the CPU emulates it.

    An output passes if its error relative to the reference's standard deviation is within the bound of its dtype. In
    networks that amplify rounding errors beyond the bound, it passes if it is about as close to the float64 result as
    the reference is, and as a second evaluation in the precision of the model.

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
    chosen = _chosen(path, options)
    default = chosen.machine.gpu is None and not bisect and project is None
    checked = default if check_compiler is None else check_compiler
    emulated = chosen.machine.gpu is not None and (is_emulated() or not gpus())
    chosen = replace(chosen, check_compiler=checked, emulated=emulated)
    require_cpu(chosen.machine)
    _require_comparable(path, chosen, bisect, project)
    model = part_of(loaded(path, chosen.chosen_rounding), chosen.cut)
    source = path if isinstance(model, (onnx.ModelProto, TfliteFile)) else model
    work = chosen.compilation(source, toolchain=chosen.toolchain())
    types = input_types(work.module)
    domains = ranged(types, input_domains(work.module.main), input_ranges, inputs)
    compiled = work.library() if project is None else built_project(project, work.module, chosen.machine)
    chosen.progress("running the reference")
    sets = input_sets(types, domains, inputs, seeds, int(compiled.metadata["macs"]), within_scales=_has_scales(model))
    runs, report = _compared(compiled, model, types, sets, memory)
    if report.verdict != "differ" or not bisect:
        return report
    bad = next(run for run, case in zip(runs, report.cases, strict=True) if not case.ok)
    first = first_difference(model, types, bad.inputs, chosen, memory) if isinstance(model, onnx.ModelProto) else ""
    if chosen.machine.gpu is not None:
        return replace(report, first_difference=first)
    return _blamed(
        report, first, isinstance(model, onnx.ModelProto), work, bad.inputs, compiled.metadata["error_bound"], memory
    )


def _has_scales(model: Model) -> bool:
    """Return True for quantized ONNX models, whose scales suit inputs of ordinary magnitude only."""
    return isinstance(model, onnx.ModelProto) and is_quantized(model)


def _require_comparable(model: object, chosen: CompileOptions, bisect: bool, project: Path | None) -> None:
    """Raise AotcError for options with which a model cannot be compared or bisected."""
    if bisect and chosen.io_dtype:
        text = "a model with integer inputs and outputs cannot be bisected"
        raise AotcError("io-dtype", text, hint="compare without io_dtype; the kernels are identical")
    if bisect and project is not None:
        text = "the kernels in a project cannot be called one by one"
        raise AotcError("project", text, hint="--bisect without --project compiles the model anew and looks there")
    require_whole_tflite(model, chosen.cut)


def _blamed(
    report: Report, first: str, has_nodes: bool, work: Compilation, inputs: Arrays, bound: float, memory: int
) -> Report:
    """Return a report of a difference with the first kernel that is wrong on these inputs and the
    cause of the error.

    first        description of the first node that differs, "" for none
    has_nodes    True if the results of single nodes were compared
    bound        largest accepted error of a float32 result, relative to its standard deviation
    """
    suspect = first_suspect(work, inputs, bound=bound, memory=memory)
    if not first and has_nodes:
        first = "no node differs when every result is an output"
    if not suspect.blame:
        first += (
            f"{first and ', and '}no kernel is wrong: a pass on the graph is (`aotc compile --check-passes` names it)"
        )
    return replace(report, first_difference=first, wrong_kernel=suspect.kernel, blame=suspect.blame)


def _run(drawn: InputSet, session: Session, reference: Reference) -> Run:
    """Run the compiled model and the reference on one set of inputs.

    If the compiled model has quantized inputs or outputs and the reference does not, the values are
    quantized for the compiled model and dequantized for the reference and the comparison.
    """
    sides = session.get_inputs(), session.get_outputs()
    arrays = drawn.arrays
    given = stored_inputs(session, arrays)
    stored = {n: a for n, a in given.items() if a is not arrays[n]}
    real = {**arrays, **real_values(sides[0], stored)}
    made = session.run(None, given)
    expected = reference.run(real)
    found = dict(zip(expected, made, strict=True))
    whole = {n: a for n, a in found.items() if a.dtype != expected[n].dtype}
    return Run(drawn, real, found | real_values(sides[1], whole), expected)


def _compared(
    compiled: CompiledModel, model: Model, types: Mapping[str, TensorType], inputs: Iterable[InputSet], memory: int
) -> tuple[list[Run], Report]:
    """Run a compiled model and its reference on sets of inputs; return the runs that are reported,
    and the Report.

    Quantized models run only on sets of inputs that are within their scales: neither enlarged nor
    shifted.
    """
    session = compiled.session()
    names = [o.name for o in session.get_outputs()]
    reference = reference_of(model, types, names, memory)
    runs = [_run(given, session, reference) for given in inputs if given.within_scales or not reference.quantized]
    device = "" if session.device is None else "an emulated GPU" if compiled.emulated else "GPU 0"
    cases = _judged_sets(runs, compiled.metadata["error_bound"], reference)
    runs, cases = _shown(runs, cases, reference.quantized)
    nothing, little = worth([run.expected for run in runs if run.given.usual])
    report = Report(
        reference.name, cases, device=device, unchecked=compiled.unchecked, inconclusive=nothing, warnings=little
    )
    return runs, report


def _shown(runs: Sequence[Run], cases: Sequence[Case], is_quantized: bool) -> tuple[list[Run], tuple[Case, ...]]:
    """Return the runs and cases for a report: ordinary inputs, inputs whose outputs differ, and the
    case with the largest error of each other scale factor.
    """
    found = [(run, case) for run, case in zip(runs, cases, strict=True) if is_quantized or _counts(run, case)]
    worst: dict[float, Case] = {}
    for run, case in found:
        if not run.given.usual and case.ok:
            worst[run.given.factor] = max(worst.get(run.given.factor, case), case, key=_largest)
    names = {case.source for case in worst.values()}
    kept = [(r, c) for r, c in found if r.given.usual or not c.ok or c.source in names]
    return [run for run, _ in kept], tuple(case for _, case in kept)


def _largest(case: Case) -> float:
    """Return the largest relative error of the outputs of a case."""
    return max((output.relative for output in case.outputs), default=0.0)


def _counts(run: Run, case: Case) -> bool:
    """Return True if a case is evidence about the model.

    A difference for scaled inputs counts only if the reference's error against the float64 result
    is at most LARGE_NOISE.
    """
    known = [c.reference_exact for c in case.outputs if not c.ok and c.reference_exact is not None]
    return run.given.factor == 1.0 or case.ok or any(error <= LARGE_NOISE for error in known)


def worth(outputs: Sequence[Arrays]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return messages about outputs that allow no comparison, and messages about outputs that make
    a weak one.

    outputs    the reference's outputs by name, for each run
    """
    nothing, little = {}, {}
    for name in outputs[0] if outputs else ():
        arrays = [made[name] for made in outputs]
        if problem := nothing_compared(arrays):
            nothing[name] = f"output {name!r} {problem}"
        elif problem := little_compared(arrays):
            little[name] = f"output {name!r} {problem}"
    return tuple(nothing.values()), tuple(little.values())


def _exposed(model: onnx.ModelProto, known: Sequence[str], memory: int) -> Iterator[tuple[onnx.ModelProto, int]]:
    """Yield copies of an ONNX model in which intermediate results are outputs too, as many per copy
    as `memory` allows, in the order of the nodes.

    With each copy comes the number of leading nodes whose results this copy and the copies before
    it have as outputs.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v for v in inferred.graph.value_info if v.type.HasField("tensor_type")}
    present = {*known, *(o.name for o in model.graph.output)}
    made = {name: k for k, node in enumerate(model.graph.node) for name in node.output}
    rest = [types[name] for name in made if name in types and name not in present]
    while True:
        group: list[onnx.ValueInfoProto] = []
        size = 0
        while rest and (not group or size + _shown_bytes(rest[0]) <= memory):
            size += _shown_bytes(rest[0])
            group.append(rest.pop(0))
        part = copy.deepcopy(model)
        part.graph.output.extend(group)
        yield part, made[rest[0].name] if rest else len(model.graph.node)
        if not rest:
            return


def _shown_bytes(value: onnx.ValueInfoProto) -> int:
    """Return the bytes that an intermediate result takes as an output of every evaluation, in
    float64.
    """
    return EVALUATIONS * 8 * prod(max(1, int(d.dim_value)) for d in value.type.tensor_type.shape.dim)


def first_difference(
    model: onnx.ModelProto, types: Mapping[str, TensorType], inputs: Arrays, options: CompileOptions, memory: int
) -> str:
    """Return a description of the first node of an ONNX model, in its order, whose result differs
    from the reference when it is an output; "" for none.

    Making results outputs changes which operators are fused: a difference that fusion causes may
    disappear.

    memory    largest number of bytes of the results that are outputs at one time, and of float64
              evaluations
    """
    options.progress("looking for the first node that differs")
    # the model has been cut already
    whole = replace(options, cut_before=(), cut_after=())
    for exposed, count in _exposed(model, list(types), memory):
        _, report = _compared(whole.compiled(exposed), exposed, types, [InputSet("", inputs)], memory)
        wrong = {c.name: c for c in report.cases[0].outputs if not c.ok}
        for index, node in enumerate(model.graph.node[:count]):
            for result in (wrong[name] for name in node.output if name in wrong):
                return f"node {node.name or f'#{index}'} ({node.op_type}), output {result.name!r}: {result.reason}"
    return ""
