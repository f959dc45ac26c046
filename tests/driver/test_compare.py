# SPDX-License-Identifier: Apache-2.0
"""Distances between results: absolute, relative, in units in the last place."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aotc.checking.compare import compare, decibels, judge_by_noise, ulp_distance


def test_ulp_distance_counts_values_between() -> None:
    one = np.array([1.0], np.float32)
    assert ulp_distance(one, np.nextafter(one, np.float32(2))) == 1
    tiny = np.array([np.finfo(np.float32).smallest_subnormal], np.float32)
    assert ulp_distance(tiny, -tiny) == 2  # across zero
    assert ulp_distance(np.array([1.0]), np.array([1.0 + 2**-51])) == 2
    half = np.array([1.0], ml_dtypes.bfloat16)
    assert ulp_distance(half, np.array([1.0078125], ml_dtypes.bfloat16)) == 1


def test_the_error_is_relative_to_the_spread() -> None:
    expected = np.array([100.0, 101.0, 99.0, 100.0], np.float32)
    actual = expected + np.float32(1e-3)
    result = compare("y", actual, expected, 1e-5)
    assert not result.ok
    assert result.relative == pytest.approx(1e-3 / expected.std(), rel=1e-2)
    assert compare("y", actual, expected, 1e-2).ok


def test_nan_and_infinity_must_agree() -> None:
    expected = np.array([np.nan, np.inf, 1.0], np.float32)
    assert compare("y", expected.copy(), expected, 1e-5).ok
    assert not compare("y", np.array([np.nan, -np.inf, 1.0], np.float32), expected, 1e-5).ok
    assert not compare("y", np.array([0.0, np.inf, 1.0], np.float32), expected, 1e-5).ok


def test_integers_must_be_equal() -> None:
    expected = np.array([1000, 2000])
    assert compare("y", expected.copy(), expected, 1e-5).ok
    result = compare("y", expected + np.array([0, 1]), expected, 1e-5)
    assert result.reason == "1 of 2 elements differ"


def test_shape_and_dtype_must_agree() -> None:
    x = np.zeros((2, 3), np.float32)
    assert "expected float32[3, 2]" in compare("y", x, x.reshape(3, 2), 1.0).reason
    assert "expected float64" in compare("y", x, x.astype(np.float64), 1.0).reason
    assert compare("y", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), 0.0).ok


# --- quantized models


def test_decibels_count_noise() -> None:
    exact = np.array([10.0, 0.0, -10.0])
    assert decibels(exact + np.array([0.1, 0.0, 0.0]), exact) == pytest.approx(43.01, abs=0.01)
    assert decibels(exact, exact) == np.inf


def test_noise_may_be_half_a_decibel_above_that_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(10_000)
    noise = rng.standard_normal((2, 10_000)) * 0.05
    theirs = (exact + noise[0]).astype(np.float32)

    def judged(factor: float) -> str:
        ours = (exact + factor * noise[1]).astype(np.float32)
        return judge_by_noise(compare("y", ours, theirs, 1e-5), [(ours, theirs, exact)]).reason

    assert judged(1.0) == judged(0.5) == judged(1.04) == ""
    assert judged(1.12).startswith("signal to noise is 2")


def test_integers_and_nan_are_not_judged_by_noise() -> None:
    expected = np.array([1, 2, 3], np.int8)
    found = compare("y", expected + np.int8(1), expected, 1e-5)
    assert judge_by_noise(found, [(expected + np.int8(1), expected, expected.astype(np.float64))]) is found
    bad = np.array([np.nan, 1.0], np.float32)
    found = compare("y", bad, np.ones(2, np.float32), 1e-5)
    assert not judge_by_noise(found, [(bad, np.ones(2, np.float32), np.ones(2))]).ok
