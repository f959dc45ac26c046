# SPDX-License-Identifier: Apache-2.0
"""Exact remainder of a float division (C's fmod), for vectors; C libraries have it for scalars
only.
"""

from __future__ import annotations

from aotc.tir.expr import Expr, as_expr, call, cast, select
from aotc.tir.functions.double_double import (
    ROUND_TO_INTEGER_SHIFTER,
    TWO_POW_52_BITS,
    bits_to_float64,
    exact_product,
    float64_to_bits,
)
from aotc.tir.functions.float64_functions import MAX_FLOAT64, NAN, clamp_keeping_nan


def _integer_mantissa_and_biased_exponent(a: Expr) -> tuple[Expr, Expr]:
    """Return (m, e) such that a > 0 equals m * 2^(e - 1075), where m is an integer from 2^52 to
    2^53.
    """
    tiny = a < 2.2250738585072014e-308
    u = float64_to_bits(select(tiny, a * 2.0**54, a))
    e = bits_to_float64((u >> 52) | TWO_POW_52_BITS) - 2.0**52
    return bits_to_float64((u & (2**52 - 1)) | TWO_POW_52_BITS), e - select(tiny, as_expr(54.0, a), 0.0)


def _multiply_modulo(a: Expr, b: Expr, n: Expr) -> Expr:
    """Return a * b modulo n in the range -n/2 to n/2, exact, for integers n below 2^53 and |a|, |b|
    of at most n/2.
    """
    p, e = exact_product(a, b)
    q = (p / n + ROUND_TO_INTEGER_SHIFTER) - ROUND_TO_INTEGER_SHIFTER
    most, rest = exact_product(q, n)
    return _wrap_to_half_range((p - most) + (e - rest), n)


def _wrap_to_half_range(r: Expr, n: Expr) -> Expr:
    half = n * 0.5
    return select(r > half, r - n, select(r < -half, r + n, r))


def fmod(x: Expr, y: Expr) -> Expr:
    return cast(_fmod_float64(cast(x, "float64"), cast(y, "float64")), str(x.dtype))


def _fmod_float64(x: Expr, y: Expr) -> Expr:
    # m 2^d modulo the integer n of y: 2^d is computed by repeated squaring, from its upper bits on
    ax, ay = call("abs", x), call("abs", y)
    (m, ex), (n, ey) = _integer_mantissa_and_biased_exponent(ax), _integer_mantissa_and_biased_exponent(ay)
    distance = float64_to_bits(clamp_keeping_nan(ex - ey, 0.0, 2100.0) + 2.0**52) & 4095
    power = bits_to_float64(((distance >> 6) + 1023) << 52)
    for _ in range(6):
        power = _multiply_modulo(power, power, n)
    few = distance & 63
    half = few >> 1
    for count in (half, few - half):
        power = _multiply_modulo(power, bits_to_float64((count + 1023) << 52), n)
    r = _multiply_modulo(power, _wrap_to_half_range(_wrap_to_half_range(m, n), n), n)
    r = select(r < 0.0, r + n, r)
    k = float64_to_bits(ey + (2.0**52 + 2048)) & 8191
    first = k >> 1
    scaled = (r * bits_to_float64((first - 538) << 52)) * bits_to_float64((k - first - 539) << 52)
    value = call("copysign", select(ax < ay, ax, scaled), x)
    return select((ax <= MAX_FLOAT64) & (ay > 0.0), value, NAN)
