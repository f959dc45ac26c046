# SPDX-License-Identifier: Apache-2.0
"""16-bit fixed-point functions of TFLite's interpreters (logistic, tanh, scaling), computed in
32-bit integers.

The functions work on scalar expressions of tensor programs and on numpy arrays.

logistic_q15_by_table(x, table, keep)  # TFLite Micro: x with 12 fractional bits, result with 15
logistic_q15_by_series(x, keep)        # gemmlowp
multiply_by_fixed_point_factor(x, (multiplier, shift), keep)  # x * multiplier / 2^31 * 2^shift, rounded twice

`bind` binds an expression that is used several times to a variable; for arrays it is the identity.
Source: reimplemented from the definitions in gemmlowp's fixedpoint.h and TFLite's integer kernels
(both Apache-2.0).
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.relay.op.elementwise_op_constructors import choose, dispatch_scalar_or_array, greater, lesser
from aotc.tir.expr import as_expr

BindVariable: TypeAlias = Callable[[Any], Any]
#: A scale factor: a 31-bit multiplier and a shift, left if positive.
FixedPointFactor: TypeAlias = tuple[Any, Any]
#: Number of bits of an int16 without the sign bit.
INT16_MAGNITUDE_BITS: Final = 15
#: Number of fractional bits of the argument of the logistic function.
LOGISTIC_FRACTION_BITS: Final = 12

_INT32_MAX: Final = 0x7FFFFFFF
_is_zero: Final = dispatch_scalar_or_array(lambda x: x.equal(0), lambda x: x == 0)
_like: Final = dispatch_scalar_or_array(lambda x, value: as_expr(value, x), lambda x, value: np.asarray(value, x.dtype))


def saturate_to_signed_bits(x: Any, bits: int = 16) -> Any:
    """Return x clamped to the range of signed integers with `bits` bits."""
    return lesser(greater(x, -(1 << bits - 1)), (1 << bits - 1) - 1)


def right_shift_rounding_half_away(x: Any, bits: int) -> Any:
    """Return x / 2^bits rounded to nearest, halves away from zero, for magnitudes below 2^30."""
    return (x + (x >> 31) + (1 << bits - 1)) >> bits if bits else x


def multiply_by_fixed_point_factor(x: Any, factor: FixedPointFactor, bind: BindVariable) -> Any:
    """Return x times a scale factor: x * multiplier / 2^31 with halves up, then a right shift with
    halves away from zero.

    A positive shift is a saturating left shift before the product; without one, x must be below
    2^30.
    """
    multiplier, shift = factor
    left, right = bind(greater(shift, 0)), bind(greater(-shift, 0))
    most = bind(_like(left, _INT32_MAX) >> left)
    x = lesser(greater(x, -1 - most), most) << left
    v = bind(((x.astype("int64") * multiplier.astype("int64") + (1 << 30)) >> 31).astype("int32"))
    half = (_like(right, 1) << right) >> 1
    return (v + half + choose(right > 0, v >> 31, 0)) >> right


# --- a table of the logistic function at multiples of 1/24


def _interpolate_logistic_table(position: Any, fraction_bits: int, table: Any, bind: BindVariable) -> Any:
    """Interpolate linearly in `table` at the fixed-point position `position` with `fraction_bits`
    fractional bits.

    The result has `fraction_bits` more fractional bits than the table's entries.
    """
    place = bind(position >> fraction_bits)
    inside = bind(lesser(place, 254))
    low = bind(table(inside))
    y = (low << fraction_bits) + (position & (1 << fraction_bits) - 1) * (table(inside + 1) - low)
    return choose(place > 254, (0x7FFF << 10) if fraction_bits == 9 else 0xFFFF << 8, y)


def logistic_q15_by_table(x: Any, table: Any, bind: BindVariable) -> Any:
    """Return the logistic function of x (12 fractional bits) with 15 fractional bits, by table
    interpolation.
    """
    x = bind(x * 3)
    y = bind(_interpolate_logistic_table(bind(greater(x, -x)), 9, table, bind))
    return choose(x < 0, (1 << 25) + (1 << 9) - 1 - y, y + (1 << 9)) >> 10


def tanh_q15_by_table(x: Any, fraction_bits: int, table: Any, bind: BindVariable) -> Any:
    """Return tanh of x with `fraction_bits` fractional bits, with 15 fractional bits, by table
    interpolation.
    """
    shift = LOGISTIC_FRACTION_BITS - fraction_bits
    x = bind(x * (3 << shift) if shift >= 0 else (x * 3 + (1 << -shift - 1)) >> -shift)
    y = bind(_interpolate_logistic_table(bind(greater(x, -x)), 8, table, bind))
    return choose(x < 0, (1 << 23) + (1 << 7) - 1 - y, y + (1 << 7) - (1 << 23)) >> 8


# --- series and Newton's steps


def _multiply_q15(a: Any, b: Any) -> Any:
    """Return a * b / 2^15, rounded with halves up: the product of two Q15 numbers."""
    return (a * b + (1 << INT16_MAGNITUDE_BITS - 1)) >> INT16_MAGNITUDE_BITS


def _left_shift_saturating_to_int16(x: Any, bits: int) -> Any:
    return saturate_to_signed_bits(x << bits)


def _exp_q15_of_nonpositive(x: Any, integer_bits: int, bind: BindVariable) -> Any:
    """Return exp(x) for x <= 0 in Q15, where x has `integer_bits` integer bits."""
    digits = INT16_MAGNITUDE_BITS - integer_bits
    quarter = 1 << digits - 2
    low = bind((x & quarter - 1) - quarter)
    y = bind(_exp_q15_by_taylor_series(bind(_left_shift_saturating_to_int16(low, integer_bits)), bind))
    rest = bind(low - x)
    for k, power in enumerate(_Q15_EXP_OF_NEGATIVE_POWERS[: integer_bits + 2], digits - 2):
        y = bind(choose((rest & 1 << k) > 0, _multiply_q15(y, power), y))
    if integer_bits > 5:
        y = choose(x < -(32 << digits), 0, y)
    return _select_value_if_zero(x, (1 << INT16_MAGNITUDE_BITS) - 1, y)


#: exp(-2^k) for k from -2 to 4, then exp(-1/8) and 1/3, as Q15 numbers.
_Q15_EXP_OF_NEGATIVE_POWERS: Final = tuple(
    int(np.floor(np.exp(-(2.0**k)) * (1 << INT16_MAGNITUDE_BITS) + 0.5)) for k in range(-2, 5)
)
_EIGHTH, _THIRD = 28918, 10923


def _exp_q15_by_taylor_series(exponent: Any, bind: BindVariable) -> Any:
    """Return exp(a) in Q15 for a in [-1/4, 0), by four terms of the Taylor series at -1/8."""
    x = bind(exponent + (1 << INT16_MAGNITUDE_BITS - 3))
    x2 = bind(_multiply_q15(x, x))
    cubic = _multiply_q15(right_shift_rounding_half_away(_multiply_q15(x2, x2), 2) + _multiply_q15(x2, x), _THIRD)
    y = _multiply_q15(x + right_shift_rounding_half_away(cubic + x2, 1), _EIGHTH) + _EIGHTH
    return lesser(y, (1 << INT16_MAGNITUDE_BITS) - 1)


def _newton_reciprocal_of_half_one_plus(x: Any, bind: BindVariable) -> Any:
    """Return 1 / ((1 + x) / 2) for x in [0, 1) with two integer bits, by three Newton-Raphson
    steps.
    """
    half = bind((x + (1 << INT16_MAGNITUDE_BITS)) >> 1)
    y = bind(_multiply_q15(half, -15420) + 23130)
    for _ in range(3):
        y = bind(
            y
            + _left_shift_saturating_to_int16(
                _multiply_q15(y, (1 << INT16_MAGNITUDE_BITS - 2) - _multiply_q15(half, y)), 2
            )
        )
    return y


def logistic_q15_by_series(x: Any, bind: BindVariable) -> Any:
    """Return the logistic function of x (12 fractional bits) with 15 fractional bits, by gemmlowp's
    series.
    """
    e = bind(_exp_q15_of_nonpositive(bind(lesser(x, -x)), INT16_MAGNITUDE_BITS - LOGISTIC_FRACTION_BITS, bind))
    y = bind(_left_shift_saturating_to_int16(_newton_reciprocal_of_half_one_plus(e, bind), 1))
    return _select_value_if_zero(
        x, 1 << INT16_MAGNITUDE_BITS - 1, choose(x < 0, (1 << INT16_MAGNITUDE_BITS) - 1 - y, y)
    )


def tanh_q15_by_series(x: Any, fraction_bits: int, bind: BindVariable) -> Any:
    """Return tanh of x with `fraction_bits` fractional bits, with 15 fractional bits, by gemmlowp's
    series.
    """
    e = bind(_exp_q15_of_nonpositive(bind(lesser(x, -x)), INT16_MAGNITUDE_BITS - fraction_bits + 1, bind))
    y = bind(
        _left_shift_saturating_to_int16(
            _newton_reciprocal_of_half_one_plus(e, bind) - (1 << INT16_MAGNITUDE_BITS - 2), 2
        )
    )
    return _select_value_if_zero(x, 0, choose(x < 0, -y, y))


def _select_value_if_zero(x: Any, value_at_zero: int, other: Any) -> Any:
    return choose(_is_zero(x), value_at_zero, other)
