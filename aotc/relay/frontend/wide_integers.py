# SPDX-License-Identifier: Apache-2.0
"""Products of 64-bit integers with 128 bits, composed of operators on uint64.

high, low = wide_product(a, b)           # a * b = high * 2**64 + low
split_words(3 << 64)                     # (3, 0)
"""

from __future__ import annotations

from typing import Final

from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g

_HALF_BITS: Final = 32
_WORD_BITS: Final = 64


def low_bits(x: Expr, count: int) -> Expr:
    """Return the lowest bits of integers of at least 0."""
    return g.call_binary_op("bitwise_and", x, (1 << count) - 1)


def shifted_right(x: Expr, count: int | Expr) -> Expr:
    """Return integers of at least 0 without their lowest bits."""
    return g.call_binary_op("right_shift", x, count)


def split_words(value: int) -> tuple[int, int]:
    """Return the upper and the lower 64 bits of an integer of 128 bits."""
    return value >> _WORD_BITS, value & ((1 << _WORD_BITS) - 1)


def wide_product(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return the upper and the lower 64 bits of products of uint64 tensors, with broadcasting: long multiplication of
    digits of 32 bits.
    """
    a_low, b_low = low_bits(a, _HALF_BITS), low_bits(b, _HALF_BITS)
    a_high, b_high = shifted_right(a, _HALF_BITS), shifted_right(b, _HALF_BITS)
    left, right = g.mul(a_high, b_low), g.mul(a_low, b_high)
    middle = g.add(shifted_right(g.mul(a_low, b_low), _HALF_BITS), low_bits(left, _HALF_BITS))
    middle = g.add(middle, low_bits(right, _HALF_BITS))
    high = g.add(g.mul(a_high, b_high), shifted_right(left, _HALF_BITS))
    high = g.add(g.add(high, shifted_right(right, _HALF_BITS)), shifted_right(middle, _HALF_BITS))
    return high, g.mul(a, b)


def wide_product_by_two_words(a: Expr, b_high: Expr, b_low: Expr) -> tuple[Expr, Expr]:
    """Return the upper and the middle 64 bits of products with 192 bits of uint64 tensors and two words."""
    high, low = wide_product(a, b_high)
    carried, _ = wide_product(a, b_low)
    middle = g.add(low, carried)
    return g.add(high, g.cast(g.less(middle, carried), "uint64")), middle
