# SPDX-License-Identifier: Apache-2.0
"""16-bit fixed-point functions of TFLite's interpreters (logistic, tanh, scaling), computed in
32-bit integers.

The functions work on scalar expressions of tensor programs and on numpy arrays.

logistic_by_table(x, table, keep)      # TFLite Micro: x with 12 fractional bits, result with 15
logistic_by_series(x, keep)            # gemmlowp
scaled(x, (multiplier, shift), keep)   # x * multiplier / 2^31 * 2^shift, rounded twice

`keep` binds an expression that is used several times to a variable; for arrays it is the identity.
Source: reimplemented from the definitions in gemmlowp's fixedpoint.h and TFLite's integer kernels
(both Apache-2.0).
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.relay.op.elementwise_table import choose, either, greater, lesser
from aotc.tir.expr import as_expr

Keep: TypeAlias = Callable[[Any], Any]
#: A scale factor: a 31-bit multiplier and a shift, left if positive.
Factor: TypeAlias = tuple[Any, Any]
#: Number of bits of an int16 without the sign bit.
WORD: Final = 15
#: Number of fractional bits of the argument of the logistic function.
GATE: Final = 12

_MOST: Final = 0x7FFFFFFF
_is_zero: Final = either(lambda x: x.equal(0), lambda x: x == 0)
_like: Final = either(lambda x, value: as_expr(value, x), lambda x, value: np.asarray(value, x.dtype))


def saturated(x: Any, bits: int = 16) -> Any:
    """Return x clamped to the range of signed integers with `bits` bits."""
    return lesser(greater(x, -(1 << bits - 1)), (1 << bits - 1) - 1)


def divided(x: Any, bits: int) -> Any:
    """Return x / 2^bits rounded to nearest, halves away from zero, for magnitudes below 2^30."""
    return (x + (x >> 31) + (1 << bits - 1)) >> bits if bits else x


def scaled(x: Any, factor: Factor, keep: Keep) -> Any:
    """Return x times a scale factor: x * multiplier / 2^31 with halves up, then a right shift with
    halves away from zero.

    A positive shift is a saturating left shift before the product; without one, x must be below
    2^30.
    """
    multiplier, shift = factor
    left, right = keep(greater(shift, 0)), keep(greater(-shift, 0))
    most = keep(_like(left, _MOST) >> left)
    x = lesser(greater(x, -1 - most), most) << left
    v = keep(((x.astype("int64") * multiplier.astype("int64") + (1 << 30)) >> 31).astype("int32"))
    half = (_like(right, 1) << right) >> 1
    return (v + half + choose(right > 0, v >> 31, 0)) >> right


# --- a table of the logistic function at multiples of 1/24


def _between(size: Any, digits: int, table: Any, keep: Keep) -> Any:
    """Interpolate linearly in `table` at the fixed-point position `size` with `digits` fractional
    bits.

    The result has `digits` more fractional bits than the table's entries.
    """
    place = keep(size >> digits)
    inside = keep(lesser(place, 254))
    low = keep(table(inside))
    y = (low << digits) + (size & (1 << digits) - 1) * (table(inside + 1) - low)
    return choose(place > 254, (0x7FFF << 10) if digits == 9 else 0xFFFF << 8, y)


def logistic_by_table(x: Any, table: Any, keep: Keep) -> Any:
    """Return the logistic function of x (12 fractional bits) with 15 fractional bits, by table
    interpolation.
    """
    x = keep(x * 3)
    y = keep(_between(keep(greater(x, -x)), 9, table, keep))
    return choose(x < 0, (1 << 25) + (1 << 9) - 1 - y, y + (1 << 9)) >> 10


def tanh_by_table(x: Any, digits: int, table: Any, keep: Keep) -> Any:
    """Return tanh of x with `digits` fractional bits, with 15 fractional bits, by table
    interpolation.
    """
    shift = GATE - digits
    x = keep(x * (3 << shift) if shift >= 0 else (x * 3 + (1 << -shift - 1)) >> -shift)
    y = keep(_between(keep(greater(x, -x)), 8, table, keep))
    return choose(x < 0, (1 << 23) + (1 << 7) - 1 - y, y + (1 << 7) - (1 << 23)) >> 8


# --- series and Newton's steps


def _high(a: Any, b: Any) -> Any:
    """Return a * b / 2^15, rounded with halves up: the product of two Q15 numbers."""
    return (a * b + (1 << WORD - 1)) >> WORD


def _shifted(x: Any, bits: int) -> Any:
    return saturated(x << bits)


def _exponential(x: Any, before: int, keep: Keep) -> Any:
    """Return exp(x) for x <= 0 in Q15, where x has `before` integer bits."""
    digits = WORD - before
    quarter = 1 << digits - 2
    low = keep((x & quarter - 1) - quarter)
    y = keep(_exponential_of_quarter(keep(_shifted(low, before)), keep))
    rest = keep(low - x)
    for k, power in enumerate(_POWERS[: before + 2], digits - 2):
        y = keep(choose((rest & 1 << k) > 0, _high(y, power), y))
    if before > 5:
        y = choose(x < -(32 << digits), 0, y)
    return _at_zero(x, (1 << WORD) - 1, y)


#: exp(-2^k) for k from -2 to 4, then exp(-1/8) and 1/3, as Q15 numbers.
_POWERS: Final = tuple(int(np.floor(np.exp(-(2.0**k)) * (1 << WORD) + 0.5)) for k in range(-2, 5))
_EIGHTH, _THIRD = 28918, 10923


def _exponential_of_quarter(a: Any, keep: Keep) -> Any:
    """Return exp(a) in Q15 for a in [-1/4, 0), by four terms of the Taylor series at -1/8."""
    x = keep(a + (1 << WORD - 3))
    x2 = keep(_high(x, x))
    cubic = _high(divided(_high(x2, x2), 2) + _high(x2, x), _THIRD)
    y = _high(x + divided(cubic + x2, 1), _EIGHTH) + _EIGHTH
    return lesser(y, (1 << WORD) - 1)


def _quotient(x: Any, keep: Keep) -> Any:
    """Return 1 / ((1 + x) / 2) for x in [0, 1) with two integer bits, by three Newton-Raphson
    steps.
    """
    half = keep((x + (1 << WORD)) >> 1)
    y = keep(_high(half, -15420) + 23130)
    for _ in range(3):
        y = keep(y + _shifted(_high(y, (1 << WORD - 2) - _high(half, y)), 2))
    return y


def logistic_by_series(x: Any, keep: Keep) -> Any:
    """Return the logistic function of x (12 fractional bits) with 15 fractional bits, by gemmlowp's
    series.
    """
    e = keep(_exponential(keep(lesser(x, -x)), WORD - GATE, keep))
    y = keep(_shifted(_quotient(e, keep), 1))
    return _at_zero(x, 1 << WORD - 1, choose(x < 0, (1 << WORD) - 1 - y, y))


def tanh_by_series(x: Any, digits: int, keep: Keep) -> Any:
    """Return tanh of x with `digits` fractional bits, with 15 fractional bits, by gemmlowp's
    series.
    """
    e = keep(_exponential(keep(lesser(x, -x)), WORD - digits + 1, keep))
    y = keep(_shifted(_quotient(e, keep) - (1 << WORD - 2), 2))
    return _at_zero(x, 0, choose(x < 0, -y, y))


def _at_zero(x: Any, value: int, other: Any) -> Any:
    return choose(_is_zero(x), value, other)
