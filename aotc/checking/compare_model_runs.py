# SPDX-License-Identifier: Apache-2.0
"""Comparison of all runs of a compiled model with the reference's runs on the same inputs.

    runs = [Run(input_set, inputs, actual, expected)]
    cases = compare_runs_grouped_by_input_scale(runs, 1e-4, reference)
    cases[0].outputs[0].relative

Outputs beyond the bound of their dtype are judged again by results of the reference in float64, by
the definition of a quantized network, or by a second evaluation in the precision of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cache, partial
from typing import Final, TypeAlias

import numpy as np

from aotc.checking.input_generation import Arrays, InputSet
from aotc.checking.model_reference_runs import (
    ModelRunner,
    OptionalModelRunner,
    Reference,
    return_none_as_unavailable_evaluation,
)
from aotc.checking.output_comparison import (
    LARGE_NOISE,
    MAX_TRUSTED_REFERENCE_ERROR,
    Comparison,
    QuantizedOutputs,
    compare_arrays,
    judge_by_second_evaluation,
    max_error_explained_by_rounding,
    rejudge_against_float64_result,
    rejudge_against_reduced_precision,
    rejudge_against_reference_spread,
    rejudge_by_neighboring_inputs,
    rejudge_integers_by_definition,
    rejudge_quantized_floats,
    relative_error_against_float64,
    relative_error_bound_for_dtype,
    why_comparison_is_weak,
    why_no_comparison_is_possible,
)
from aotc.ir import AotcError, Array, DType, frozen

#: Function that returns the outputs of every run by another evaluation, None if it is unavailable.
EvaluationOfRuns: TypeAlias = Callable[[], "list[Arrays] | None"]
#: Number of additional samples of the rounding error for a run whose error is near the accepted one.
NEARBY_SAMPLES: Final = 16
#: Distances of neighboring inputs, in units in the last place, at which the reference is run to find
#: out how far rounding can move its results.
NEIGHBOR_DISTANCES_ULPS: Final = (1,) * 8 + (4,) * 8 + (16,) * 8
#: Largest ratio of a run's error to the accepted error at which more samples of the rounding error
#: are taken. The accepted error is four times one sample; the ratio of two normally distributed
#: samples exceeds 32 with a probability of 2 percent.
MAX_UNLUCKY_SAMPLE_FACTOR: Final = 8.0


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


def compare_runs_with_reference(runs: Sequence[Run], float32_bound: float, reference: Reference) -> tuple[Case, ...]:
    """Compare the outputs of all runs with the reference; return one Case per run.

    Outputs beyond their bound are judged again by the reference's other results: in float64, by
    definition, or by a second evaluation.

    float32_bound    largest accepted relative error of float32 outputs
    """
    comparisons = [_compare_outputs(run, float32_bound) for run in runs]
    rounded = cache(lambda: _evaluate_runs_or_none(reference.rounded, runs))
    defined = cache(lambda: _evaluate_runs_or_none(reference.defined, runs))
    if reference.quantized:
        _rejudge_integer_outputs(runs, comparisons, defined, rounded)
    noisy = sorted({name for row in comparisons for name, c in row.items() if not c.ok})
    exact = _evaluate_runs_or_none(reference.exact, runs) if noisy else None
    for name in noisy if exact is not None else ():
        if reference.quantized:
            _rejudge_quantized_float_output(name, runs, comparisons, exact or [], defined(), rounded)
        else:
            _rejudge_float_output(name, runs, comparisons, exact or [], rounded)
    return tuple(Case(r.given.source, tuple(row.values())) for r, row in zip(runs, comparisons, strict=True))


def compare_runs_in_reduced_precision(
    runs: Sequence[Run], float32_bound: float, rounding_error: float, evaluate: ModelRunner
) -> tuple[Case, ...]:
    """Compare the outputs of a model whose products are in reduced precision with those of the
    reference in float32.

    Outputs for ordinary inputs are close to those of a second evaluation in this precision, closer
    than a wrong bias or weight of one layer leaves them. Outputs for other inputs are judged by the
    bound, and beyond it by the error of the second evaluation, the largest over all inputs of one
    scale factor.

    float32_bound     largest accepted relative error of float32 outputs
    rounding_error    largest relative error of one rounding to this precision
    evaluate          the second evaluation: outputs by name for inputs by name
    """
    comparisons = [_compare_outputs(run, float32_bound) for run in runs]
    for usual, factor in sorted({(run.given.usual, run.given.factor) for run in runs}):
        group = [k for k, run in enumerate(runs) if (run.given.usual, run.given.factor) == (usual, factor)]
        if not usual and all(c.ok for k in group for c in comparisons[k].values()):
            continue
        try:
            results = {k: evaluate(runs[k].inputs) for k in group}
        except AotcError as problem:
            # without memory for a second evaluation, the bound alone decides
            if problem.diagnostics[0].code == "memory" and all(c.ok for k in group for c in comparisons[k].values()):
                continue
            raise
        for name in runs[group[0]].expected:
            error = max(compare_arrays(name, results[k][name], runs[k].expected[name], 0.0).relative for k in group)
            for k in group:
                first = comparisons[k][name]
                if usual and error <= MAX_TRUSTED_REFERENCE_ERROR:
                    distance = compare_arrays(name, runs[k].actual[name], results[k][name], 0.0).relative
                    comparisons[k][name] = judge_by_second_evaluation(first, error, distance, rounding_error)
                elif not first.ok:
                    comparisons[k][name] = rejudge_against_reduced_precision(first, error)
    return tuple(Case(r.given.source, tuple(row.values())) for r, row in zip(runs, comparisons, strict=True))


def _compare_outputs(run: Run, float32_bound: float) -> dict[str, Comparison]:
    """Return the comparisons of a run's outputs with the reference, by the bounds of their dtypes."""
    return {
        name: compare_arrays(
            name, run.actual[name], expected, relative_error_bound_for_dtype(DType.from_numpy(expected), float32_bound)
        )
        for name, expected in run.expected.items()
    }


def compare_runs_grouped_by_input_scale(
    runs: Sequence[Run], float32_bound: float, reference: Reference
) -> tuple[Case, ...]:
    """Compare the outputs of all runs as `compare_runs_with_reference` does, with float64 results
    only for ordinary inputs and for inputs whose outputs differ.

    Runs are judged in groups by scale factor, together with the ordinary runs: the rounding error
    for scaled inputs says nothing about inputs of another magnitude. For one set of inputs, the
    error of the second evaluation is one sample of a random quantity and may be small by chance.
    Before a run fails whose error is near the accepted one, it is judged again with more samples,
    from inputs that differ by rounding only. Such samples also judge outputs without a float64
    result, and outputs for which the reference is far from it.
    """
    plain = replace(
        reference, exact=return_none_as_unavailable_evaluation, rounded=return_none_as_unavailable_evaluation
    )
    cases = list(compare_runs_with_reference(runs, float32_bound, reference if reference.quantized else plain))
    for factor in sorted({r.given.factor for r in runs}) if not reference.quantized else ():
        wrong = [k for k, r in enumerate(runs) if not cases[k].ok and r.given.factor == factor]
        group = sorted({*wrong, *(k for k, r in enumerate(runs) if r.given.usual)}) if wrong else []
        judged = compare_runs_with_reference([runs[k] for k in group], float32_bound, reference)
        for k, case in zip(group, judged, strict=True):
            cases[k] = case if k in wrong else cases[k]
        borderline = [k for k in wrong if _may_rounding_explain_failure(cases[k])]
        samples = [sample for k in borderline for sample in _reference_runs_on_perturbed_inputs(runs[k], reference)]
        if samples:
            judged = compare_runs_with_reference([*(runs[k] for k in group), *samples], float32_bound, reference)
            for k, case in zip(group, judged[: len(group)], strict=True):
                cases[k] = case if k in borderline else cases[k]
    # rounding to integers moves results of quantized networks for almost all neighboring inputs
    for k, case in enumerate(() if reference.quantized or reference.has_exact_integers else cases):
        cases[k] = _rejudge_case_by_neighboring_inputs(runs[k], case, reference)
        if not cases[k].ok and _is_case_evidence_about_compiled_model(runs[k], cases[k]):
            # the verdict is certain: runs of the reference for further cases would change nothing
            break
    return tuple(cases)


def _may_rounding_explain_failure(case: Case) -> bool:
    """Return True if all failed outputs of a case have an error that more samples of the rounding
    error could explain: at most MAX_UNLUCKY_SAMPLE_FACTOR times the accepted error.
    """
    return not case.ok and all(
        c.exact is not None
        and c.reference_exact is not None
        and c.rounding is not None
        and c.exact
        <= MAX_UNLUCKY_SAMPLE_FACTOR * max_error_explained_by_rounding(c.bound, min(c.reference_exact, c.rounding))
        for c in case.outputs
        if not c.ok
    )


def _rejudge_case_by_neighboring_inputs(run: Run, case: Case, reference: Reference) -> Case:
    """Judge the failed outputs of a case for which float64 is no measure again by the reference's
    results for neighboring inputs; return the case unchanged if one of its failures cannot be
    explained by them.
    """
    failed = {c.name: c for c in case.outputs if not c.ok}
    float_inputs = any(a.dtype.kind == "f" for a in run.inputs.values())
    if not (failed and float_inputs and all(map(_should_rejudge_by_neighboring_inputs, failed.values()))):
        return case
    differences = dict.fromkeys(failed, 0.0)
    rng = np.random.default_rng(0)
    for ulps in NEIGHBOR_DISTANCES_ULPS:
        inputs = {n: _perturb_floats_by_at_most_ulps(a, ulps, rng) for n, a in run.inputs.items()}
        results = reference.run(inputs)
        for name, largest in differences.items():
            difference = relative_error_against_float64(results[name], run.expected[name])
            # a neighboring input may leave the domain of an operator, which says nothing about rounding
            differences[name] = max(largest, difference) if np.isfinite(difference) else largest
        judged = {n: rejudge_by_neighboring_inputs(c, differences[n]) for n, c in failed.items()}
        if all(c.ok for c in judged.values()):
            return Case(case.source, tuple(judged.get(c.name, c) for c in case.outputs))
    return case


def _should_rejudge_by_neighboring_inputs(failed: Comparison) -> bool:
    """Return True for a difference of floats that the largest accepted rounding error could explain,
    if there is no float64 result or the reference is far from it.
    """
    is_far = failed.reference_exact is None or failed.reference_exact > MAX_TRUSTED_REFERENCE_ERROR
    # integers have the bound 0
    return is_far and failed.bound > 0 and rejudge_by_neighboring_inputs(failed, MAX_TRUSTED_REFERENCE_ERROR).ok


def _perturb_floats_by_at_most_ulps(array: Array, max_ulps: int, rng: np.random.Generator) -> Array:
    """Return a float array with each element multiplied by 1 + k * epsilon / 2, with k a random
    integer of at most `max_ulps` in magnitude; other arrays are returned unchanged.
    """
    if array.dtype.kind != "f":
        return array
    steps = rng.integers(-max_ulps, max_ulps + 1, array.shape)
    return np.asarray(array * (1 + steps * (np.finfo(array.dtype).eps / 2)), array.dtype)


def _reference_runs_on_perturbed_inputs(run: Run, reference: Reference) -> list[Run]:
    """Return runs of the reference on inputs that differ from those of `run` by rounding only: each
    float is its value or the next one toward zero.

    The runs sample the rounding error of the reference and, by its second evaluation, of the
    precision of the model. Their compiled outputs are the reference's. The list is empty if no
    input is a float.
    """
    if not any(a.dtype.kind == "f" for a in run.inputs.values()):
        return []
    rng = np.random.default_rng(0)
    samples: list[Run] = []
    for index in range(NEARBY_SAMPLES):
        inputs = {n: _move_random_half_one_ulp_toward_zero(a, rng) for n, a in run.inputs.items()}
        expected = reference.run(inputs)
        source = f"{run.given.source}, nearby inputs {index}"
        samples.append(Run(replace(run.given, source=source, usual=False), inputs, expected, expected))
    return samples


def _move_random_half_one_ulp_toward_zero(array: Array, rng: np.random.Generator) -> Array:
    """Return a float array with half of its finite elements replaced by the next value toward zero;
    other arrays are returned unchanged.
    """
    if array.dtype.kind != "f":
        return array
    # the value next to infinity is finite, and more than a rounding apart
    replaced = np.isfinite(array) & (rng.random(array.shape) < 0.5)
    return np.where(replaced, np.nextafter(array, array.dtype.type(0)), array)


def _rejudge_integer_outputs(
    runs: Sequence[Run],
    comparisons: list[dict[str, Comparison]],
    results_by_definition: EvaluationOfRuns,
    second_evaluation: EvaluationOfRuns,
) -> None:
    """Judge integer outputs that differ from the reference's again by the network's definition;
    update `comparisons` in place.

    results_by_definition    returns, for each run, the outputs by definition
    second_evaluation        returns the outputs by definition with each operator in float32
    """
    kinds = runs[0].expected.items() if runs else ()
    wrong = [n for n, e in kinds if e.dtype.kind in "iu" and not all(row[n].ok for row in comparisons)]
    defined = results_by_definition() if wrong else None
    for name in wrong if defined else ():
        triples = [(r.actual[name], r.expected[name], d[name]) for r, d in zip(runs, defined or (), strict=True)]
        second = partial(_select_output_of_second_evaluation, name, runs, second_evaluation)
        for row in comparisons:
            row[name] = row[name] if row[name].ok else rejudge_integers_by_definition(row[name], triples, second)


def _rejudge_quantized_float_output(
    output_name: str,
    runs: Sequence[Run],
    comparisons: list[dict[str, Comparison]],
    unrounded: Sequence[Arrays],
    defined: Sequence[Arrays] | None,
    second_evaluation: EvaluationOfRuns,
) -> None:
    """Judge a float output of a quantized network that differs from the reference's again, for all
    runs of a scale factor together; update `comparisons` in place.

    comparisons          for each run, comparisons by name of the output
    unrounded            for each run, outputs in float64 without rounding to integers
    defined              for each run, outputs by definition; None if they are unknown
    second_evaluation    returns the outputs by definition with each operator in float32
    """

    def concatenate_flattened_arrays_of_runs(array_of_each_run: Sequence[Array], run_indices: Sequence[int]) -> Array:
        return np.concatenate([np.asarray(array_of_each_run[k]).reshape(-1) for k in run_indices])

    def concatenate_second_outputs_of_runs(run_indices: Sequence[int]) -> Array | None:
        second = _select_output_of_second_evaluation(output_name, runs, second_evaluation)
        return None if second is None else concatenate_flattened_arrays_of_runs(second, run_indices)

    for factor in sorted({r.given.factor for r in runs}):
        members = [k for k, r in enumerate(runs) if r.given.factor == factor]
        outputs = QuantizedOutputs(
            concatenate_flattened_arrays_of_runs([r.actual[output_name] for r in runs], members),
            concatenate_flattened_arrays_of_runs([r.expected[output_name] for r in runs], members),
            concatenate_flattened_arrays_of_runs([row[output_name] for row in unrounded], members),
            None
            if defined is None
            else concatenate_flattened_arrays_of_runs([row[output_name] for row in defined], members),
        )
        for row in (comparisons[k] for k in members if not comparisons[k][output_name].ok):
            row[output_name] = rejudge_quantized_floats(
                row[output_name], outputs, partial(concatenate_second_outputs_of_runs, members)
            )


def _rejudge_float_output(
    output_name: str,
    runs: Sequence[Run],
    comparisons: list[dict[str, Comparison]],
    float64_results: Sequence[Arrays],
    second_evaluation: EvaluationOfRuns,
) -> None:
    """Judge a float output that differs from the reference's again by the float64 result; update
    `comparisons` in place.

    comparisons          for each run, comparisons by name of the output
    float64_results      for each run, outputs in float64
    second_evaluation    returns the results of a second evaluation in the precision of the model; called only
                         if needed
    """
    wrong = [k for k, row in enumerate(comparisons) if not row[output_name].ok]
    close = [
        relative_error_against_float64(runs[k].actual[output_name], float64_results[k][output_name])
        <= comparisons[k][output_name].bound
        for k in wrong
    ]
    evaluations = [[r.expected[output_name] for r in runs]]
    second = None if all(close) else _select_output_of_second_evaluation(output_name, runs, second_evaluation)
    evaluations += [] if second is None else [second]
    errors = [
        [relative_error_against_float64(a, e[output_name]) for a, e in zip(arrays, float64_results, strict=True)]
        for arrays in evaluations
    ]
    # where rounding moves a value across a discontinuity (such as an argmax or an integer step), an
    # evaluation's error is large: such a run does not tell how large its error is in further runs
    noise, *rounding = (max([error for error in row if error <= MAX_TRUSTED_REFERENCE_ERROR] or row) for row in errors)
    # runs where both other evaluations are far from the exact result, with the distance between them
    beyond = {
        k: relative_error_against_float64(second[k], r.expected[output_name])
        for k, r in enumerate(runs)
        if second is not None and min(row[k] for row in errors) > MAX_TRUSTED_REFERENCE_ERROR
    }
    reference_spread = max((d for d in beyond.values() if d <= MAX_TRUSTED_REFERENCE_ERROR), default=0.0)
    for k in wrong:
        mine, e = runs[k].actual[output_name], float64_results[k][output_name]
        if k in beyond:
            comparisons[k][output_name] = rejudge_against_reference_spread(
                comparisons[k][output_name], mine, e, runs[k].expected[output_name], reference_spread
            )
        else:
            comparisons[k][output_name] = rejudge_against_float64_result(
                comparisons[k][output_name], mine, e, noise, rounding[0] if rounding else None
            )


def _select_output_of_second_evaluation(
    output_name: str, runs: Sequence[Run], second_evaluation: EvaluationOfRuns
) -> list[Array] | None:
    """Return one output of a second evaluation for all runs; None if there is no evaluation or it
    has another dtype than the reference.
    """
    rows = second_evaluation()
    if rows is None or any(
        outputs[output_name].dtype != r.expected[output_name].dtype for outputs, r in zip(rows, runs, strict=True)
    ):
        return None
    return [outputs[output_name] for outputs in rows]


def _evaluate_runs_or_none(evaluate: OptionalModelRunner, runs: Sequence[Run]) -> list[Arrays] | None:
    """Return the outputs of every run by another evaluation, for instance in float64; None if one
    fails or has other shapes.
    """
    results: list[Arrays] = []
    for r in runs:
        exact = evaluate(r.inputs)
        if exact is None or any(exact[n].shape != a.shape for n, a in r.expected.items()):
            return None
        results.append(exact)
    return results


def select_runs_for_report(
    runs: Sequence[Run], cases: Sequence[Case], is_quantized: bool
) -> tuple[list[Run], tuple[Case, ...]]:
    """Return the runs and cases for a report: ordinary inputs, inputs whose outputs differ, and the
    case with the largest error of each other scale factor.
    """
    judgeable_pairs = [
        (run, case)
        for run, case in zip(runs, cases, strict=True)
        if is_quantized or _is_case_evidence_about_compiled_model(run, case)
    ]
    worst: dict[float, Case] = {}
    for run, case in judgeable_pairs:
        if not run.given.usual and case.ok:
            worst[run.given.factor] = max(worst.get(run.given.factor, case), case, key=_largest_relative_error)
    names = {case.source for case in worst.values()}
    reported_pairs = [(r, c) for r, c in judgeable_pairs if r.given.usual or not c.ok or c.source in names]
    return [run for run, _ in reported_pairs], tuple(case for _, case in reported_pairs)


def _largest_relative_error(case: Case) -> float:
    """Return the largest relative error of the outputs of a case."""
    return max((output.relative for output in case.outputs), default=0.0)


def _is_case_evidence_about_compiled_model(run: Run, case: Case) -> bool:
    """Return True if a case is evidence about the model.

    A difference for scaled inputs counts only if the reference's error against the float64 result
    is at most LARGE_NOISE.
    """
    known = [c.reference_exact for c in case.outputs if not c.ok and c.reference_exact is not None]
    return run.given.factor == 1.0 or case.ok or any(error <= LARGE_NOISE for error in known)


def messages_on_inconclusive_or_weak_outputs(
    reference_outputs: Sequence[Arrays],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return messages about outputs that allow no comparison, and messages about outputs that make
    a weak one.

    reference_outputs    the reference's outputs by name, for each run
    """
    nothing, little = {}, {}
    for name in reference_outputs[0] if reference_outputs else ():
        arrays = [outputs[name] for outputs in reference_outputs]
        if problem := why_no_comparison_is_possible(arrays):
            nothing[name] = f"output {name!r} {problem}"
        elif problem := why_comparison_is_weak(arrays):
            little[name] = f"output {name!r} {problem}"
    return tuple(nothing.values()), tuple(little.values())
