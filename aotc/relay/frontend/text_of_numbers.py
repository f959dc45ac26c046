# SPDX-License-Identifier: Apache-2.0
"""Write numbers as decimal texts, as ONNX Runtime does: integers in full, floats as C's "%.8g" does.

Results are strings in slots (`aotc.relay.frontend.string_slots`).

    text_of_integers(x)          # "-7"; bool as "0" and "1"
    text_of_floats(x)            # "0.1", "1.2345679e+08", "NaN", "INF", "-INF"
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from aotc.ir import Array
from aotc.ir.string_slots import STRING_PADDING, slots_of_strings
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.frontend.wide_integers import low_bits, shifted_right, split_words, wide_product_by_two_words

#: Number of significant digits of floats.
FLOAT_DIGITS: Final = 8
#: Number of bytes of the longest text of a float, such as "-1.2345679e-308".
_FLOAT_TEXT_BYTES: Final = 15
#: Decimal exponents of floats that are written without an exponent: from this one on, below FLOAT_DIGITS.
_LEAST_FIXED_EXPONENT: Final = -4
_MANTISSA_BITS: Final = 52
_MAX_EXPONENT: Final = 0x7FF
#: Binary exponent of the lowest bit of a float64 whose exponent field is 0.
_LOWEST_BIT: Final = -1075
#: Power of two by which subnormal numbers are multiplied, so that they are normal.
_SUBNORMAL_SCALE: Final = 64
#: Number of bits behind the binary point of the factors: the largest one, 10**8 / 2**52, has 128 bits.
FACTOR_FRACTION_BITS: Final = 153
#: Number of bits behind the binary point in the upper word of a product with a factor.
_FRACTION_BITS: Final = FACTOR_FRACTION_BITS - 128
#: Smallest and largest exponent field of the values of a data type, as float64; negative for subnormal numbers.
_EXPONENT_FIELDS: Final = {
    "float16": (999, 1038), "bfloat16": (874, 1150), "float32": (874, 1150), "float64": (-51, 2046),
}  # fmt: skip


# --- integers


def text_of_integers(x: Expr) -> Expr:
    """Return the decimal texts of integers or truth values, (..., bytes)."""
    dtype = g.dtype(x)
    if dtype.is_bool:
        x, limits = g.cast(x, "uint8"), (0, 1)
    else:
        limits = (int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max))
    size, places = max(len(str(limit)) for limit in limits), len(str(limits[1]))
    unsigned = "uint32" if places < len(str(1 << 32)) else "uint64"
    is_negative = g.less(x, 0) if limits[0] < 0 else g.call_op("zeros_like", g.cast(x, "bool"))
    # in unsigned arithmetic, the negative of the least integer is its magnitude
    extended = g.cast(x, unsigned)
    magnitude = g.where(is_negative, g.sub(g.constant(0, unsigned), extended), extended)
    powers = np.array([10**k for k in range(places)], unsigned)
    reached = g.greater_equal(_with_axis(magnitude), g.constant(powers))
    count = g.maximum(g.count_of_flags(reached), 1)
    sign = g.cast(is_negative, "int32")
    place = g.sub(g.iota(size, "int32"), _with_axis(sign))
    digits = _digits(_with_axis(magnitude), g.sub(g.sub(_with_axis(count), 1), place), powers)
    text = g.where(g.less(place, 0), ord("-"), digits)
    return _padded(text, g.add(count, sign))


def _with_axis(x: Expr) -> Expr:
    return g.unsqueeze(x, (g.rank(x),))


def _digits(numbers: Expr, positions: Expr, powers: Array) -> Expr:
    """Return the digits of numbers at positions from the last one on as characters, int32. Positions outside of
    `powers` of ten count as the nearest ones.
    """
    clipped = g.maximum(g.minimum(positions, len(powers) - 1), 0)
    quotient = g.call_binary_op("trunc_divide", numbers, gather_slices(g.constant(powers), clipped, 0))
    return g.add(g.cast(g.call_binary_op("trunc_mod", quotient, 10), "int32"), ord("0"))


def _padded(characters: Expr, lengths: Expr) -> Expr:
    """Return the slots of texts of known lengths, given their characters as int32."""
    size = g.dim(characters, g.rank(characters) - 1)
    is_text = g.less(g.iota(size, "int32"), _with_axis(lengths))
    return g.cast(g.where(is_text, characters, STRING_PADDING), "uint8")


# --- floats


@cache
def factor_tables(dtype: str) -> tuple[Array, Array]:
    """Return what scales the integer mantissas m of float64 values to 8 digits, by exponent field.

    The first result, (fields,), has the mantissa from which on the decimal exponent is one larger. The second
    one, (2 * fields, 3), has one row for smaller and one for larger mantissas: the decimal exponent, as int64
    bits, and the two words of the factor f, rounded up, so that m * f is the number of FLOAT_DIGITS digits.
    """
    thresholds, rows = list[int](), list[tuple[int, int, int]]()
    low, high = _EXPONENT_FIELDS[dtype]
    for field in range(low, high + 1):
        exponent = field + _LOWEST_BIT
        smallest = _decimal_exponent(1 << _MANTISSA_BITS, exponent)
        # the least m with m * 2**exponent >= 10**(smallest + 1)
        thresholds.append(min(_ratio_rounded_up(smallest + 1, -exponent), 2 << _MANTISSA_BITS))
        for decimal in (smallest, smallest + 1):
            factor = _ratio_rounded_up(FLOAT_DIGITS - 1 - decimal, exponent + FACTOR_FRACTION_BITS)
            rows.append((decimal % (1 << 64), *split_words(factor)))
    return np.array(thresholds, np.uint64), np.array(rows, np.uint64)


def _ratio_rounded_up(decimal: int, binary: int) -> int:
    """Return 10**decimal * 2**binary, rounded up to an integer."""
    numerator: int = 10 ** max(decimal, 0) << max(binary, 0)
    denominator: int = 10 ** max(-decimal, 0) << max(-binary, 0)
    return -(-numerator // denominator)


def _decimal_exponent(mantissa: int, exponent: int) -> int:
    """Return the largest k with 10**k <= mantissa * 2**exponent."""
    # an estimate that is at most one too small
    k = int(np.floor((exponent + mantissa.bit_length() - 1) * np.log10(2))) - 1
    while _ratio_rounded_up(k + 1, -exponent) <= mantissa:
        k += 1
    return k


def _significant_digits(x: Expr) -> tuple[Expr, Expr]:
    """Return the first FLOAT_DIGITS digits of the magnitudes of floats, rounded to nearest with ties to even, as an
    integer, and the decimal exponents of the first digit; both int32, and 0 for 0.

    The magnitude m * 2**e is multiplied by a constant of its binary exponent, as in Ryū printf (Ulf Adams, Ryū
    Revisited: Printf Floating Point Conversion, 2019), with 192 bits. No product that is not exactly between two
    numbers of 8 digits is as near to the middle as the error of the constant (a test shows it).
    """
    thresholds, rows = factor_tables(str(g.dtype(x)))
    first_field = _EXPONENT_FIELDS[str(g.dtype(x))][0]
    value = g.absolute(g.cast(x, "float64"))
    is_subnormal = g.less(value, float(np.finfo(np.float64).smallest_normal))
    bits = g.call_op("reinterpret", g.where(is_subnormal, g.mul(value, 2.0**_SUBNORMAL_SCALE), value), dtype="uint64")
    field = g.cast(shifted_right(bits, _MANTISSA_BITS), "int32")
    field = g.sub(field, g.mul(g.cast(is_subnormal, "int32"), _SUBNORMAL_SCALE))
    index = g.maximum(g.minimum(g.sub(field, first_field), len(thresholds) - 1), 0)
    mantissa = g.add(low_bits(bits, _MANTISSA_BITS), 1 << _MANTISSA_BITS)
    is_larger = g.greater_equal(mantissa, gather_slices(g.constant(thresholds), index, 0))
    index = g.add(g.mul(index, 2), g.cast(is_larger, "int32"))
    exponent, *factor = (gather_slices(g.constant(column), index, 0) for column in rows.T.copy())
    upper, middle = wide_product_by_two_words(mantissa, *factor)
    half = 1 << (_FRACTION_BITS - 1)
    rounded = shifted_right(g.add(upper, half), _FRACTION_BITS)
    is_tie = g.logical_and(g.equal(low_bits(upper, _FRACTION_BITS), half), g.equal(middle, 0))
    rounded = g.sub(rounded, g.where(is_tie, low_bits(rounded, 1), 0))
    decimal = g.cast(exponent, "int32")
    is_power = g.equal(rounded, 10**FLOAT_DIGITS)
    digits = g.where(is_power, 10 ** (FLOAT_DIGITS - 1), g.cast(rounded, "int32"))
    decimal = g.add(decimal, g.cast(is_power, "int32"))
    is_zero = g.equal(value, 0.0)
    return g.where(is_zero, 0, digits), g.where(is_zero, 0, decimal)


def text_of_floats(x: Expr) -> Expr:
    """Return the texts of floats with up to 8 significant digits as C's "%.8g" has them, (..., bytes)."""
    digits, decimal = _significant_digits(x)
    powers = np.array([10**k for k in range(FLOAT_DIGITS)], np.int32)
    remainders = g.call_binary_op("trunc_mod", _with_axis(digits), g.constant(powers[1:]))
    # a digit exists if what is behind the one before it is not 0
    count = g.add(g.count_of_flags(g.not_equal(remainders, 0)), 1)
    is_fixed = g.logical_and(g.greater_equal(decimal, _LEAST_FIXED_EXPONENT), g.less(decimal, FLOAT_DIGITS))
    shift = g.where(is_fixed, decimal, 0)
    lead, point = g.minimum(shift, 0), g.add(g.maximum(shift, 0), 1)
    # digits with zeros before the first one that counts, and before the point
    shown = g.maximum(g.sub(count, lead), point)
    length = g.add(shown, g.cast(g.greater(shown, point), "int32"))
    bits = g.call_op("reinterpret", g.cast(x, "float64"), dtype="int64")
    sign = g.cast(g.less(bits, 0), "int32")
    place = g.sub(g.iota(_FLOAT_TEXT_BYTES, "int32"), _with_axis(sign))
    number = g.add(g.sub(place, g.cast(g.greater(place, _with_axis(point)), "int32")), _with_axis(lead))
    body = g.where(g.less(number, 0), ord("0"), _digits(_with_axis(digits), g.sub(FLOAT_DIGITS - 1, number), powers))
    body = g.where(g.equal(place, _with_axis(point)), ord("."), body)
    suffix, suffix_length = _exponent_text(decimal, g.sub(place, _with_axis(length)))
    text = g.where(g.less(place, _with_axis(length)), body, suffix)
    text = g.where(g.less(place, 0), ord("-"), text)
    total = g.add(g.add(sign, length), g.where(is_fixed, 0, suffix_length))
    return _with_texts_of_infinities(x, _padded(text, total), sign)


def _exponent_text(decimal: Expr, place: Expr) -> tuple[Expr, Expr]:
    """Return the characters at places of texts such as "e-05" and "e+100", int32, and the lengths of the texts."""
    magnitude = g.absolute(decimal)
    count = g.add(g.cast(g.greater_equal(magnitude, 100), "int32"), 2)
    powers = np.array([1, 10, 100], np.int32)
    text = _digits(_with_axis(magnitude), g.sub(g.add(_with_axis(count), 1), place), powers)
    sign = g.where(g.less(_with_axis(decimal), 0), g.constant(ord("-"), "int32"), ord("+"))
    text = g.where(g.equal(place, 0), ord("e"), g.where(g.equal(place, 1), sign, text))
    return text, g.add(count, 2)


def _with_texts_of_infinities(x: Expr, slots: Expr, sign: Expr) -> Expr:
    for flag, name in ((g.call_op("isinf", x), "INF"), (g.call_op("isnan", x), "NaN")):
        text: Expr = g.constant(slots_of_strings([name], _FLOAT_TEXT_BYTES)[0])
        if name == "INF":
            negative = g.constant(slots_of_strings([f"-{name}"], _FLOAT_TEXT_BYTES)[0])
            text = g.where(g.equal(_with_axis(sign), 1), negative, text)
        slots = g.where(_with_axis(flag), text, slots)
    return slots
