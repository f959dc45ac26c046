# SPDX-License-Identifier: Apache-2.0
"""How far two results lie apart: absolute, relative to the spread of the reference, in units in the last place.

compare("y", actual, expected, bound=1e-5).ok
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import ml_dtypes
import numpy as np

from aotc.ir import Array, DType, frozen

#: What the error relative to the reference's standard deviation may be, by dtype of the output; that of float32
#: depends on the algorithms that were chosen, and stands in the metadata.
BOUNDS = {"float64": 1e-9, "float16": 1e-2, "bfloat16": 5e-2}
#: What the relative error of outputs in 8- and 4-bit floats may be: about one step of their grid.
NARROW_BOUND = 0.3


def bound_for(dtype: DType, float32_bound: float) -> float:
    """The accepted relative error of an output of `dtype`."""
    return float32_bound if dtype == "float32" else BOUNDS.get(dtype, NARROW_BOUND)


@frozen
class Comparison:
    """One output against its reference.

    max_abs    largest absolute difference
    relative   max_abs divided by the reference's standard deviation (by its largest magnitude where it is
               constant)
    max_ulp    largest difference in units in the last place of the dtype (floats only)
    bound      what `relative` may be; integers and bools must be equal
    reason     why it is not ok, "" if it is
    exact      error against the result in double precision, relative to its standard deviation, where it was needed
    reference_exact   the reference's error against it, the largest over all inputs
    rounding   the error of another evaluation in the precision of the model, where that was needed
    reference_is_off   whether ours is within the bound of the exact result, and the reference is not
    text       "ok" or the reason why not, with both errors where the result in double precision judged
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
    ok: bool = field(init=False)
    reference_is_off: bool = field(init=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        exact, other = self.exact, self.reference_exact
        text, is_off = self.reason or "ok", False
        if not self.reason and exact is not None and other is not None:
            is_off = exact <= self.bound < other
            why = "the reference is off" if is_off else "by rounding"
            text = f"ok, {why} (errors against float64: {exact:.1e}, of the reference {other:.1e})"
        object.__setattr__(self, "ok", not self.reason)
        object.__setattr__(self, "reference_is_off", is_off)
        object.__setattr__(self, "text", text)


def ulp_distance(a: Array, b: Array) -> int:
    """The most representable values that lie between corresponding finite elements of two float arrays."""
    kind = {2: np.int16, 4: np.int32, 8: np.int64}.get(a.dtype.itemsize)
    finite = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
    if kind is None or not finite.any():
        return 0

    def ordered(x: Array) -> Array:
        bits = np.ascontiguousarray(x[finite]).view(kind).astype(object if kind is np.int64 else np.int64)
        lowest = -(1 << (8 * a.dtype.itemsize - 1))
        return np.asarray(np.where(bits < 0, lowest - bits, bits))

    return int(np.abs(ordered(a) - ordered(b)).max())


#: How much larger than another implementation's rounding error ours may be: sums in another order differ that much.
NOISE_FACTOR = 4.0
#: Where others are further than this from the exact result, ours must be about as close as they are.
LARGE_NOISE, LARGE_FACTOR = 1e-2, 1.25
#: Where others are further than this from the exact result, rounding is no explanation.
UNTRUSTED = 0.2
#: Dtypes whose smallest normal number is below this have subnormal numbers that implementations flush to zero.
SMALLEST_FLUSHED = 1e-30
#: Units in the last place of the largest output that cannot be asked for: the end of any network rounds that much.
FEW_ULP = 8


def exact_error(array: Array, exact: Array) -> float:
    """The error of an array relative to the spread of the result in double precision."""
    return compare("", array.astype(np.float64), exact.astype(np.float64), 0.0).relative


def rounding_limit(bound: float, noise: float) -> float:
    """Return the largest error against the exact result that rounding explains, given the error `noise` of others."""
    if noise > UNTRUSTED:
        return bound
    return max(bound, noise * (LARGE_FACTOR if noise > LARGE_NOISE else NOISE_FACTOR))


def judge_by_exact(
    found: Comparison, actual: Array, exact: Array, noise: float, rounding: float | None = None
) -> Comparison:
    """A float comparison that failed, judged again with the result in double precision.

    Ours is right if it is within the bound of the exact result, however far off the reference is.  Beyond that, a
    network can amplify rounding errors so much that no two implementations in its dtype agree to the bound.  Then ours
    is right if its error is one that rounding explains: not much larger than that of the reference, nor than that of a
    second implementation in the same precision, so that a reference that is wrong itself is no excuse.

    noise       the largest error of the reference over all inputs
    rounding    the largest error of the second implementation, None where there is none
    All errors are relative to the standard deviation of the exact result.
    """
    if not DType.of(actual).is_float:
        return found
    ours = exact_error(actual, exact)
    explained = noise if rounding is None else min(noise, rounding)
    limit = max(rounding_limit(found.bound, explained), unavoidable(actual.dtype, exact))
    reason = ""
    if not ours <= limit:
        second = "" if rounding is None else f" and {rounding:.2e} of another evaluation in this precision"
        reason = f"error against float64 is {ours:.2e} > {limit:.1e}, beside {noise:.2e} of the reference{second}"
    return replace(found, reason=reason, exact=ours, reference_exact=noise, rounding=rounding)


def judge_by_others(found: Comparison, actual: Array, exact: Array, theirs: Array, apart: float) -> Comparison:
    """A float comparison that failed, where both other evaluations in this precision are far from the exact result.

    Rounding to this precision leads across a discontinuity then (a floor, a comparison).  Where both agree with each
    other, ours must agree with the reference as the second evaluation does; where they do not, nothing excuses ours.

    apart    the distance between both of them, the largest over such inputs
    """
    if not DType.of(actual).is_float:
        return found
    ours = exact_error(actual, theirs)
    limit = max(rounding_limit(found.bound, apart), unavoidable(actual.dtype, exact))
    text = f"error against the reference is {ours:.2e} > {limit:.1e}, beside {apart:.2e} of another evaluation"
    reason = "" if ours <= limit else text
    own, other = exact_error(actual, exact), exact_error(theirs, exact)
    return replace(found, reason=reason, exact=own, reference_exact=other, rounding=apart)


def unavoidable(dtype: np.dtype[Any], exact: Array) -> float:
    """The relative error of a few units in the last place of the largest output, or of numbers that flush to zero."""
    finite = exact[np.isfinite(exact)].astype(np.float64)
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    info = ml_dtypes.finfo(dtype)
    # hardware and libraries flush subnormal numbers of these dtypes to zero
    tiny = float(info.smallest_normal) if float(info.smallest_normal) < SMALLEST_FLUSHED else 0.0
    return max(FEW_ULP * float(info.eps) * largest, tiny) / _scale(finite)


def _scale(finite: Array) -> float:
    """Return the unit of errors: the standard deviation, the largest magnitude of constant values, or 1 for zeros."""
    spread = float(finite.std()) if finite.size else 0.0
    return spread or (float(np.abs(finite).max()) if finite.size else 0.0) or 1.0


#: By how many decibels the noise of rounding to integers may be above the reference's.
QUANTIZED_DB = 0.5
#: What share of the noise of quantization the deviation from a quantized network's definition may be: numbers next to
#: ties are rounded otherwise in float32.
DEFINITION_SHARE = 0.1


def decibels(array: Array, exact: Array) -> float:
    """The ratio of a result in double precision to what another one differs from it."""
    wide = exact.astype(np.float64)
    noise = float(np.square(array.astype(np.float64) - wide).sum())
    signal = float(np.square(wide).sum())
    return 10 * float(np.log10(signal / noise)) if noise and signal else np.inf


def deviation(array: Array, other: Array) -> float:
    """The root of the mean squared difference of two results."""
    return float(np.sqrt(np.square(array.astype(np.float64) - other.astype(np.float64)).mean()))


def definition_limit(theirs: Array, exact: Array, defined: Array) -> float:
    """Return how far an output of a quantized network may deviate from its definition.

    theirs     the output of the reference
    exact      the output without rounding to integers
    defined    the output of the definition: each operator in double precision, its result rounded to integers
    """
    return max(LARGE_FACTOR * deviation(theirs, defined), DEFINITION_SHARE * deviation(defined, exact), 1e-30)


def judge_by_noise(found: Comparison, runs: Sequence[tuple[Array, Array, Array, Array | None]]) -> Comparison:
    """A float comparison of a quantized network that failed, judged by its definition and the noise of its rounding.

    Networks round at thousands of places, where implementations that compute parts on real numbers differ.  Then the
    questions are whether the signal to noise ratio is as good as the reference's, and whether ours is as near to the
    definition as the reference, or much nearer than the noise of quantization is large.

    runs    of each our output, the reference's, the one without rounding, and that of the definition if it is known
    """
    ours, theirs, exact = (np.concatenate([np.asarray(r[k]).reshape(-1) for r in runs]) for k in range(3))
    if not (DType.of(ours).is_float and np.isfinite(ours).all()):
        return found
    mine, other = decibels(ours, exact), decibels(theirs, exact)
    reason = ""
    if not mine >= other - QUANTIZED_DB:
        reason = f"signal to noise is {mine:.1f} dB, the reference's is {other:.1f} dB"
    known = [np.asarray(r[3]).reshape(-1) for r in runs if r[3] is not None]
    if not reason and len(known) == len(runs):
        defined = np.concatenate(known)
        apart, limit = deviation(ours, defined), definition_limit(theirs, exact, defined)
        if not apart <= limit:
            reason = f"the root mean square deviation from the model's definition is {apart:.1e} > {limit:.1e}"
    return replace(found, reason=reason)


def judge_by_definition(found: Comparison, triples: Sequence[tuple[Array, Array, Array]]) -> Comparison:
    """A comparison of a quantized network's integers that failed, judged by the network's definition.

    Kernels of the reference that round otherwise than the model says, and numbers next to ties, give other integers.
    Then the question is whether ours are as often those of the definition as the reference's.

    triples    of each run our output, the reference's, and that of the definition in double precision
    """
    ours, theirs, defined = (np.concatenate([p[k].astype(np.int64).reshape(-1) for p in triples]) for k in range(3))
    mine, other = int((ours != defined).sum()), int((theirs != defined).sum())
    text = f"{mine} of {ours.size} elements differ from the model's definition, {other} of the reference's"
    return replace(found, reason="" if mine <= LARGE_FACTOR * other else text)


def compare(name: str, actual: Array, expected: Array, bound: float) -> Comparison:
    """`actual` against `expected`; NaN equals NaN and an infinity itself."""
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
    scale = _scale(finite)
    if not DType.of(actual).is_float:
        reason = "" if same.all() else f"{int((~same).sum())} of {actual.size} elements differ"
        return Comparison(name, max_abs, max_abs / scale, 0, 0.0, reason)
    relative = max_abs / scale
    limit = max(bound, unavoidable(actual.dtype, b))
    reason = "" if relative <= limit else f"error relative to the standard deviation is {relative:.2e} > {limit:.1e}"
    return Comparison(name, max_abs, relative, ulp_distance(actual, expected), bound, reason)


# --- what a comparison is worth


def nothing_compared(arrays: Sequence[Array]) -> str:
    """Why the results of all runs for one output show nothing: no element is finite; "" where one is."""
    if not any(a.size for a in arrays):
        return "has no elements"
    wide = [a.astype(np.float64) for a in arrays]
    if any(np.isfinite(a).any() for a in wide):
        return ""
    if all(np.isnan(a).all() for a in wide):
        return "is NaN throughout"
    return "is infinite throughout" if all(np.isinf(a).all() for a in wide) else "is NaN or infinite throughout"


def little_compared(arrays: Sequence[Array]) -> str:
    """Why the results of all runs for one output show little: they are constant, or NaN in part; "" otherwise."""
    every = np.concatenate([a.astype(np.float64).reshape(-1) for a in arrays])
    finite = every[np.isfinite(every)]
    if finite.size < every.size:
        return f"has {every.size - finite.size} of {every.size} elements that are NaN or infinite"
    if finite.size > 1 and finite.min() == finite.max():
        return f"is constant: each of {finite.size} elements is {finite[0]:g}"
    return ""
