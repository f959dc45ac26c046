# SPDX-License-Identifier: Apache-2.0
"""Comparison of an output array with a reference: absolute error, error relative to the standard
deviation of the reference, and error in units in the last place (ULP).

    compare_arrays("y", actual, expected, bound=1e-5).ok
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import ml_dtypes
import numpy as np

from aotc.ir import Array, DType, frozen

#: Largest accepted error relative to the reference's standard deviation, by dtype of the output.
#: The bound of float32 depends on the algorithms that were chosen; it is in the model's metadata.
MAX_RELATIVE_ERROR_BY_DTYPE = {"float64": 1e-9, "float16": 1e-2, "bfloat16": 5e-2}
#: Largest accepted relative error of outputs in 8-bit and 4-bit float formats: about one step
#: between representable values.
MAX_RELATIVE_ERROR_NARROW_FLOAT = 0.3


def relative_error_bound_for_dtype(dtype: DType, float32_bound: float) -> float:
    """Return the largest accepted relative error of an output of `dtype`; for float32 it is
    `float32_bound`.
    """
    return (
        float32_bound if dtype == "float32" else MAX_RELATIVE_ERROR_BY_DTYPE.get(dtype, MAX_RELATIVE_ERROR_NARROW_FLOAT)
    )


@frozen
class Comparison:
    """Result of the comparison of one model output with its reference.

    max_abs    largest absolute difference
    relative   max_abs divided by the reference's standard deviation (by its largest magnitude if
               the reference is constant)
    max_ulp    largest difference in units in the last place of the dtype (floats only)
    bound      largest accepted `relative`; integers and bools must be equal
    reason     why the comparison fails, "" if it passes
    exact      error of the output against the result in float64, relative to the standard deviation
               of that result; None if it was not computed
    reference_exact   error of the reference against the result in float64, the largest over all
                      inputs; None if it was not computed
    rounding   error of a second evaluation in the precision of the model, or of products in reduced
               precision; None if it was not computed
    nearby     largest relative difference of the reference's results for inputs that differ by
               rounding only; None if they were not computed
    ok         True if the comparison passes
    reference_is_off   True if the output is within the bound of the float64 result and the
                       reference is not
    text       "ok" or the reason of the failure; with the errors if other evaluations decided
    """

    name: str
    max_abs: float
    relative: float
    max_ulp: int
    bound: float
    reason: str = ""
    exact: float | None = None
    reference_exact: float | None = None
    rounding: float | None = None
    nearby: float | None = None
    ok: bool = field(init=False)
    reference_is_off: bool = field(init=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        exact, other = self.exact, self.reference_exact
        text, is_off = self.reason or "ok", False
        if not self.reason and self.nearby is not None:
            text = f"ok, by rounding (the reference differs by {self.nearby:.1e} on neighboring inputs)"
        elif not self.reason and exact is None and self.rounding is not None:
            text = f"ok, by rounding (error {self.relative:.1e}; of a second evaluation: {self.rounding:.1e})"
        elif not self.reason and exact is not None and other is not None:
            is_off = exact <= self.bound < other
            why = "the reference is off" if is_off else "by rounding"
            text = f"ok, {why} (errors against float64: {exact:.1e}, of the reference {other:.1e})"
        object.__setattr__(self, "ok", not self.reason)
        object.__setattr__(self, "reference_is_off", is_off)
        object.__setattr__(self, "text", text)


def max_ulp_distance(a: Array, b: Array) -> int:
    """Return the largest difference, in units in the last place, between corresponding elements of
    two float arrays.

    Pairs with a NaN or an infinity are ignored. The result is 0 for dtypes that are not 2, 4 or 8
    bytes wide.
    """
    kind = {2: np.int16, 4: np.int32, 8: np.int64}.get(a.dtype.itemsize)
    finite = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
    if kind is None or not finite.any():
        return 0

    def finite_pair_elements_as_ordered_integers(x: Array) -> Array:
        bits = np.ascontiguousarray(x[finite]).view(kind).astype(object if kind is np.int64 else np.int64)
        lowest = -(1 << (8 * a.dtype.itemsize - 1))
        return np.asarray(np.where(bits < 0, lowest - bits, bits))

    return int(np.abs(finite_pair_elements_as_ordered_integers(a) - finite_pair_elements_as_ordered_integers(b)).max())


#: Largest accepted ratio of the output's rounding error to that of another implementation: sums
#: that are computed in different orders differ that much.
MAX_ROUNDING_ERROR_RATIO = 4.0
#: Largest accepted ratio of the distance between two evaluations in reduced precision to the error of
#: one of them.
MAX_DISTANCE_RATIO = 2.0
#: If the error of other implementations against the exact result exceeds LARGE_NOISE, then
#: LARGE_FACTOR replaces MAX_ROUNDING_ERROR_RATIO as the largest accepted ratio of errors.
LARGE_NOISE, LARGE_FACTOR = 1e-2, 1.25
#: Error of other implementations against the exact result above which rounding is not accepted as
#: an explanation.
MAX_TRUSTED_REFERENCE_ERROR = 0.2
#: Dtypes whose smallest normal number is below this value have subnormal numbers that
#: implementations may flush to zero.
MAX_FLUSHABLE_SMALLEST_NORMAL = 1e-30
#: Error that is always accepted, in units in the last place of the largest output: the last
#: operators of any network round that much.
ALWAYS_ACCEPTED_ULPS = 8


def relative_error_against_float64(array: Array, exact: Array) -> float:
    """Return the largest error of an array against the float64 result, relative to the standard
    deviation of that result.
    """
    return compare_arrays("", array.astype(np.float64), exact.astype(np.float64), 0.0).relative


def max_error_explained_by_rounding(bound: float, reference_error: float) -> float:
    """Return the largest error against the exact result that rounding explains, given the error
    `reference_error` of other implementations.

    The result is `bound` if `reference_error` exceeds MAX_TRUSTED_REFERENCE_ERROR, and at least
    `bound` otherwise.
    """
    if reference_error > MAX_TRUSTED_REFERENCE_ERROR:
        return bound
    return max(bound, reference_error * (LARGE_FACTOR if reference_error > LARGE_NOISE else MAX_ROUNDING_ERROR_RATIO))


def rejudge_against_float64_result(
    failed: Comparison,
    actual: Array,
    exact: Array,
    reference_error: float,
    second_evaluation_error: float | None = None,
) -> Comparison:
    """Judge a failed comparison of floats again by the float64 result; return it with a new
    `reason`.

    The output passes if it is within the bound of the float64 result, however far off the reference
    is. Beyond the bound, a network can amplify rounding errors so much that no two implementations
    in its dtype agree to the bound. The output then passes if rounding explains its error: the
    error is not much larger than that of the reference, nor than that of a second implementation in
    this precision. The second condition keeps a wrong reference from excusing a wrong output. A
    comparison of integers is returned unchanged.

    reference_error            largest error of the reference over all inputs
    second_evaluation_error    largest error of the second implementation, None if there is none
    All errors are relative to the standard deviation of the float64 result.
    """
    if not DType.from_numpy(actual).is_float:
        return failed
    ours = relative_error_against_float64(actual, exact)
    explained = reference_error if second_evaluation_error is None else min(reference_error, second_evaluation_error)
    limit = max(
        max_error_explained_by_rounding(failed.bound, explained), always_accepted_relative_error(actual.dtype, exact)
    )
    reason = ""
    if not ours <= limit:
        second = (
            ""
            if second_evaluation_error is None
            else f", a second evaluation in this precision {second_evaluation_error:.2e}"
        )
        reason = f"error against float64 is {ours:.2e} > {limit:.1e}; the reference has {reference_error:.2e}{second}"
    return replace(failed, reason=reason, exact=ours, reference_exact=reference_error, rounding=second_evaluation_error)


def rejudge_against_reference_spread(
    failed: Comparison, actual: Array, exact: Array, reference: Array, reference_spread: float
) -> Comparison:
    """Judge a failed comparison of floats for inputs where two other evaluations in this precision
    are far from the exact result.

    Rounding to this precision then crosses a discontinuity, for instance of a floor or a
    comparison. If the reference and the second evaluation agree with each other, the output must
    agree with the reference about as closely; if they do not, the ordinary bound applies. A
    comparison of integers is returned unchanged.

    reference_spread    distance between the reference and the second evaluation, the largest over these
                        inputs
    """
    if not DType.from_numpy(actual).is_float:
        return failed
    ours = relative_error_against_float64(actual, reference)
    limit = max(
        max_error_explained_by_rounding(failed.bound, reference_spread),
        always_accepted_relative_error(actual.dtype, exact),
    )
    text = f"error against the reference is {ours:.2e} > {limit:.1e}; a second evaluation has {reference_spread:.2e}"
    reason = "" if ours <= limit else text
    our_error, other = relative_error_against_float64(actual, exact), relative_error_against_float64(reference, exact)
    return replace(failed, reason=reason, exact=our_error, reference_exact=other, rounding=reference_spread)


def rejudge_by_neighboring_inputs(failed: Comparison, reference_difference: float) -> Comparison:
    """Judge a failed comparison of floats by the reference alone: the output passes if the reference's
    own results for inputs that differ by rounding only are as far apart.

    This is for outputs without a float64 result, and for inputs where the reference is far from it.
    The largest accepted difference is LARGE_FACTOR * MAX_TRUSTED_REFERENCE_ERROR, however far apart
    the reference's results are.

    reference_difference    largest relative difference of the reference's results
    """
    limit = max_error_explained_by_rounding(failed.bound, min(reference_difference, MAX_TRUSTED_REFERENCE_ERROR))
    reason = "" if failed.relative <= limit else failed.reason
    return replace(failed, reason=reason, nearby=reference_difference)


def judge_by_second_evaluation(
    comparison: Comparison, second_evaluation_error: float, distance: float, rounding_error: float
) -> Comparison:
    """Judge a comparison of a model whose products are in reduced precision by its distance from a
    second evaluation in this precision: both round the same products, so that their distance is at
    most about the error of one of them.

    A comparison of integers is returned unchanged.

    second_evaluation_error    largest error of the second evaluation against the reference in float32
    distance                   distance of the output from that of the second evaluation
    rounding_error             largest relative error of one rounding to this precision
    """
    limit = max(rounding_error, MAX_DISTANCE_RATIO * second_evaluation_error)
    if comparison.bound == 0 or (comparison.ok and distance <= limit):
        return comparison
    text = f"distance from another evaluation in this precision, relative to the standard deviation, is {distance:.2e}"
    text += f" > {limit:.1e}; the error of that evaluation is {second_evaluation_error:.2e}"
    return replace(comparison, reason="" if distance <= limit else text, rounding=second_evaluation_error)


def rejudge_against_reduced_precision(failed: Comparison, second_evaluation_error: float) -> Comparison:
    """Judge a failed comparison of a model whose products are in reduced precision by the error of a
    second evaluation in this precision: the output passes if rounding explains its error.

    A comparison of integers is returned unchanged.

    second_evaluation_error    largest error of the second evaluation against the reference in float32
    """
    if failed.bound == 0:
        return failed
    limit = max_error_explained_by_rounding(failed.bound, second_evaluation_error)
    text = f"error relative to the standard deviation is {failed.relative:.2e} > {limit:.1e}; "
    text += f"a second evaluation in this precision has {second_evaluation_error:.2e}"
    return replace(failed, reason="" if failed.relative <= limit else text, rounding=second_evaluation_error)


def always_accepted_relative_error(dtype: np.dtype[Any], exact: Array) -> float:
    """Return the relative error that is always accepted: ALWAYS_ACCEPTED_ULPS units in the last
    place of the largest value of `exact`, or the smallest normal number where subnormal numbers may
    flush to zero.
    """
    finite = exact[np.isfinite(exact)].astype(np.float64)
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    info = ml_dtypes.finfo(dtype)
    # hardware and libraries flush subnormal numbers of these dtypes to zero
    tiny = float(info.smallest_normal) if float(info.smallest_normal) < MAX_FLUSHABLE_SMALLEST_NORMAL else 0.0
    return max(ALWAYS_ACCEPTED_ULPS * float(info.eps) * largest, tiny) / _denominator_of_relative_error(finite)


def _denominator_of_relative_error(finite_values: Array) -> float:
    """Return the unit of relative errors: the standard deviation of finite values, or their largest
    magnitude if they are constant, or 1 if they are all zero or there are none.
    """
    spread = float(finite_values.std()) if finite_values.size else 0.0
    return spread or (float(np.abs(finite_values).max()) if finite_values.size else 0.0) or 1.0


#: Accepted loss of signal-to-noise ratio against the reference, in decibels, for outputs of
#: quantized networks.
MAX_SNR_LOSS_DB = 0.5
#: Accepted deviation from a quantized network's definition, as a fraction of its quantization
#: noise: values close to a rounding tie are rounded differently in float32.
MAX_DEVIATION_PER_QUANTIZATION_NOISE = 0.1


def signal_to_noise_decibels(array: Array, exact: Array) -> float:
    """Return the signal-to-noise ratio of `array` against `exact` in decibels; infinity if the
    difference or `exact` is zero.
    """
    wide = exact.astype(np.float64)
    noise = float(np.square(array.astype(np.float64) - wide).sum())
    signal = float(np.square(wide).sum())
    return 10 * float(np.log10(signal / noise)) if noise and signal else np.inf


def root_mean_square_difference(array: Array, other: Array) -> float:
    """Return the root of the mean squared difference of two arrays."""
    return float(np.sqrt(np.square(array.astype(np.float64) - other.astype(np.float64)).mean()))


def deviation_explained_by_reference(reference_deviation: float, second_deviation: float | None) -> float:
    """Return how far rounding may move a quantized network's output from its definition, given the
    deviations of the reference and of a second evaluation in the model's precision.

    The second evaluation keeps a reference whose kernels differ from the definition from excusing a
    wrong output. It is one sample of a random quantity, hence the factor MAX_ROUNDING_ERROR_RATIO.

    second_deviation    None if there is no second evaluation
    """
    if second_deviation is None:
        return LARGE_FACTOR * reference_deviation
    return min(LARGE_FACTOR * reference_deviation, MAX_ROUNDING_ERROR_RATIO * second_deviation)


def largest_accepted_rms_deviation(
    reference: Array, unrounded: Array, by_definition: Array, second_evaluation: Array | None = None
) -> float:
    """Return the largest accepted root mean square deviation of a quantized network's output from
    its definition.

    reference            output of the reference
    unrounded            output without rounding to integers
    by_definition        output by definition: each operator in float64, its result rounded to integers
    second_evaluation    output by definition with each operator in float32, None if there is none
    """
    second = None if second_evaluation is None else root_mean_square_difference(second_evaluation, by_definition)
    return max(
        deviation_explained_by_reference(root_mean_square_difference(reference, by_definition), second),
        MAX_DEVIATION_PER_QUANTIZATION_NOISE * root_mean_square_difference(by_definition, unrounded),
        1e-30,
    )


@frozen
class QuantizedOutputs:
    """Results for one float output of a quantized network, of several runs, each flattened and joined.

    actual        output of the compiled model
    reference     output of the reference
    unrounded     output in float64 without rounding to integers
    definition    output by definition: each operator in float64, its result rounded to integers;
                  None if it is unknown
    """

    actual: Array
    reference: Array
    unrounded: Array
    definition: Array | None = None


def rejudge_quantized_floats(
    failed: Comparison, outputs: QuantizedOutputs, second_evaluation: Callable[[], Array | None] = lambda: None
) -> Comparison:
    """Judge a failed comparison of a quantized network's float output by its distance from the
    definition and by its signal-to-noise ratio.

    A network rounds to integers at thousands of places, where implementations that compute some
    operators in floating point differ. The output passes if its distance from the definition is
    small against the quantization noise. Otherwise two conditions must hold: its signal-to-noise
    ratio is at most MAX_SNR_LOSS_DB below the reference's, and its distance from the definition, if
    that is known, is at most `largest_accepted_rms_deviation`. The comparison is returned unchanged
    if the output is not a float or has NaN or infinite elements.

    second_evaluation    returns the output by definition with each operator in float32; called only
                         if needed
    """
    ours, exact, definition = outputs.actual, outputs.unrounded, outputs.definition
    if not (DType.from_numpy(ours).is_float and np.isfinite(ours).all()):
        return failed
    reason = ""
    if definition is not None:
        deviation = root_mean_square_difference(ours, definition)
        noise = root_mean_square_difference(definition, exact)
        if deviation <= max(MAX_DEVIATION_PER_QUANTIZATION_NOISE * noise, 1e-30):
            return replace(failed, reason="")
        limit = largest_accepted_rms_deviation(outputs.reference, exact, definition, second_evaluation())
        if not deviation <= limit:
            reason = f"the root mean square deviation from the model's definition is {deviation:.1e} > {limit:.1e}"
    mine, other = signal_to_noise_decibels(ours, exact), signal_to_noise_decibels(outputs.reference, exact)
    if not reason and not mine >= other - MAX_SNR_LOSS_DB:
        reason = f"signal to noise is {mine:.1f} dB, the reference's is {other:.1f} dB"
    return replace(failed, reason=reason)


#: Largest accepted excess of a count of different integers, in standard deviations of the count that
#: explains it; rounding ties are rare events, so the deviation is the square root of the count.
MAX_COUNT_DEVIATIONS = 3.0
#: Fraction of the integers of a quantized output that may differ from the definition because of
#: values close to a rounding tie.
MAX_FRACTION_OF_ROUNDING_TIES = 1e-3


def rejudge_integers_by_definition(
    failed: Comparison,
    actual_reference_definition: Sequence[tuple[Array, Array, Array]],
    second_evaluation: Callable[[], Sequence[Array] | None] = lambda: None,
) -> Comparison:
    """Judge a failed comparison of a quantized network's integer output by the network's
    definition.

    Reference kernels that round differently from the model's definition, and values close to a
    rounding tie, give different integers. The output passes if the count of its elements that
    differ from the definition is at most LARGE_FACTOR times the reference's count, and at most
    MAX_ROUNDING_ERROR_RATIO times that of a second evaluation in float32, both up to random
    variation. The second evaluation counts only if more elements than
    MAX_FRACTION_OF_ROUNDING_TIES differ.

    actual_reference_definition    for each run: the output, the reference's output, and the output by
                                   definition in float64
    second_evaluation              returns, for each run, the output by definition with each operator in
                                   float32; called only if needed
    """
    ours, theirs, defined = (
        _join_flattened([p[k].astype(np.int64) for p in actual_reference_definition]) for k in range(3)
    )
    mine, other = int((ours != defined).sum()), int((theirs != defined).sum())
    limit, explanation = _max_differing_elements_explained(other, LARGE_FACTOR), f"{other} of the reference's"
    ties = MAX_FRACTION_OF_ROUNDING_TIES * ours.size
    if ties < mine <= limit and (second := second_evaluation()) is not None:
        third = int((_join_flattened(second) != defined).sum())
        limit = min(limit, max(ties, _max_differing_elements_explained(third, MAX_ROUNDING_ERROR_RATIO)))
        explanation += f", {third} of another evaluation's"
    text = f"{mine} of {ours.size} elements differ from the model's definition, {explanation}"
    return replace(failed, reason="" if mine <= limit else text)


def _max_differing_elements_explained(differing_count: int, factor: float) -> float:
    """Return the largest number of different elements that `differing_count` different elements of another
    evaluation explain: `factor` times as many, and MAX_COUNT_DEVIATIONS of a Poisson variable.
    """
    return factor * differing_count + MAX_COUNT_DEVIATIONS * math.sqrt(differing_count)


def _join_flattened(arrays: Sequence[Array]) -> Array:
    """Return one array of one axis with the elements of all arrays in order."""
    return np.concatenate([np.asarray(array).reshape(-1) for array in arrays])


def compare_arrays(name: str, actual: Array, expected: Array, bound: float) -> Comparison:
    """Compare the array `actual` with `expected`; return a Comparison named `name` that says if
    they agree.

    Floats agree if the error relative to the standard deviation of `expected` is at most `bound` or
    `always_accepted_relative_error`, whichever is larger; integers and bools must be equal. NaN
    equals NaN, and an infinity equals an infinity of its sign. A different shape or dtype is a
    failure.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        got = f"{actual.dtype}{list(actual.shape)}"
        want = f"{expected.dtype}{list(expected.shape)}"
        return Comparison(name, np.inf, np.inf, 0, bound, f"is {got}, expected {want}")
    if actual.size == 0:
        return Comparison(name, 0.0, 0.0, 0, bound)
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    both = np.isfinite(a) & np.isfinite(b)
    difference = np.where(same, 0.0, np.inf)
    difference[both] = np.abs(a[both] - b[both])
    max_abs = float(difference.max())
    finite = b[np.isfinite(b)]
    scale = _denominator_of_relative_error(finite)
    if not DType.from_numpy(actual).is_float:
        reason = "" if same.all() else f"{int((~same).sum())} of {actual.size} elements differ"
        return Comparison(name, max_abs, max_abs / scale, 0, 0.0, reason)
    relative = max_abs / scale
    limit = max(bound, always_accepted_relative_error(actual.dtype, b))
    reason = "" if relative <= limit else f"error relative to the standard deviation is {relative:.2e} > {limit:.1e}"
    return Comparison(name, max_abs, relative, max_ulp_distance(actual, expected), bound, reason)


# --- arrays that make a comparison weak or impossible


def why_no_comparison_is_possible(arrays: Sequence[Array]) -> str:
    """Return why the results of all runs for one output allow no comparison: no element is finite,
    or there are none. Return "" if an element is finite.
    """
    if not any(a.size for a in arrays):
        return "has no elements"
    wide = [a.astype(np.float64) for a in arrays]
    if any(np.isfinite(a).any() for a in wide):
        return ""
    if all(np.isnan(a).all() for a in wide):
        return "is NaN throughout"
    return "is infinite throughout" if all(np.isinf(a).all() for a in wide) else "is NaN or infinite throughout"


def why_comparison_is_weak(arrays: Sequence[Array]) -> str:
    """Return why the results of all runs for one output make a weak comparison: all elements are
    equal, or some are NaN or infinite. Return "" otherwise.
    """
    every = np.concatenate([a.astype(np.float64).reshape(-1) for a in arrays])
    finite = every[np.isfinite(every)]
    if finite.size < every.size:
        return f"has {every.size - finite.size} of {every.size} elements that are NaN or infinite"
    if finite.size > 1 and finite.min() == finite.max():
        return f"is constant: each of {finite.size} elements is {finite[0]:g}"
    return ""
