# SPDX-License-Identifier: Apache-2.0
"""Compiled C against an independent implementation, and the first node and kernel that differ.

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

#: What a process that verifies ends with, by verdict.
EXIT_CODES: Final = {"agree": 0, "differ": 1, "inconclusive": 3}

#: How many evaluations a result is compared in: the compiled model's, the reference's, and two of the judge.
EVALUATIONS: Final = 4

Model: TypeAlias = "onnx.ModelProto | ExportedProgram | IRModule | TfliteFile"


@frozen
class Case:
    """The outputs for one set of inputs; `source` is "seed 0" or the name of a file."""

    source: str
    outputs: tuple[Comparison, ...]
    ok: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ok", all(o.ok for o in self.outputs))


@frozen
class Report:
    """All cases, and the implementation they were compared with.

    first_difference   on request, the first node whose result differs
    wrong_kernel       with it, the first kernel that is wrong ...
    blame              ... and who made it so: "the C compiler" or "the schedule"
    device             what ran a model for GPUs
    unchecked          where the C compiler was checked, what of its work was not, and why
    inconclusive       what could not be compared, since the outputs have no finite element
    warnings           why outputs say little: they are constant, or NaN in part
    verdict            "agree", "differ" or "inconclusive"; a difference is one even where other outputs say nothing
    ok                 whether the verdict is "agree"
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
        """The result as data, ready for JSON."""
        return asdict(self)


@frozen
class Run:
    """One set of inputs, and what the compiled model and the reference made of it.

    given     the inputs as they were drawn, of which `inputs` are those that the reference gets
    """

    given: InputSet
    inputs: Arrays
    actual: Arrays
    expected: Arrays


def judged(runs: Sequence[Run], float32_bound: float, reference: Reference) -> tuple[Case, ...]:
    """The comparisons of all runs; outputs beyond the bound are judged by the reference's other results."""
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
    """As `judged`, where the results in double precision are only computed of usual inputs and of those that differ.

    The rounding of larger and smaller inputs says nothing of others: they are judged apart.
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
    """Compares integers that differ from the reference's with the definition, in place."""
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
    """Compares an output that differs from the reference's with that in double precision, in place.

    rounded    the results of another evaluation in the precision of the model, which are only asked for if needed
    """
    wrong = [k for k, row in enumerate(found) if not row[name].ok]
    close = [exact_error(runs[k].actual[name], exact[k][name]) <= found[k][name].bound for k in wrong]
    others = [[r.expected[name] for r in runs]]
    second = None if all(close) else _of_dtype(name, runs, rounded())
    others += [] if second is None else [second]
    errors = [[exact_error(a, e[name]) for a, e in zip(arrays, exact, strict=True)] for arrays in others]
    # an error of a discontinuity that rounding leads across says nothing of the other runs
    usable = [k for k in range(len(runs)) if all(row[k] <= UNTRUSTED for row in errors)] or range(len(runs))
    noise, *rounding = (max(row[k] for k in usable) for row in errors)
    # inputs for which both others are on another side than the exact result, and how far they are apart then
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
    """The results of another evaluation for an output, None where there is none in the output's dtype."""
    if rounded is None or any(
        found[name].dtype != r.expected[name].dtype for found, r in zip(rounded, runs, strict=True)
    ):
        return None
    return [found[name] for found in rounded]


def _exact_results(exact_run: ExactRun, runs: Sequence[Run]) -> list[Arrays] | None:
    """The outputs of every run in double precision; None where they cannot be had."""
    results: list[Arrays] = []
    for r in runs:
        exact = exact_run(r.inputs)
        if exact is None or any(exact[n].shape != a.shape for n, a in r.expected.items()):
            return None
        results.append(exact)
    return results


def with_static_inputs(model: onnx.ModelProto, types: Mapping[str, TensorType]) -> onnx.ModelProto:
    """A copy whose inputs declare the pinned shapes, so that the reference sees the same model."""
    pinned = copy.deepcopy(model)
    for value in pinned.graph.input:
        if value.name in types and value.type.HasField("tensor_type"):
            dims = [onnx.TensorShapeProto.Dimension(dim_value=d) for d in types[value.name].static_shape]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))
    return pinned


def reference_of(
    model: Model, types: Mapping[str, TensorType], names: Sequence[str], memory: int = DEFAULT_MEMORY_BYTES
) -> Reference:
    """The implementation that a loaded model is compared with.

    names     of the outputs
    memory    the most bytes that a result in double precision may take
    """
    if isinstance(model, IRModule):
        return relay_reference(infer_module(model), names, memory)
    if isinstance(model, TfliteFile):
        return tflite_reference(model, names)
    if is_exported_program(model):
        # torch is an extra
        from aotc.checking.reference_torch import torch_reference

        return torch_reference(model, names, memory)
    return onnx_reference(with_static_inputs(model, types), memory)


def loaded(model: str | Path | Model, rounding: str = "tflm") -> Model:
    """A model in memory, of whatever kind the file is; `rounding` is that of a TFLite file."""
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
    """The options; those of a TFLite file with the rounding of an interpreter that is there."""
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
    """Compile a model and compare its outputs with another implementation (`reference_of`): ONNX Runtime or onnx's
    evaluator, torch for .pt2 files, tflite-micro or LiteRT for .tflite files, as their rounding says or as they are
    installed, the numpy interpreter for .relay files.

    A model for GPUs runs on the first one; where there is none, this machine's processor emulates one.

    An output passes if its error relative to the reference's standard deviation is within the bound of its
    dtype, or, for networks that amplify rounding errors beyond it, if it is about as close to the result in
    double precision as the reference is, and as another evaluation in the same precision.

    Outputs without a finite element in any run show nothing: the verdict is "inconclusive" then, which is not ok.

    inputs    an .npz file with inputs; else `seeds` random sets, of values that suit what the model does with them, and
              as many whose floats are larger or smaller
    input_ranges   the least and the greatest value of random inputs by name, where these are known better
    bisect    on a difference, name the first node of an ONNX model whose result differs, and the first kernel whose
              compiled code differs from its program, or whose program differs from its operators
    check_compiler   as for `aotc.compile`; for None, unless `bisect` compares kernels with their programs, or they are
              for GPUs
    memory    the most bytes that judges and `bisect` may take; AotcError (code "memory") where they do not do
    project   a project of the model that was built before, or its library, which runs as it stands
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
    """Whether a model has scales for inputs of the usual size."""
    return isinstance(model, onnx.ModelProto) and is_quantized(model)


def _require_comparable(model: object, chosen: CompileOptions, bisect: bool, project: Path | None) -> None:
    """Raise AotcError for options with which a model cannot be compared, or bisected."""
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
    """A report of a difference with the first kernel that is wrong on these inputs.

    first        the first node that differs, "" for none
    has_nodes    whether nodes were compared
    bound        what the error of a float32 result relative to its standard deviation may be
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
    """Both on one set of inputs; where the compiled model takes and gives
    integers, the reference has the real numbers that these stand for.
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
    """A compiled model and its reference on sets of inputs.

    Models that quantize run on those for which they have scales: none that is enlarged or shifted.
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
    """The runs that a report tells of: the usual ones, those that differ, and the worst one of every other factor."""
    found = [(run, case) for run, case in zip(runs, cases, strict=True) if is_quantized or _counts(run, case)]
    worst: dict[float, Case] = {}
    for run, case in found:
        if not run.given.usual and case.ok:
            worst[run.given.factor] = max(worst.get(run.given.factor, case), case, key=_largest)
    names = {case.source for case in worst.values()}
    kept = [(r, c) for r, c in found if r.given.usual or not c.ok or c.source in names]
    return [run for run, _ in kept], tuple(case for _, case in kept)


def _largest(case: Case) -> float:
    return max((output.relative for output in case.outputs), default=0.0)


def _counts(run: Run, case: Case) -> bool:
    """Whether a case says something of the model.

    Where larger or smaller inputs give a difference, it does if the reference itself is near the exact result there.
    """
    known = [c.reference_exact for c in case.outputs if not c.ok and c.reference_exact is not None]
    return run.given.factor == 1.0 or case.ok or any(error <= LARGE_NOISE for error in known)


def worth(outputs: Sequence[Arrays]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return sentences about outputs that make a comparison inconclusive, and about those that deserve a warning."""
    nothing, little = {}, {}
    for name in outputs[0] if outputs else ():
        arrays = [made[name] for made in outputs]
        if problem := nothing_compared(arrays):
            nothing[name] = f"output {name!r} {problem}"
        elif problem := little_compared(arrays):
            little[name] = f"output {name!r} {problem}"
    return tuple(nothing.values()), tuple(little.values())


def _exposed(model: onnx.ModelProto, known: Sequence[str], memory: int) -> Iterator[tuple[onnx.ModelProto, int]]:
    """Copies in which intermediates of known type are outputs too: all in one, or as many as the memory is enough for,
    in the order of the nodes; with each, how many nodes it and the ones before it show.
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
    """The bytes of an intermediate that is an output in every evaluation, in double precision."""
    return EVALUATIONS * 8 * prod(max(1, int(d.dim_value)) for d in value.type.tensor_type.shape.dim)


def first_difference(
    model: onnx.ModelProto, types: Mapping[str, TensorType], inputs: Arrays, options: CompileOptions, memory: int
) -> str:
    """The first node, in the model's order, of which a result differs when its result is an output; "" for none.

    Showing results changes what is fused: a difference that fusion makes may go away.

    memory    the most bytes of all results that are outputs at the same time, and of results in double precision
    """
    options.progress("looking for the first node that differs")
    # the model is the part already
    whole = replace(options, cut_before=(), cut_after=())
    for exposed, count in _exposed(model, list(types), memory):
        _, report = _compared(whole.compiled(exposed), exposed, types, [InputSet("", inputs)], memory)
        wrong = {c.name: c for c in report.cases[0].outputs if not c.ok}
        for index, node in enumerate(model.graph.node[:count]):
            for result in (wrong[name] for name in node.output if name in wrong):
                return f"node {node.name or f'#{index}'} ({node.op_type}), output {result.name!r}: {result.reason}"
    return ""
