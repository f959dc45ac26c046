# SPDX-License-Identifier: Apache-2.0
"""Differences between results: absolute, relative, in units in the last place."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aotc.checking.compare_model_runs import Case, Run, compare_runs_grouped_by_input_scale
from aotc.checking.input_generation import Arrays, InputSet, file_or_random_and_scaled_inputs
from aotc.checking.model_reference_runs import Reference
from aotc.checking.output_comparison import (
    Comparison,
    QuantizedOutputs,
    compare_arrays,
    max_ulp_distance,
    rejudge_against_reference_spread,
    rejudge_quantized_floats,
    signal_to_noise_decibels,
)
from aotc.ir.types import TensorType
from aotc.relay.valid_input_values_and_random_arrays import ValueDomain


def test_ulp_distance_counts_values_between() -> None:
    one = np.array([1.0], np.float32)
    assert max_ulp_distance(one, np.nextafter(one, np.float32(2))) == 1
    tiny = np.array([np.finfo(np.float32).smallest_subnormal], np.float32)
    assert max_ulp_distance(tiny, -tiny) == 2  # across zero
    assert max_ulp_distance(np.array([1.0]), np.array([1.0 + 2**-51])) == 2
    half = np.array([1.0], ml_dtypes.bfloat16)
    assert max_ulp_distance(half, np.array([1.0078125], ml_dtypes.bfloat16)) == 1


def test_the_error_is_relative_to_the_spread() -> None:
    expected = np.array([100.0, 101.0, 99.0, 100.0], np.float32)
    actual = expected + np.float32(1e-3)
    result = compare_arrays("y", actual, expected, 1e-5)
    assert not result.ok
    assert result.relative == pytest.approx(1e-3 / expected.std(), rel=1e-2)
    assert compare_arrays("y", actual, expected, 1e-2).ok


def test_nan_and_infinity_must_agree() -> None:
    expected = np.array([np.nan, np.inf, 1.0], np.float32)
    assert compare_arrays("y", expected.copy(), expected, 1e-5).ok
    assert not compare_arrays("y", np.array([np.nan, -np.inf, 1.0], np.float32), expected, 1e-5).ok
    assert not compare_arrays("y", np.array([0.0, np.inf, 1.0], np.float32), expected, 1e-5).ok


def test_integers_must_be_equal() -> None:
    expected = np.array([1000, 2000])
    assert compare_arrays("y", expected.copy(), expected, 1e-5).ok
    result = compare_arrays("y", expected + np.array([0, 1]), expected, 1e-5)
    assert result.reason == "1 of 2 elements differ"


def test_shape_and_dtype_must_agree() -> None:
    x = np.zeros((2, 3), np.float32)
    assert "expected float32[3, 2]" in compare_arrays("y", x, x.reshape(3, 2), 1.0).reason
    assert "expected float64" in compare_arrays("y", x, x.astype(np.float64), 1.0).reason
    assert compare_arrays("y", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), 0.0).ok


# --- quantized models


def test_decibels_count_noise() -> None:
    exact = np.array([10.0, 0.0, -10.0])
    assert signal_to_noise_decibels(exact + np.array([0.1, 0.0, 0.0]), exact) == pytest.approx(43.01, abs=0.01)
    assert signal_to_noise_decibels(exact, exact) == np.inf


def test_noise_may_be_half_a_decibel_above_that_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(10_000)
    noise = rng.standard_normal((2, 10_000)) * 0.05
    theirs = (exact + noise[0]).astype(np.float32)

    def judged(factor: float) -> str:
        ours = (exact + factor * noise[1]).astype(np.float32)
        return rejudge_quantized_floats(
            compare_arrays("y", ours, theirs, 1e-5), QuantizedOutputs(ours, theirs, exact)
        ).reason

    assert judged(1.0) == judged(0.5) == judged(1.04) == ""
    assert judged(1.12).startswith("signal to noise is 2")


def test_integers_and_nan_are_not_judged_by_noise() -> None:
    expected = np.array([1, 2, 3], np.int8)
    found = compare_arrays("y", expected + np.int8(1), expected, 1e-5)
    outputs = QuantizedOutputs(expected + np.int8(1), expected, expected.astype(np.float64))
    assert rejudge_quantized_floats(found, outputs) is found
    bad = np.array([np.nan, 1.0], np.float32)
    found = compare_arrays("y", bad, np.ones(2, np.float32), 1e-5)
    assert not rejudge_quantized_floats(found, QuantizedOutputs(bad, np.ones(2, np.float32), np.ones(2))).ok


def test_outputs_of_quantized_networks_are_near_their_definition() -> None:
    """A signal to noise ratio as good as the reference's does not excuse another result."""
    rng = np.random.default_rng(3)
    exact = rng.standard_normal(2000)
    defined = np.rint(exact * 8) / 8
    theirs = defined.astype(np.float32)

    def judged(ours: np.ndarray) -> str:
        wide = ours.astype(np.float32)
        return rejudge_quantized_floats(
            compare_arrays("y", wide, theirs, 1e-5), QuantizedOutputs(wide, theirs, exact, defined)
        ).reason

    one_step = defined.copy()
    one_step[7] += 1 / 8
    assert not judged(defined) and not judged(one_step * (1 + 1e-6))
    assert judged(exact).startswith("the root mean square deviation from the model's definition is")
    assert judged(np.where(np.arange(2000) % 200, defined, defined + 1 / 8)).startswith(
        "the root mean square deviation"
    )


def test_kernels_of_the_reference_that_differ_from_the_definition_excuse_nothing() -> None:
    """A second evaluation by definition shows that rounding does not explain the distance."""
    rng = np.random.default_rng(3)
    exact = rng.standard_normal(2000)
    defined = np.rint(exact * 8) / 8
    theirs = np.where(np.arange(2000) % 40, defined, defined + 1 / 8)
    ours = np.where(np.arange(2000) % 45, defined, defined + 1 / 8)
    failed = compare_arrays("y", ours, theirs, 1e-5)
    outputs = QuantizedOutputs(ours, theirs, exact, defined)
    assert rejudge_quantized_floats(failed, outputs).ok
    assert rejudge_quantized_floats(failed, outputs, lambda: theirs).reason == ""
    judged = rejudge_quantized_floats(failed, outputs, lambda: defined)
    assert judged.reason.startswith("the root mean square deviation from the model's definition is 1.9e-02 > 3.")


def test_inputs_of_known_domains_are_drawn_until_they_show_a_table() -> None:
    types, domains = {"ids": TensorType((1, 12), "int64")}, {"ids": ValueDomain(0, 49, firm=True)}
    sets = list(file_or_random_and_scaled_inputs(types, domains, None, 3, macs=1000))
    assert {int(v) for s in sets for v in s.arrays["ids"].flat} == {*range(50)}
    assert all(s.factor == 1.0 and s.within_scales for s in sets) and len({s.source for s in sets}) == len(sets)


def test_models_that_quantize_get_smaller_inputs_but_none_that_saturate() -> None:
    """A softmax that is saturated for inputs of the usual size hides weights."""
    types = {"x": TensorType((1, 4, 50, 50), "float32")}
    sets = list(file_or_random_and_scaled_inputs(types, {}, None, 3, macs=1000, within_scales=True))
    assert {s.factor for s in sets} == {1.0, 0.1} and all(s.within_scales for s in sets)
    for s in sets:
        rows = s.arrays["x"].mean((0, 2, 3)) / s.factor
        assert np.abs(rows).max() < 0.1 and 0.9 < s.arrays["x"].std() / s.factor < 1.1


def test_results_beyond_a_discontinuity_are_compared_with_each_other() -> None:
    """Both other evaluations in float32 are far from float64, and near each other."""
    rng = np.random.default_rng(4)
    exact = rng.standard_normal(100)
    theirs = np.concatenate([exact[:99], [5.0]]).astype(np.float32)
    ours = theirs * np.float32(1 + 3e-5)

    def judged(apart: float) -> Comparison:
        return rejudge_against_reference_spread(compare_arrays("y", ours, theirs, 1e-5), ours, exact, theirs, apart)

    assert judged(1e-4).ok and "by rounding (errors against float64: 5" in judged(1e-4).text
    assert judged(1e-5).reason.startswith("error against the reference is ")
    # evaluations that do not agree excuse nothing
    assert not judged(0.5).ok


#: An input with infinities, as masks of attention have.
MASK = np.array([0, -np.inf] * 20, np.float32)


def judge_with_lucky_second_evaluation(own_error: float, usual_rounding: float) -> Case:
    """Judge a result with a relative error `own_error`, where the second evaluation has an error of
    1e-6 for the given inputs and of `usual_rounding` for inputs that differ in their last bits.

    The reference has an error of 6e-5.
    """
    x = np.random.default_rng(3).standard_normal(50).astype(np.float32)

    def with_error(inputs: Arrays, error: float) -> Arrays:
        assert np.array_equal(np.isinf(inputs["mask"]), np.isinf(MASK))
        y = np.sin(inputs["x"].astype(np.float64))
        y[0] += error * y.std()
        return {"y": y.astype(np.float32)}

    reference = Reference(
        "another",
        lambda inputs: with_error(inputs, 6e-5),
        lambda inputs: {"y": np.sin(inputs["x"].astype(np.float64))},
        rounded=lambda inputs: with_error(inputs, 1e-6 if np.array_equal(inputs["x"], x) else usual_rounding),
    )
    given = InputSet("seed 7", {"x": x, "mask": MASK})
    run = Run(given, given.arrays, with_error(given.arrays, own_error), reference.run(given.arrays))
    (case,) = compare_runs_grouped_by_input_scale([run], 1e-5, reference)
    return case


def test_one_small_sample_of_the_rounding_error_does_not_fail_a_result() -> None:
    """The rounding error of inputs next to the given ones is larger, so it explains the result's error."""
    assert judge_with_lucky_second_evaluation(-3.9e-5, usual_rounding=2e-5).ok
    # here rounding is as small for all neighboring inputs, and here the error is larger than four times rounding
    assert not judge_with_lucky_second_evaluation(-3.9e-5, usual_rounding=1e-6).ok
    assert not judge_with_lucky_second_evaluation(-7.9e-5, usual_rounding=1.5e-5).ok
    # an error far beyond the accepted one is not judged again
    assert not judge_with_lucky_second_evaluation(-4e-4, usual_rounding=2e-4).ok


def test_a_run_where_the_reference_is_off_counts_for_the_second_evaluation() -> None:
    """Sigmoids near 0, which the reference rounds coarsely; the second evaluation's error there is usual."""
    exact = {seed: np.sin(np.arange(50.0) + seed) for seed in (0, 1)}

    def with_error(inputs: Arrays, *errors: float) -> Arrays:
        seed = int(inputs["seed"])
        y = exact[seed].copy()
        y[0] += errors[seed] * y.std()
        return {"y": y.astype(np.float32)}

    reference = Reference(
        "another",
        lambda inputs: with_error(inputs, 4e-3, 3.0),
        lambda inputs: {"y": exact[int(inputs["seed"])]},
        rounded=lambda inputs: with_error(inputs, 1e-3, 1.5e-3),
    )

    def judge_second_run(own_error: float) -> Case:
        sets = [InputSet(f"seed {seed}", {"seed": np.array(seed)}) for seed in (0, 1)]
        runs = [Run(s, s.arrays, with_error(s.arrays, 1e-3, own_error), reference.run(s.arrays)) for s in sets]
        return compare_runs_grouped_by_input_scale(runs, 1e-5, reference)[1]

    assert judge_second_run(4.2e-3).ok
    assert not judge_second_run(6.5e-3).ok


def judge_by_neighboring_inputs(own_error: float, step: float, exact: float | None = None, **given: bool) -> Case:
    """Judge a result that is `own_error` off a reference whose results rise by `step` where the input
    exceeds 1; the input is 1.  There is no float64 result, or one that is `exact` off the reference.
    Further fields of the Reference may be given.
    """
    base = np.sin(np.arange(50.0))

    def with_error(inputs: Arrays, error: float = 0.0) -> Arrays:
        y = base.copy()
        y[0] += (error + (step if inputs["x"][0] > 1 else 0.0)) * y.std()
        return {"y": y.astype(np.float32)}

    reference = Reference(
        "another",
        with_error,
        lambda inputs: None if exact is None else {"y": with_error(inputs, exact)["y"].astype(np.float64)},
        rounded=with_error,
        **given,  # type: ignore[arg-type]
    )
    inputs = InputSet("seed 0", {"x": np.ones(1, np.float32)})
    run = Run(inputs, inputs.arrays, with_error(inputs.arrays, own_error), with_error(inputs.arrays))
    (case,) = compare_runs_grouped_by_input_scale([run], 1e-5, reference)
    return case


def test_the_reference_on_neighboring_inputs_shows_how_far_rounding_moves_results() -> None:
    case = judge_by_neighboring_inputs(3e-3, step=1e-3)
    assert case.ok and case.outputs[0].nearby == pytest.approx(1e-3, rel=1e-2)
    assert case.outputs[0].text.startswith("ok, by rounding (the reference differs by 1.0e-03 on neighboring inputs)")
    assert not judge_by_neighboring_inputs(5e-3, step=1e-3).ok
    assert not judge_by_neighboring_inputs(3e-3, step=0.0).ok
    # a reference that jumps excuses an error of a quarter of the standard deviation at most
    assert judge_by_neighboring_inputs(0.24, step=3.0).ok
    assert not judge_by_neighboring_inputs(0.26, step=3.0).ok


@pytest.mark.parametrize("step", [np.nan, np.inf])
def test_neighboring_inputs_without_a_result_excuse_nothing(step: float) -> None:
    assert not judge_by_neighboring_inputs(3e-3, step=step).ok


def test_neighboring_inputs_decide_where_the_reference_is_far_from_float64() -> None:
    assert judge_by_neighboring_inputs(3e-3, step=1e-3, exact=2.0).ok
    assert not judge_by_neighboring_inputs(5e-3, step=1e-3, exact=2.0).ok
    # float64 decides where the reference is near it
    assert not judge_by_neighboring_inputs(3e-3, step=1e-3, exact=1e-4).ok


def test_neighboring_inputs_excuse_no_integers() -> None:
    base = np.arange(50, dtype=np.int8)

    def with_step(inputs: Arrays) -> Arrays:
        return {"y": base + np.int8(inputs["x"][0] > 1)}

    reference = Reference("another", with_step, lambda _: None)
    given = InputSet("seed 0", {"x": np.ones(1, np.float32)})
    run = Run(given, given.arrays, {"y": base + np.int8(1)}, with_step(given.arrays))
    (case,) = compare_runs_grouped_by_input_scale([run], 1e-5, reference)
    assert case.outputs[0].reason == "50 of 50 elements differ"


@pytest.mark.parametrize("field", ["quantized", "has_exact_integers"])
def test_neighboring_inputs_excuse_no_quantized_network(field: str) -> None:
    assert judge_by_neighboring_inputs(3e-3, step=1e-3).ok
    assert not judge_by_neighboring_inputs(3e-3, step=1e-3, **{field: True}).ok
