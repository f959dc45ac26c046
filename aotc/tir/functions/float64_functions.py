# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float64: exponentials, logarithms, powers, trigonometric functions and
the error function.

Infinities, NaN and subnormal results are as in C99 Annex F. Polynomials are minimax approximations
by Remez's algorithm; intermediate results of more than 53 bits use
`aotc.tir.functions.double_double`.
"""

from __future__ import annotations

from typing import Final

from aotc.ir.dtype import DType
from aotc.tir.expr import Const, Expr, as_expr, call, select
from aotc.tir.functions.double_double import (
    ROUND_TO_INTEGER_SHIFTER,
    ROUND_TO_INTEGER_SHIFTER_BITS,
    TWO_POW_52_BITS,
    add_double_doubles,
    bits_to_float64,
    divide_double_doubles,
    exact_product,
    exact_square,
    float64_to_bits,
    multiply_double_doubles,
    select_double_double,
    two_sum,
)
from aotc.tir.functions.double_float32 import FloatPair, evaluate_polynomial_by_horner, fast_two_sum

FLOAT64: Final = DType("float64")
INFINITY: Final = Const(float("inf"), FLOAT64)
NAN: Final = Const(float("nan"), FLOAT64)
MAX_FLOAT64: Final = 1.7976931348623157e308
FLOAT64_SIGN_BIT: Final = 1 << 63
PI_PAIR: Final = (3.141592653589793, 1.2246467991473532e-16)
LN2_PAIR: Final = (0.6931471805599453, 2.3190468138462996e-17)
#: ln 2 as a sum of two parts; products of the first part with integers up to 2^11 are exact.
LN2_HIGH, LN2_LOW = 0.6931471805598903, 5.497923018708371e-14
LOG2_E_PAIR: Final = (1.4426950408889634, 2.0355273740931033e-17)
_LOG10_E_PAIR: Final = (0.4342944819032518, 1.098319650216765e-17)
_SQRT_HALF_BITS: Final = 0x3FE6A09E667F3BCD
#: Least arguments of exp and exp2, below the range of float64: n is -2046, and both factors 2^(n/2) are encoded as 0.
#: Zero is then a product without underflow, for which x86 processors of Intel take more than a hundred cycles.
LEAST_EXPONENT, LEAST_EXPONENT_OF_2 = -1418.0, -2046.0


def clamp_keeping_nan(x: Expr, least: float, most: float) -> Expr:
    """Return x clamped to [least, most]; NaN is returned unchanged."""
    return select(x > most, as_expr(most, x), select(x < least, as_expr(least, x), x))


def exp_of_small_sum(a: Expr, b: Expr) -> FloatPair:
    """Return exp(a + b) as a sum of two floats, for |a + b| <= 0.35 and small b."""
    r = a + b
    s, e = fast_two_sum(as_expr(1.0, a), a)
    p = evaluate_polynomial_by_horner(r, "2.092688752315926e-09 2.51122200385761e-08 "
"2.7557233563209005e-07 2.755723430167184e-06"
                  " 2.4801587373461794e-05 0.00019841269896982993 0.0013888888888858618 0.008333333333316775"
                  " 0.04166666666666673 0.16666666666666682 0.5")  # fmt: skip
    return s, e + (b + (r * r) * p)


def exp_mantissa_and_exponent(head: Expr, tail: Expr | float = 0.0) -> tuple[Expr, Expr, Expr]:
    """Return (s, c, t) such that exp(head + tail) is (s + c) 2^n, with n in the low bits of t, for
    |head| < 800.

    Cody and Waite's argument reduction (1980).
    """
    t = head * LOG2_E_PAIR[0] + ROUND_TO_INTEGER_SHIFTER
    n = t - ROUND_TO_INTEGER_SHIFTER
    return *exp_of_small_sum(head - n * LN2_HIGH, as_expr(tail, head) - n * LN2_LOW), t


def power_of_2_from_low_bits(t: Expr, exponent_decrement: int = 0) -> Expr:
    """Return 2^(n - exponent_decrement), which must be a normal number, where n is the integer in the
    low bits of t.
    """
    return bits_to_float64(
        (float64_to_bits(t) + (1023 - exponent_decrement - ROUND_TO_INTEGER_SHIFTER_BITS) % 2**64) << 52
    )


def multiply_by_power_of_2_in_low_bits(v: Expr, t: Expr) -> Expr:
    """Return v * 2^n by two multiplications, as n may exceed the exponent range of normal numbers."""
    k = float64_to_bits(t) + (2048 - ROUND_TO_INTEGER_SHIFTER_BITS) % 2**64
    half = k >> 1
    return (v * bits_to_float64((half - 1) << 52)) * bits_to_float64((k - half - 1) << 52)


def exp(x: Expr) -> Expr:
    s, c, t = exp_mantissa_and_exponent(clamp_keeping_nan(x, LEAST_EXPONENT, 710.0))
    return multiply_by_power_of_2_in_low_bits(s + c, t)


def exp2(x: Expr) -> Expr:
    s, c, t = exp2_mantissa_and_exponent(clamp_keeping_nan(x, LEAST_EXPONENT_OF_2, 1025.0), as_expr(0.0, x))
    return multiply_by_power_of_2_in_low_bits(s + c, t)


def exp2_mantissa_and_exponent(head: Expr, tail: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (s, c, t) such that 2^(head + tail) is (s + c) 2^n, with n in the low bits of t, for
    |head| < 2^50.
    """
    t = head + ROUND_TO_INTEGER_SHIFTER
    return *exp_of_small_sum(*multiply_double_doubles((head - (t - ROUND_TO_INTEGER_SHIFTER), tail), LN2_PAIR)), t


def expm1(x: Expr) -> Expr:
    # computes half of the result, because 2^n may be infinite
    s, c, t = exp_mantissa_and_exponent(clamp_keeping_nan(x, -40.0, 710.0))
    half = power_of_2_from_low_bits(t, 1)
    v, e = two_sum(s * half, -0.5)
    return select(call("abs", x) < 2.0**-54, x, (v + (e + c * half)) * 2.0)


def _quarter_of_exp_and_inverse(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (u, w, v): exp(|x|) / 4 is u + w, and exp(-|x|) / 4 is v."""
    s, c, t = exp_mantissa_and_exponent(clamp_keeping_nan(call("abs", x), 0.0, 710.6))
    quarter = power_of_2_from_low_bits(t, 2)
    u, w = s * quarter, c * quarter
    return u, w, as_expr(0.0625, x) / (u + w)


def sinh(x: Expr) -> Expr:
    u, w, v = _quarter_of_exp_and_inverse(x)
    a = call("abs", x)
    z = x * x
    p = evaluate_polynomial_by_horner(z, "7.759225337000248e-13 1.6057243500314157e-10 "
"2.5052123353290098e-08 2.75573191556643e-06"
                  " 0.0001984126984143646 0.00833333333333314 0.16666666666666669")  # fmt: skip
    return call("copysign", select(z < 1.0, a + (a * z) * p, (u + (w - v)) * 2.0), x)


def cosh(x: Expr) -> Expr:
    u, w, v = _quarter_of_exp_and_inverse(x)
    return (u + (w + v)) * 2.0


def tanh(x: Expr) -> Expr:
    # E / (E + 2), E = exp(2 |x|) - 1
    a = clamp_keeping_nan(call("abs", x), 0.0, 22.0)
    s, c, t = exp_mantissa_and_exponent(a + a)
    scale = power_of_2_from_low_bits(t)
    v, e = two_sum(s * scale, -1.0)
    v, e = fast_two_sum(v, e + c * scale)
    q, r = divide_double_doubles((v, e), add_double_doubles((v, e), (2.0, 0.0)))
    return call("copysign", select(a < 2.0**-28, a, q + r), x)


def split_mantissa_and_exponent(x: Expr) -> tuple[Expr, Expr]:
    """Return (m, e) such that x > 0 equals m * 2^e, with m in [sqrt(1/2), sqrt(2))."""
    tiny = x < 2.2250738585072014e-308
    u = float64_to_bits(select(tiny, x * 2.0**54, x)) + ((1024 << 52) - _SQRT_HALF_BITS)
    e = bits_to_float64((u >> 52) | TWO_POW_52_BITS) - (2.0**52 + 1024)
    return bits_to_float64((u & (2**52 - 1)) + _SQRT_HALF_BITS), e - select(tiny, as_expr(54.0, x), 0.0)


def add_log_special_cases(x: Expr, finite_log: Expr) -> Expr:
    """Return a logarithm of x with its special cases; `finite_log` is the result for finite x > 0."""
    finite_log = select(x > MAX_FLOAT64, x, finite_log)
    finite_log = select(x.equal(0.0), -INFINITY, finite_log)
    return select(x >= 0.0, finite_log, NAN)


def log(x: Expr) -> Expr:
    # with f = m - 1 and s = f / (2 + f): log(m) = f - (f^2/2 - s (f^2/2 + R(s^2))), as in FreeBSD's library
    m, e = split_mantissa_and_exponent(x)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    p = evaluate_polynomial_by_horner(z, "0.14796512778644416 0.15314251870366158 "
"0.1818354232550179 0.22222199395555262"
                  " 0.2857142872831132 0.3999999999952435 0.6666666666666704")  # fmt: skip
    half = (f * f) * 0.5
    low = s * (half + z * p) + e * LN2_LOW
    return add_log_special_cases(x, e * LN2_HIGH - ((half - low) - f))


def twice_atanh(s: FloatPair) -> FloatPair:
    """Return log((1 + s) / (1 - s)), twice the inverse hyperbolic tangent of s, for |s| < 0.172;
    relative error 2^-68.
    """
    z = exact_square(s[0])
    z = z[0], z[1] + (s[0] + s[0]) * s[1]
    p = evaluate_polynomial_by_horner(z[0], "0.1015286555722971 0.09415808008880354 "
"0.10530775703899951 0.11764592295287848"
                     " 0.13333335178936753 0.15384615365590149 0.18181818181937184 0.22222222222221816"
                     " 0.2857142857142857")  # fmt: skip
    inner = multiply_double_doubles(z, add_double_doubles((z[0] * p, as_expr(0.0, p)), (0.4, -2.2204460492503132e-17)))
    cubic = multiply_double_doubles(
        s, multiply_double_doubles(z, add_double_doubles(inner, (0.6666666666666666, 3.700743415417188e-17)))
    )
    return add_double_doubles((s[0] + s[0], s[1] + s[1]), cubic)


def exponent_and_log_of_mantissa(head: Expr, tail: Expr | None = None) -> tuple[Expr, FloatPair]:
    """Return (e, w) such that log(head + tail) is w + e * log(2), for head > 0."""
    m, e = split_mantissa_and_exponent(head)
    low = (
        (tail * bits_to_float64(float64_to_bits(as_expr(2.0**52 + 1024, e) - e) << 52)) * 0.5
        if tail is not None
        else as_expr(0.0, head)
    )
    above = add_double_doubles(two_sum(m, 1.0), (low, as_expr(0.0, low)))
    return e, twice_atanh(divide_double_doubles(two_sum(m - 1.0, low), above))


def log_as_pair(head: Expr, tail: Expr | None = None, exponent_addend: Expr | float = 0.0) -> FloatPair:
    """Return log(head + tail) + exponent_addend * log(2) as a sum of two floats."""
    e, w = exponent_and_log_of_mantissa(head, tail)
    n = e + exponent_addend
    return add_double_doubles((n * LN2_HIGH, n * LN2_LOW), w)


def log1p(x: Expr) -> Expr:
    head, tail = log_as_pair(*two_sum(as_expr(1.0, x), clamp_keeping_nan(x, -1.0, MAX_FLOAT64)))
    value = select(call("abs", x) < 2.0**-54, x, head + tail)
    value = select(x > MAX_FLOAT64, x, value)
    value = select(x.equal(-1.0), -INFINITY, value)
    return select(x >= -1.0, value, NAN)


def log2_as_pair(head: Expr, tail: Expr | None = None) -> FloatPair:
    e, w = exponent_and_log_of_mantissa(head, tail)
    return add_double_doubles((e, as_expr(0.0, e)), multiply_double_doubles(w, LOG2_E_PAIR))


def log2(x: Expr) -> Expr:
    head, tail = log2_as_pair(x)
    return add_log_special_cases(x, head + tail)


def log10(x: Expr) -> Expr:
    head, tail = multiply_double_doubles(log_as_pair(x), _LOG10_E_PAIR)
    return add_log_special_cases(x, head + tail)


def pow(x: Expr, y: Expr) -> Expr:
    # 2^(y log2 |x|); y is clamped to even numbers beyond which the result is 0, 1 or infinity
    a = call("abs", x)
    c = clamp_keeping_nan(y, -(2.0**64), 2.0**64)
    half, whole = c * 0.5, call("round_even", c)
    even = call("round_even", half)
    odd = whole.equal(c) & even.not_equal(half)
    p, e = exact_product(c, (w := log2_as_pair(a))[0])
    head, tail = fast_two_sum(p, e + c * w[1])
    v = head * select(a.equal(0.0) | (a > MAX_FLOAT64), INFINITY, 1.0)
    s, b, t = exp2_mantissa_and_exponent(
        clamp_keeping_nan(head, -1100.0, 1100.0), select(call("abs", head) < 1100.0, tail, 0.0)
    )
    f = select(v > 1090.0, INFINITY, select(v < -1090.0, as_expr(0.0, x), multiply_by_power_of_2_in_low_bits(s + b, t)))
    f = bits_to_float64(float64_to_bits(f) | select(odd, float64_to_bits(x) & FLOAT64_SIGN_BIT, 0))
    f = select((x < 0.0) & whole.not_equal(c) & (a <= MAX_FLOAT64), NAN, f)
    f = select(x.not_equal(x), x, select(y.not_equal(y), y, f))
    return select(y.equal(0.0) | x.equal(1.0), as_expr(1.0, x), f)


#: Bits of 2/pi after 55 zero bits.
_TWO_OVER_PI_BITS: Final = (
    0x0000000000000145, 0xF306DC9C882A53F8, 0x4EAFA3EA69BB81B6, 0xC52B3278872083FC, 0xA2C757BD778AC36E,
    0x48DC74849BA5C00C, 0x925DD413A32439FC, 0x3BD63962534E7DD1, 0x046BEA5D768909D3, 0x38E04D68BEFC8273,
    0x23AC7306A673E939, 0x08BF177BF250763F, 0xF12FFFBC0B301FDE, 0x5E2316B414DA3EDA, 0x6CFD9E4F96136E9E,
    0x8C7ECD3CBFD45AEA, 0x4F758FD7CBE2F67A, 0x0E73EF14A525D4D7, 0xF6BF623F1ABA10AC, 0x06608DF8F6D757E1,
)  # fmt: skip


def _bits_of_two_over_pi_from(bit_position: Expr) -> list[Expr]:
    """Return the 192 bits of 2/pi from bit `bit_position` (0 to 1024) of _TWO_OVER_PI_BITS on, as
    three 64-bit words.
    """
    words = [as_expr(d, bit_position) for d in _TWO_OVER_PI_BITS]
    for step in (16, 8, 4, 2, 1):
        beyond = (bit_position & (step << 6)).not_equal(0)
        most = min(len(words), 3 + step)  # number of words that later steps read
        none = as_expr(0, bit_position)
        words = [select(beyond, words[k + step] if k + step < len(words) else none, words[k]) for k in range(most)]
    s = bit_position & 63
    r = as_expr(63, s) - s
    return [(words[k] << s) | ((words[k + 1] >> 1) >> r) for k in range(3)]


def _multiply_to_128_bits(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return the upper and the lower 64 bits of the product of two integers, a below 2^53."""
    mask = 2**32 - 1
    ah, al, bh, bl = a >> 32, a & mask, b >> 32, b & mask
    first = ah * bl + ((al * bl) >> 32)
    second = al * bh + (first & mask)
    return ah * bh + (first >> 32) + (second >> 32), a * b


def _reduce_angle_magnitude_by_half_pi(x: Expr) -> tuple[Expr, FloatPair]:
    """Return (q, r) such that |x| is q * pi/2 + r with |r| <= pi/4.

    Payne and Hanek's reduction (1983) with 192 bits of 2/pi, starting at the first bit whose
    product with m * 2^e is no multiple of 4. 128 bits of the product are correct, of which
    cancellation costs at most 62.
    """
    a = call("abs", x)
    small = a < 0.5
    u = float64_to_bits(select(small | (a > MAX_FLOAT64), as_expr(0.5, x), a))
    m = (u & (2**52 - 1)) | 2**52
    w0, w1, w2 = _bits_of_two_over_pi_from((u >> 52) - 1022)
    (upper, middle), (lower, _) = _multiply_to_128_bits(m, w1), _multiply_to_128_bits(m, w2)
    low = middle + lower
    high = m * w0 + upper + select(low < lower, as_expr(1, low), 0)
    fraction, rest = (high << 2) | (low >> 62), low << 2
    below = as_expr(0, u) - (fraction >> 63)
    fraction, rest = fraction ^ below, rest ^ below
    # each group of 52 bits becomes an integer: it is the fraction of a float of magnitude 2^52
    exponent_bits, unit = TWO_POW_52_BITS, 2.0**52
    first = (bits_to_float64((fraction >> 12) | exponent_bits) - unit) * 2.0**-52
    second = bits_to_float64(((fraction << 40) & (2**52 - 1)) | (rest >> 24) | exponent_bits) - unit
    third = bits_to_float64((rest & (2**24 - 1)) | exponent_bits) - unit
    f, g = fast_two_sum(first, second * 2.0**-104)
    head, tail = multiply_double_doubles((f, g + third * 2.0**-128), (1.5707963267948966, 6.123233995736766e-17))
    sign = below & FLOAT64_SIGN_BIT
    signed_angle = bits_to_float64(float64_to_bits(head) ^ sign), bits_to_float64(float64_to_bits(tail) ^ sign)
    quarter = select(small, as_expr(0, u), (high + 2**61) >> 62)
    return quarter, select_double_double(small, (a, as_expr(0.0, x)), signed_angle)


_SINE_COEFFICIENTS: Final = ("1.5897004783335875e-10 -2.5050762098044802e-08 "
"2.7557313720583267e-06 -0.00019841269829903724"
                " 0.008333333333322559 -0.16666666666666632")  # fmt: skip
_COSINE_COEFFICIENTS: Final = ("-1.1361314879805786e-11 2.0875758278250078e-09 "
"-2.755731463586874e-07 2.480158729058107e-05"
                  " -0.0013888888888876141 0.041666666666666616")  # fmt: skip


def sine_of_reduced_angle(r: FloatPair) -> FloatPair:
    """Return sin(r) for |r| <= pi/4 as a sum of two floats, with a relative error of 2^-56."""
    z = r[0] * r[0]
    return fast_two_sum(
        r[0], (r[1] - (z * 0.5) * r[1]) + (r[0] * z) * evaluate_polynomial_by_horner(z, _SINE_COEFFICIENTS)
    )


def cosine_of_reduced_angle(r: FloatPair) -> FloatPair:
    """Return cos(r) for |r| <= pi/4 as a sum of two floats, with an error of 2^-56."""
    z, low = exact_square(r[0])
    c, e = fast_two_sum(as_expr(1.0, z), z * -0.5)
    return fast_two_sum(
        c, e + ((z * z) * evaluate_polynomial_by_horner(z, _COSINE_COEFFICIENTS) - (low * 0.5 + r[0] * r[1]))
    )


def _sine_shifted_by_quarter_turns(x: Expr, quarters: int, sign: Expr) -> Expr:
    quadrant, r = _reduce_angle_magnitude_by_half_pi(x)
    q = quadrant + quarters
    head, _ = select_double_double((q & 1).not_equal(0), cosine_of_reduced_angle(r), sine_of_reduced_angle(r))
    value = bits_to_float64(float64_to_bits(head) ^ ((q & 2) << 62) ^ sign)
    return select(call("abs", x) <= MAX_FLOAT64, value, NAN)


def sin(x: Expr) -> Expr:
    return _sine_shifted_by_quarter_turns(x, 0, float64_to_bits(x) & FLOAT64_SIGN_BIT)


def cos(x: Expr) -> Expr:
    return _sine_shifted_by_quarter_turns(x, 1, as_expr(0, float64_to_bits(x)))


def tan(x: Expr) -> Expr:
    q, r = _reduce_angle_magnitude_by_half_pi(x)
    s, c = sine_of_reduced_angle(r), cosine_of_reduced_angle(r)
    odd = (q & 1).not_equal(0)
    head, tail = divide_double_doubles(select_double_double(odd, c, s), select_double_double(odd, s, c))
    value = bits_to_float64(float64_to_bits(head + tail) ^ ((q & 1) << 63) ^ (float64_to_bits(x) & FLOAT64_SIGN_BIT))
    return select(call("abs", x) <= MAX_FLOAT64, value, NAN)


def erf(x: Expr) -> Expr:
    # |x| < 7/8: x + x p(x^2); else 1 - exp(-x^2) g((|x| - 3) / (|x| + 3)), which is 1 from 6 on
    a = clamp_keeping_nan(call("abs", x), 0.0, 6.0)
    z = a * a
    p = evaluate_polynomial_by_horner(z, "-8.669728748287094e-10 1.4124232165632782e-08 "
"-1.628950725852667e-07 1.6456634810815938e-06"
                  " -1.4925388939350255e-05 0.00012055324632984053 -0.0008548326847568145 0.005223977623090287"
                  " -0.02686617064494555 0.11283791670954368 -0.3761263890318374 0.1283791670955126")  # fmt: skip
    g = evaluate_polynomial_by_horner((a - 3.0) / (a + 3.0),
                   "-5.573901188626051e-06 -3.0856297314356253e-06 7.654750510978822e-05 5.4385224970554374e-05"
                   " -0.0005927611859635879 0.0007090960844104748 0.004269415177865379 -0.024392463910395255"
                   " 0.07166583934527732 -0.15011593654514627 0.24560380169760745 -0.32623356004373405"
                   " 0.17900115118138327")  # fmt: skip
    s, c, t = exp_mantissa_and_exponent(-z)
    big = as_expr(1.0, x) - ((s + c) * g) * power_of_2_from_low_bits(t)
    return call("copysign", select(a < 0.875, a + a * p, big), x)
