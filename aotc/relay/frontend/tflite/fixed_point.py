# SPDX-License-Identifier: Apache-2.0
"""Fixed-point functions of gemmlowp, which TFLite's integer kernels use: exp, log, logistic, tanh
and reciprocal of 32-bit or 16-bit fixed-point numbers.

A fixed-point number has `word_bits` bits (31 or 15) and a sign; `integer_bits` of them are before
the binary point. Input: integer tensors. Output: int64 tensors that hold such numbers; constants
give constants.

    fixed_point_exp_of_negative(x, 5)       # x has 5 bits before the point, the result 0
    fixed_point_product(a, b)               # a * b / 2^31, rounded
    fixed_point_logistic(x, 3, word_bits=15)  # of 16 bits

Source: gemmlowp's fixedpoint.h (Apache-2.0), reimplemented. The high half of a product is rounded
half up, a division by a power of two is rounded half away from zero.
"""

from typing import Final

import numpy as np

from aotc.ir import Array
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g

_WIDE: Final = "int64"
#: exp(-2^k) for k = -2, -1, ..., 4 as 32-bit fixed-point numbers without integer bits.
_EXP_OF_NEGATIVE_POWERS: Final = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)

#: Fixed-point constants without integer bits.
_LOG_2: Final = 1488522236
_SQRT_HALF: Final = 1518500250
_FOURTH_ROOT_OF_HALF: Final = 1805811301


def cast_to_int64(x: Expr) -> Expr:
    """Cast an integer tensor to int64."""
    return g.cast(x, _WIDE)


def int64_constant_along_axis(value: Array, axis: int, rank: int) -> Expr:
    """Return an int64 constant that broadcasts against a tensor of rank `rank`: a single number, or
    one number per element of `axis`.
    """
    constant = g.constant(np.asarray(value, np.int64))
    return g.reshape_along_axis(constant, axis, rank) if value.size > 1 else g.reshape(constant, ())


def shift_right(x: Expr, bits: int) -> Expr:
    """Return x / 2^bits, rounded down (an arithmetic right shift)."""
    return g.call_op("right_shift", x, g.constant(bits, _WIDE)) if bits else x


def rounding_divide_by_power_of_two(x: Expr, bits: int | Expr) -> Expr:
    """Return x / 2^bits, rounded half away from zero; `bits` may be a tensor of positive numbers."""
    if bits == 0:
        return x
    shift = g.constant(bits, _WIDE) if isinstance(bits, int) else bits
    unit = g.call_op("left_shift", g.constant(1, _WIDE), shift)
    half = g.call_op("right_shift", unit, g.constant(1, _WIDE))
    down = g.cast(g.less(x, 0), _WIDE)
    return g.call_op("right_shift", g.sub(g.add(x, half), down), shift)


def fixed_point_product(a: Expr, b: Expr | int, word_bits: int = 31) -> Expr:
    """Return a * b / 2^word_bits, rounded half up."""
    return shift_right(g.add(g.mul(a, b), 1 << (word_bits - 1)), word_bits)


def shift_left_saturated(x: Expr, bits: int | Expr, word_bits: int = 31) -> Expr:
    """Return x * 2^bits, saturated to `word_bits` bits and a sign."""
    y = g.call_op("left_shift", x, g.constant(bits, _WIDE) if isinstance(bits, int) else bits)
    return g.minimum(g.maximum(y, -(1 << word_bits)), (1 << word_bits) - 1)


def _narrow_31_bit_fixed_point_constant(value: int, word_bits: int) -> int:
    """Convert a 32-bit fixed-point constant to `word_bits` bits, rounded half away from zero."""
    if word_bits == 31:
        return value
    return (abs(value) + (1 << 15) >> 16) * (1 if value > 0 else -1)


def fixed_point_exp_of_negative(x: Expr, integer_bits: int, word_bits: int = 31) -> Expr:
    """Return exp(x) for x <= 0 as a fixed-point number without integer bits; x has `integer_bits`
    integer bits.
    """
    digits = word_bits - integer_bits
    quarter = 1 << (digits - 2)
    low = g.sub(g.call_op("bitwise_and", x, g.constant(quarter - 1, _WIDE)), quarter)
    y = _fixed_point_exp_near_zero(shift_left_saturated(low, integer_bits, word_bits), word_bits)
    rest = g.sub(low, x)
    for exponent, power in enumerate(_EXP_OF_NEGATIVE_POWERS, -2):
        if integer_bits <= exponent:
            break
        bit = g.call_op("bitwise_and", rest, g.constant(1 << (digits + exponent), _WIDE))
        y = g.where(
            g.greater(bit, 0),
            fixed_point_product(y, _narrow_31_bit_fixed_point_constant(power, word_bits), word_bits),
            y,
        )
    if integer_bits > 5:
        y = g.where(g.less(x, -(32 << digits)), 0, y)
    return g.where(g.equal(x, 0), (1 << word_bits) - 1, y)


def _fixed_point_exp_near_zero(a: Expr, word_bits: int) -> Expr:
    """Return exp(a) for a in [-1/4, 0), by four terms of the Taylor series around -1/8."""
    x = g.add(a, 1 << (word_bits - 3))
    x2 = fixed_point_product(x, x, word_bits)
    x3, x4 = fixed_point_product(x2, x, word_bits), fixed_point_product(x2, x2, word_bits)
    cubic = fixed_point_product(
        g.add(rounding_divide_by_power_of_two(x4, 2), x3),
        _narrow_31_bit_fixed_point_constant(715827883, word_bits),
        word_bits,
    )
    series = g.add(x, rounding_divide_by_power_of_two(g.add(cubic, x2), 1))
    eighth = _narrow_31_bit_fixed_point_constant(1895147668, word_bits)
    y = g.add(fixed_point_product(series, eighth, word_bits), eighth)
    return g.minimum(y, (1 << word_bits) - 1)


def _newton_reciprocal_of_half_one_plus(x: Expr, word_bits: int) -> Expr:
    """Return 1 / ((1 + x) / 2) for x in [0, 1) with two integer bits, by three steps of Newton's
    method.
    """
    half = shift_right(g.add(x, 1 << word_bits), 1)
    y = g.add(
        fixed_point_product(half, _narrow_31_bit_fixed_point_constant(-1010580540, word_bits), word_bits),
        _narrow_31_bit_fixed_point_constant(1515870810, word_bits),
    )
    for _ in range(3):
        error = g.sub(g.constant(1 << (word_bits - 2), _WIDE), fixed_point_product(half, y, word_bits))
        y = g.add(y, shift_left_saturated(fixed_point_product(y, error, word_bits), 2, word_bits))
    return y


def fixed_point_reciprocal_of_one_plus(x: Expr, word_bits: int = 31) -> Expr:
    """Return 1 / (1 + x) for x in [0, 1), as a fixed-point number without integer bits."""
    return shift_left_saturated(_newton_reciprocal_of_half_one_plus(x, word_bits), 1, word_bits)


def fixed_point_logistic(x: Expr, integer_bits: int, word_bits: int = 31) -> Expr:
    """Return 1 / (1 + exp(-x)) as a fixed-point number without integer bits."""
    size = g.negative(g.absolute(x))
    y = fixed_point_reciprocal_of_one_plus(fixed_point_exp_of_negative(size, integer_bits, word_bits), word_bits)
    other = g.sub(g.constant((1 << word_bits) - 1, _WIDE), y)
    y = g.where(g.less(x, 0), other, y)
    return g.where(g.equal(x, 0), 1 << (word_bits - 1), y)


def fixed_point_tanh(x: Expr, integer_bits: int, word_bits: int = 31) -> Expr:
    """Return tanh(x) as a fixed-point number without integer bits."""
    size = g.negative(g.absolute(x))
    e = fixed_point_exp_of_negative(size, integer_bits + 1, word_bits)
    y = shift_left_saturated(
        g.sub(_newton_reciprocal_of_half_one_plus(e, word_bits), 1 << (word_bits - 2)), 2, word_bits
    )
    y = g.where(g.less(x, 0), g.negative(y), y)
    return g.where(g.equal(x, 0), 0, y)


def fixed_point_log_of_at_least_one(x: Expr, integer_bits: int, output_integer_bits: int) -> Expr:
    """Return log(x) for x >= 1 as a fixed-point number with `output_integer_bits` integer bits; `x`
    has `integer_bits` integer bits, and its last axis has extent 1.

    log(x) = n * log(2) + log(r), with r near 2^(-1/4); log(r) is a quotient of polynomials in
    r - 2^(-1/4). Source: log_x_for_x_greater_than_or_equal_to_1 of TFLite.
    """
    fraction_bits = 31 - output_integer_bits - 1
    quarter = 1 << (fraction_bits - 2)
    headroom = g.sub(leading_zeros_of_positive_int32(x), 1)
    r_a = shift_left_saturated(fixed_point_product(g.call_op("left_shift", x, headroom), _SQRT_HALF), 1)
    below = g.sub(leading_zeros_of_positive_int32(fixed_point_product(x, _SQRT_HALF)), 1)
    r = g.minimum(r_a, shift_left_saturated(x, below))
    n_a = g.add(shift_left_saturated(g.sub(g.constant(integer_bits - 1, _WIDE), headroom), fraction_bits), quarter)
    n_b = g.sub(shift_left_saturated(g.sub(g.constant(integer_bits, _WIDE), below), fraction_bits), quarter)
    # the constants are 11/240, 1/20, 2 / 2^(1/4) - 2^(1/4) and 1/4; all but the third times 2^(1/4)
    middle = shift_right(g.add(r, _FOURTH_ROOT_OF_HALF + 1), 1)
    d = g.mul(g.sub(r, _FOURTH_ROOT_OF_HALF), 2)
    square = fixed_point_product(d, d)
    top = g.add(fixed_point_product(d, r), fixed_point_product(fixed_point_product(d, square), 117049297))
    bottom = g.add(g.add(d, 1057819769), fixed_point_product(square, 127690142))
    bottom = g.add(fixed_point_product(middle, bottom), fixed_point_product(d, 638450708))
    log_r = fixed_point_product(
        rounding_divide_by_power_of_two(top, output_integer_bits + 1), fixed_point_reciprocal_of_one_plus(bottom)
    )
    return shift_left_saturated(g.add(fixed_point_product(g.maximum(n_a, n_b), _LOG_2), log_r), 1)


def fixed_point_reciprocal_and_leading_zeros(x: Expr) -> tuple[Expr, Expr]:
    """Return multipliers and the numbers of leading zeros of positive 32-bit integers (as int64):
    1 / x = multiplier / 2^(62 - zeros). The last axis of `x` must have extent 1.

    Source: GetReciprocal of TFLite.
    """
    zeros = leading_zeros_of_positive_int32(x)
    return fixed_point_reciprocal_of_one_plus(g.sub(g.call_op("left_shift", x, zeros), 1 << 31)), zeros


def leading_zeros_of_positive_int32(x: Expr) -> Expr:
    """Return the number of leading zeros of positive 32-bit integers; the last axis of `x` must
    have extent 1.
    """
    powers = g.constant(np.int64(1) << np.arange(32, dtype=np.int64))
    below = g.cast(g.less(x, powers), _WIDE)
    return g.call_reduction("sum", below, [g.rank(x) - 1], True)
