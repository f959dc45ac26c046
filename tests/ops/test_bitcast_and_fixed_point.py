# SPDX-License-Identifier: Apache-2.0
"""Bitcasts between numeric types, and fixed-point products, against Python's integers."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from aotc.relay.op import bitcast_fixed_point_multiply
from tests.ops.onnxruntime_oracle import error_code, reference, var


def rounded(x: int, multiplier: int, shift: int) -> int:
    """x * multiplier / 2^31 * 2^shift, halves up, as int32, which wraps."""
    exact = floor(Fraction(x * multiplier, 1 << 31) * Fraction(2) ** shift + Fraction(1, 2))
    return (exact + (1 << 31)) % (1 << 32) - (1 << 31)


NUMBERS = np.array([23, -23, 0, 1, -1, 5, -5, 2**31 - 1, -(2**31), 123456789], np.int32)


@pytest.mark.parametrize(("multiplier", "shift"), [(1 << 30, -3), (1518500250, -31), (-(2**31), 0), (2**31 - 1, 0)])
def test_products_round_once(multiplier: int, shift: int) -> None:
    a = bitcast_fixed_point_multiply.FixedPointMultiplyAttrs(multiplier=multiplier, shift=shift)
    found = reference("fixed_point_multiply", a, NUMBERS)
    assert found.tolist() == [rounded(int(x), multiplier, shift) for x in NUMBERS]


def test_shifts_to_the_left_come_before_the_product() -> None:
    a = bitcast_fixed_point_multiply.FixedPointMultiplyAttrs(multiplier=3 << 29, shift=5)
    small = NUMBERS[:7]
    found = reference("fixed_point_multiply", a, small)
    assert found.tolist() == [rounded(int(x), 3 << 29, 5) for x in small]


def test_each_channel_has_a_factor_of_its_own() -> None:
    x = np.arange(-12, 12, dtype=np.int32).reshape(2, 3, 4) * 1001
    factors, left, right = [1 << 30, 99999999, 2**31 - 1], [0, 2, 1], [3, 0, 7]
    vectors = [np.array(v, np.int32) for v in (factors, left, right)]
    for up, down in ((True, True), (False, True), (True, False)):
        a = bitcast_fixed_point_multiply.FixedPointMultiplyPerAxisAttrs(
            is_lshift_required=up, is_rshift_required=down, axes=(1,)
        )
        found = reference("fixed_point_multiply_per_axis", a, x, *vectors)
        for place, value in np.ndenumerate(x):
            k = place[1]
            assert found[place] == rounded(int(value), factors[k], left[k] * up - right[k] * down)


def test_halves_and_their_bits() -> None:
    halves = np.array([1.0, -0.0, np.inf, 6e-8, 65504, -2.5], np.float16)
    codes = [0x3C00, 0x8000, 0x7C00, 0x0001, 0x7BFF, 0xC100]
    found = reference("reinterpret", bitcast_fixed_point_multiply.ReinterpretAttrs(dtype="uint16"), halves)
    assert found.tolist() == codes
    np.testing.assert_array_equal(
        reference("reinterpret", bitcast_fixed_point_multiply.ReinterpretAttrs(dtype="float16"), found), halves
    )


def test_what_is_refused() -> None:
    words = var(2, 3, dtype="int32")
    assert error_code(bitcast_fixed_point_multiply.reinterpret, words, "float64") == "dtype"
    assert error_code(bitcast_fixed_point_multiply.reinterpret, var(3, dtype="float16"), "int8") == "dtype"
    assert error_code(bitcast_fixed_point_multiply.reinterpret, var(3, dtype="int4"), "uint4") == "dtype"
    assert error_code(bitcast_fixed_point_multiply.fixed_point_multiply, words, 1 << 31, 0) == "fixed-point"
    assert error_code(bitcast_fixed_point_multiply.fixed_point_multiply, var(3), 1, 0) == "dtype"
    vector = var(2, dtype="int32")
    assert (
        error_code(bitcast_fixed_point_multiply.fixed_point_multiply_per_axis, words, *[vector] * 3, axes=(1,))
        == "fixed-point"
    )
