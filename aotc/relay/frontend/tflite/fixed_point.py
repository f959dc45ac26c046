# SPDX-License-Identifier: Apache-2.0
"""Fixed-point functions of gemmlowp, which TFLite's integer kernels use: exp, logistic, tanh and
reciprocal of 32-bit or 16-bit fixed-point numbers.

A fixed-point number has `word` bits (31 or 15) and a sign; `integer_bits` of them are before the
binary point. Input: integer tensors. Output: int64 tensors that hold such numbers; constants give
constants.

    exp_of_negative(x, 5)                   # x has 5 bits before the point, the result 0
    high_product(a, b)                      # a * b / 2^31, rounded
    logistic(x, 3, word=15)                 # of 16 bits

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
_POWERS: Final = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)


def wide(x: Expr) -> Expr:
    """Cast an integer tensor to int64."""
    return g.cast(x, _WIDE)


def along(value: Array, axis: int, rank: int) -> Expr:
    """Return an int64 constant that broadcasts against a tensor of rank `rank`: a single number, or
    one number per element of `axis`.
    """
    found = g.constant(np.asarray(value, np.int64))
    return g.along(found, axis, rank) if value.size > 1 else g.reshape(found, ())


def right(x: Expr, bits: int) -> Expr:
    """Return x / 2^bits, rounded down (an arithmetic right shift)."""
    return g.op("right_shift", x, g.constant(bits, _WIDE)) if bits else x


def divided(x: Expr, bits: int | Expr) -> Expr:
    """Return x / 2^bits, rounded half away from zero; `bits` may be a tensor of positive numbers."""
    if bits == 0:
        return x
    shift = g.constant(bits, _WIDE) if isinstance(bits, int) else bits
    unit = g.op("left_shift", g.constant(1, _WIDE), shift)
    half = g.op("right_shift", unit, g.constant(1, _WIDE))
    down = g.cast(g.less(x, 0), _WIDE)
    return g.op("right_shift", g.sub(g.add(x, half), down), shift)


def high_product(a: Expr, b: Expr | int, word: int = 31) -> Expr:
    """Return a * b / 2^word, rounded half up."""
    return right(g.add(g.mul(a, b), 1 << (word - 1)), word)


def saturated(x: Expr, bits: int, word: int = 31) -> Expr:
    """Return x * 2^bits, saturated to `word` bits and a sign."""
    y = g.op("left_shift", x, g.constant(bits, _WIDE))
    return g.minimum(g.maximum(y, -(1 << word)), (1 << word) - 1)


def _number(value: int, word: int) -> int:
    """Convert a 32-bit fixed-point constant to `word` bits, rounded half away from zero."""
    if word == 31:
        return value
    return (abs(value) + (1 << 15) >> 16) * (1 if value > 0 else -1)


def exp_of_negative(x: Expr, integer_bits: int, word: int = 31) -> Expr:
    """Return exp(x) for x <= 0 as a fixed-point number without integer bits; x has `integer_bits`
    integer bits.
    """
    digits = word - integer_bits
    quarter = 1 << (digits - 2)
    low = g.sub(g.op("bitwise_and", x, g.constant(quarter - 1, _WIDE)), quarter)
    y = _exp_of_quarter(saturated(low, integer_bits, word), word)
    rest = g.sub(low, x)
    for exponent, power in enumerate(_POWERS, -2):
        if integer_bits <= exponent:
            break
        bit = g.op("bitwise_and", rest, g.constant(1 << (digits + exponent), _WIDE))
        y = g.where(g.greater(bit, 0), high_product(y, _number(power, word), word), y)
    if integer_bits > 5:
        y = g.where(g.less(x, -(32 << digits)), 0, y)
    return g.where(g.equal(x, 0), (1 << word) - 1, y)


def _exp_of_quarter(a: Expr, word: int) -> Expr:
    """Return exp(a) for a in [-1/4, 0), by four terms of the Taylor series around -1/8."""
    x = g.add(a, 1 << (word - 3))
    x2 = high_product(x, x, word)
    x3, x4 = high_product(x2, x, word), high_product(x2, x2, word)
    cubic = high_product(g.add(divided(x4, 2), x3), _number(715827883, word), word)
    series = g.add(x, divided(g.add(cubic, x2), 1))
    eighth = _number(1895147668, word)
    y = g.add(high_product(series, eighth, word), eighth)
    return g.minimum(y, (1 << word) - 1)


def _quotient(x: Expr, word: int) -> Expr:
    """Return 1 / ((1 + x) / 2) for x in [0, 1) with two integer bits, by three steps of Newton's
    method.
    """
    half = right(g.add(x, 1 << word), 1)
    y = g.add(high_product(half, _number(-1010580540, word), word), _number(1515870810, word))
    for _ in range(3):
        error = g.sub(g.constant(1 << (word - 2), _WIDE), high_product(half, y, word))
        y = g.add(y, saturated(high_product(y, error, word), 2, word))
    return y


def reciprocal(x: Expr, word: int = 31) -> Expr:
    """Return 1 / (1 + x) for x in [0, 1), as a fixed-point number without integer bits."""
    return saturated(_quotient(x, word), 1, word)


def logistic(x: Expr, integer_bits: int, word: int = 31) -> Expr:
    """Return 1 / (1 + exp(-x)) as a fixed-point number without integer bits."""
    size = g.negative(g.absolute(x))
    y = reciprocal(exp_of_negative(size, integer_bits, word), word)
    other = g.sub(g.constant((1 << word) - 1, _WIDE), y)
    y = g.where(g.less(x, 0), other, y)
    return g.where(g.equal(x, 0), 1 << (word - 1), y)


def tanh(x: Expr, integer_bits: int, word: int = 31) -> Expr:
    """Return tanh(x) as a fixed-point number without integer bits."""
    size = g.negative(g.absolute(x))
    e = exp_of_negative(size, integer_bits + 1, word)
    y = saturated(g.sub(_quotient(e, word), 1 << (word - 2)), 2, word)
    y = g.where(g.less(x, 0), g.negative(y), y)
    return g.where(g.equal(x, 0), 0, y)


def leading_zeros(x: Expr) -> Expr:
    """Return the number of leading zeros of positive 32-bit integers; the last axis of `x` must
    have extent 1.
    """
    powers = g.constant(np.int64(1) << np.arange(32, dtype=np.int64))
    below = g.cast(g.less(x, powers), _WIDE)
    return g.reduce("sum", below, [g.rank(x) - 1], True)
