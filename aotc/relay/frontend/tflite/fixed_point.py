# SPDX-License-Identifier: Apache-2.0
"""Fixed-point functions of gemmlowp, on which TFLite's integer
kernels rest: numbers of 32 bits with some bits before the point.

In: tensors of integers.  Out: int64 tensors that hold 32 bits; of
constants, constants.

    exp_of_negative(x, 5)                   # x has 5 bits before the point, the result 0
    high_product(a, b)                      # a * b / 2^31, rounded

Source: gemmlowp's fixedpoint.h (Apache-2.0), by its meaning: the
high half of a product rounds halves up, a division by a power of
two halves away from zero.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g

_WIDE: Final = "int64"
_ONE: Final = (1 << 31) - 1
#: exp(-2^k), k from -2, without bits before the point.
_POWERS: Final = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)


def wide(x: Expr) -> Expr:
    """Integers as int64."""
    return g.cast(x, _WIDE)


def right(x: Expr, bits: int) -> Expr:
    """x / 2^bits, rounded down."""
    return g.op("right_shift", x, g.constant(bits, _WIDE)) if bits else x


def divided(x: Expr, bits: int | Expr) -> Expr:
    """x / 2^bits, halves away from zero; bits may be a tensor."""
    if bits == 0:
        return x
    shift = g.constant(bits, _WIDE) if isinstance(bits, int) else bits
    unit = g.op("left_shift", g.constant(1, _WIDE), shift)
    half = g.op("right_shift", unit, g.constant(1, _WIDE))
    down = g.cast(g.less(x, 0), _WIDE)
    return g.op("right_shift", g.sub(g.add(x, half), down), shift)


def high_product(a: Expr, b: Expr | int) -> Expr:
    """a * b / 2^31, halves up."""
    return right(g.add(g.mul(a, b), 1 << 30), 31)


def saturated(x: Expr, bits: int) -> Expr:
    """x * 2^bits, in 32 bits."""
    y = g.op("left_shift", x, g.constant(bits, _WIDE))
    return g.minimum(g.maximum(y, -(1 << 31)), _ONE)


def exp_of_negative(x: Expr, integer_bits: int) -> Expr:
    """exp(x) of x up to 0, with `integer_bits` before the point."""
    digits = 31 - integer_bits
    quarter = 1 << (digits - 2)
    low = g.sub(g.op("bitwise_and", x, g.constant(quarter - 1, _WIDE)), quarter)
    y = _exp_of_quarter(saturated(low, integer_bits))
    rest = g.sub(low, x)
    for exponent, power in enumerate(_POWERS, -2):
        if integer_bits <= exponent:
            break
        bit = g.op("bitwise_and", rest, g.constant(1 << (digits + exponent), _WIDE))
        y = g.where(g.greater(bit, 0), high_product(y, power), y)
    if integer_bits > 5:
        y = g.where(g.less(x, -(32 << digits)), 0, y)
    return g.where(g.equal(x, 0), _ONE, y)


def _exp_of_quarter(a: Expr) -> Expr:
    """exp(a) of a in [-1/4, 0), by four terms of the series around -1/8."""
    x = g.add(a, 1 << 28)
    x2 = high_product(x, x)
    x3, x4 = high_product(x2, x), high_product(x2, x2)
    cubic = high_product(g.add(divided(x4, 2), x3), 715827883)
    series = g.add(x, divided(g.add(cubic, x2), 1))
    return g.add(high_product(series, 1895147668), 1895147668)


def reciprocal(x: Expr) -> Expr:
    """1 / (1 + x) of x in [0, 1), by three steps of Newton's."""
    half = right(g.add(x, _ONE + 1), 1)
    y = g.add(high_product(half, -1010580540), 1515870810)
    for _ in range(3):
        error = g.sub(g.constant(1 << 29, _WIDE), high_product(half, y))
        y = g.add(y, saturated(high_product(y, error), 2))
    return saturated(y, 1)


def logistic(x: Expr, integer_bits: int) -> Expr:
    """1 / (1 + exp(-x)), without bits before the point."""
    size = g.negative(g.absolute(x))
    y = reciprocal(exp_of_negative(size, integer_bits))
    other = g.sub(g.constant(_ONE, _WIDE), y)
    y = g.where(g.less(x, 0), other, y)
    return g.where(g.equal(x, 0), 1 << 30, y)


def tanh(x: Expr, integer_bits: int) -> Expr:
    """tanh(x), without bits before the point."""
    size = g.negative(g.absolute(x))
    e = exp_of_negative(size, integer_bits + 1)
    half = right(g.add(e, _ONE + 1), 1)
    y = g.add(high_product(half, -1010580540), 1515870810)
    for _ in range(3):
        error = g.sub(g.constant(1 << 29, _WIDE), high_product(half, y))
        y = g.add(y, saturated(high_product(y, error), 2))
    y = saturated(g.sub(y, 1 << 29), 2)
    y = g.where(g.less(x, 0), g.negative(y), y)
    return g.where(g.equal(x, 0), 0, y)


def leading_zeros(x: Expr) -> Expr:
    """The leading zeros of positive integers of 32 bits, along the last axis of size 1."""
    powers = g.constant(np.int64(1) << np.arange(32, dtype=np.int64))
    below = g.cast(g.less(x, powers), _WIDE)
    return g.reduce("sum", below, [g.rank(x) - 1], True)
