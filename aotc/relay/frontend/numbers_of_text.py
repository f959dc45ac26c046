# SPDX-License-Identifier: Apache-2.0
"""Read numbers from texts as ONNX Runtime does, which calls std::stoll, std::stoull and std::stod in the locale "C".

The number is the longest beginning of a text that is one, behind white space; what follows it does not count.

    numbers = floats_of_text(x)              # "1e3 m" is 1000
    numbers.values, numbers.is_valid         # 0 and False for "m"
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from string import hexdigits
from typing import Final

import numpy as np

from aotc.ir import Array
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.frontend.text_operations import states_of_automaton
from aotc.relay.frontend.wide_integers import low_bits, shifted_right, split_words, wide_product_by_two_words

_MANTISSA_BITS: Final = 52
_MAX_EXPONENT: Final = 0x7FF
#: Number of significant digits that are read: as many as fit in 64 bits.
_READ_DIGITS: Final = 19
#: Largest number of significant digits of an exponent that is read; larger ones count as _LARGE_EXPONENT.
_EXPONENT_DIGITS: Final = 5
_LARGE_EXPONENT: Final = 99_999
#: Smallest and largest power of ten that a number of 19 digits is multiplied by to be a normal float64.
POWERS_OF_TEN: Final = (-326, 290)
#: Powers of ten that can give numbers exactly between two float64, of integers below 2**64.
_POWERS_WITH_TIES: Final = (-4, 23)
_LARGEST_INTEGERS: Final = {"int64": (2**63, 2**63 - 1), "uint64": (2**64 - 1, 2**64 - 1)}


@dataclass(frozen=True, eq=False)
class ParsedNumbers:
    """Numbers, and for each of them whether its text is one that can be read."""

    values: Expr
    is_valid: Expr


# --- automata


_STATES: Final = (
    "start", "sign", "zero", "integer", "point", "dot", "fraction", "e", "exponent sign", "exponent", "x", "x dot",
    "hexadecimal", "i", "in", "infinity", "n", "na", "nan", "end",
)  # fmt: skip
_DIGITS: Final = "0123456789"
#: For each state, the next state after characters; "end" after all others.
_EDGES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "start": (
        (" \t\n\v\f\r", "start"), ("+-", "sign"), ("0", "zero"), (_DIGITS, "integer"), (".", "point"), ("iI", "i"),
        ("nN", "n"),
    ),
    "sign": (("0", "zero"), (_DIGITS, "integer"), (".", "point"), ("iI", "i"), ("nN", "n")),
    "zero": ((_DIGITS, "integer"), (".", "dot"), ("eE", "e"), ("xX", "x")),
    "integer": ((_DIGITS, "integer"), (".", "dot"), ("eE", "e")),
    "point": ((_DIGITS, "fraction"),),
    "dot": ((_DIGITS, "fraction"), ("eE", "e")),
    "fraction": ((_DIGITS, "fraction"), ("eE", "e")),
    "e": (("+-", "exponent sign"), (_DIGITS, "exponent")),
    "exponent sign": ((_DIGITS, "exponent"),),
    "exponent": ((_DIGITS, "exponent"),),
    "x": ((hexdigits, "hexadecimal"), (".", "x dot")),
    "x dot": ((hexdigits, "hexadecimal"),),
    "i": (("nN", "in"),),
    "in": (("fF", "infinity"),),
    "n": (("aA", "na"),),
    "na": (("nN", "nan"),),
    **{state: (("".join(map(chr, range(256))), state),) for state in ("hexadecimal", "infinity", "nan")},
}  # fmt: skip


@cache
def _transition_table() -> Array:
    """Return the next state for each state and byte, (states, 256)."""
    table = np.full((len(_STATES), 256), _STATES.index("end"), np.int32)
    for state, edges in _EDGES.items():
        for characters, following in reversed(edges):
            table[_STATES.index(state), [ord(c) for c in characters]] = _STATES.index(following)
    return table


def _in_states(states: Expr, *names: str) -> Expr:
    """Return whether states are among those with given names."""
    flags = np.isin(np.arange(len(_STATES)), [_STATES.index(name) for name in names])
    return gather_slices(g.constant(flags), g.cast(states, "int32"), 0)


def _any(flags: Expr) -> Expr:
    return g.call_reduction("any", flags, (g.rank(flags) - 1,), False)


@dataclass(frozen=True, eq=False)
class _Digits:
    """The significant digits of integers in texts: those from the first one on that is not 0.

    values   the digit at each byte of a text, uint64
    flags    whether the byte is a significant digit
    ranks    number of significant digits up to each byte
    """

    values: Expr
    flags: Expr
    ranks: Expr

    def number(self, count: int | Expr, most: int) -> Expr:
        """Return the integers of the first `count` digits, with zeros where there are fewer, modulo 2**64; digits
        more than `most` before the last one are multiplied by 10**most.
        """
        places = g.sub(g.constant(count, "int32") if isinstance(count, int) else count, self.ranks)
        powers = np.array([10**k for k in range(most + 1)], np.uint64)
        clipped = g.maximum(g.minimum(places, most), 0)
        is_used = g.logical_and(self.flags, g.greater_equal(places, 0))
        factors = g.where(is_used, gather_slices(g.constant(powers), clipped, 0), 0)
        return g.call_reduction("sum", g.mul(self.values, factors), (g.rank(factors) - 1,), False)


def _significant_digits(x: Expr, is_digit: Expr) -> _Digits:
    is_nonzero = g.logical_and(is_digit, g.not_equal(x, ord("0")))
    flags = g.logical_and(is_digit, g.greater(g.running_count_of_flags(is_nonzero), 0))
    values = g.cast(g.sub(x, ord("0")), "uint64")
    return _Digits(values, flags, g.running_count_of_flags(flags))


# --- integers


def integers_of_text(x: Expr, dtype: str) -> ParsedNumbers:
    """Return the integers in texts as int64 or uint64; negative ones modulo 2**64 for uint64.

    x    slots of strings, (..., bytes)
    """
    states = states_of_automaton(x, _transition_table())
    digits = _significant_digits(x, _in_states(states, "zero", "integer"))
    count = g.count_of_flags(digits.flags)
    most = _READ_DIGITS
    number = digits.number(g.unsqueeze(count, (g.rank(count),)), most)
    is_negative = _any(g.logical_and(_in_states(states, "sign"), g.equal(x, ord("-"))))
    # of 20 digits, the first is 1, and the number does not exceed 2**64
    is_first = g.logical_and(digits.flags, g.equal(digits.ranks, 1))
    first = g.call_reduction("sum", g.where(is_first, digits.values, 0), (g.rank(x) - 1,), False)
    fits = g.logical_and(g.equal(first, 1), g.greater_equal(number, 10**most))
    fits = g.logical_or(g.less_equal(count, most), fits)
    fits = g.logical_and(fits, g.less_equal(count, most + 1))
    negative, positive = _LARGEST_INTEGERS[dtype]
    limit = g.where(is_negative, g.constant(negative, "uint64"), positive)
    is_number = _any(_in_states(states, "zero", "integer"))
    valid = g.logical_and(is_number, fits, g.less_equal(number, limit))
    value = g.where(is_negative, g.sub(g.constant(0, "uint64"), number), number)
    return ParsedNumbers(g.cast(value, dtype), valid)


# --- floats


@cache
def power_of_ten_tables() -> tuple[Array, Array]:
    """Return 128 bits of each power of ten in POWERS_OF_TEN, the first of them 1, as two words (powers, 2); and
    the binary exponents of the first bits, int32. Powers above 1 are rounded down, and those below 1 up.
    """
    words, exponents = list[tuple[int, int]](), list[int]()
    for power in range(POWERS_OF_TEN[0], POWERS_OF_TEN[1] + 1):
        whole = 10 ** abs(power)
        size = whole.bit_length()
        if power >= 0:
            words.append(split_words(whole << 128 >> size))
            exponents.append(size - 1)
        else:
            # 2**(size - 1) <= whole < 2**size, so that 1 / whole is in 2**-size (exclusive) .. 2**(1 - size)
            words.append(split_words(-(-(1 << (127 + size)) // whole)))
            exponents.append(-size)
    return np.array(words, np.uint64), np.array(exponents, np.int32)


def _nearest_floats(digits: Expr, power: Expr) -> tuple[Expr, Expr]:
    """Return the bits of the float64 that are nearest to digits * 10**power, with ties to even, as uint64; and
    their exponent fields, int32, of which those outside of 1 to 2046 are no normal numbers.

    digits   uint64, with 19 digits
    power    int32, in POWERS_OF_TEN

    The algorithm is that of D. Lemire, Number Parsing at a Gigabyte per Second (2021), which needs no other one
    besides (N. Mushtak and D. Lemire, Fast Number Parsing Without Fallback, 2023).
    """
    words, exponents = power_of_ten_tables()
    index = g.sub(power, POWERS_OF_TEN[0])
    high, low = (gather_slices(g.constant(column), index, 0) for column in words.T.copy())
    binary = gather_slices(g.constant(exponents), index, 0)
    # 19 digits have 60 to 64 bits
    zeros: Expr = g.constant(0, "int32")
    for limit in range(60, 64):
        zeros = g.add(zeros, g.cast(g.less(digits, 1 << limit), "int32"))
    normal = g.call_op("left_shift", digits, g.cast(zeros, "uint64"))
    upper, middle = wide_product_by_two_words(normal, high, low)
    carry = shifted_right(upper, 63)
    dropped = g.add(carry, 64 - _MANTISSA_BITS - 3)
    mantissa = shifted_right(upper, dropped)
    least, most = _POWERS_WITH_TIES
    is_tie = g.logical_and(
        g.less_equal(middle, 1),
        g.greater_equal(power, least),
        g.less_equal(power, most),
        g.equal(low_bits(mantissa, 2), 1),
        g.equal(g.call_op("left_shift", mantissa, dropped), upper),
    )
    mantissa = g.sub(mantissa, g.cast(is_tie, "uint64"))
    mantissa = shifted_right(g.add(mantissa, low_bits(mantissa, 1)), 1)
    is_power = g.equal(mantissa, 2 << _MANTISSA_BITS)
    field = g.sub(g.add(binary, 63 + 1023), zeros)
    field = g.add(field, g.add(g.cast(carry, "int32"), g.cast(is_power, "int32")))
    bits = g.where(is_power, 0, low_bits(mantissa, _MANTISSA_BITS))
    return g.add(bits, g.mul(g.cast(field, "uint64"), 1 << _MANTISSA_BITS)), field


def floats_of_text(x: Expr) -> ParsedNumbers:
    """Return the floats in texts as float64. Not valid are, besides texts that are no numbers, hexadecimal ones,
    numbers that no normal float64 is near to, and those few with more than 19 significant digits of which the first
    19 do not decide to which float64 they are nearest.

    x    slots of strings, (..., bytes)
    """
    states = states_of_automaton(x, _transition_table())
    is_integer, is_fraction = _in_states(states, "zero", "integer"), _in_states(states, "fraction")
    is_digit = g.logical_or(is_integer, is_fraction)
    digits = _significant_digits(x, is_digit)
    first = digits.number(_READ_DIGITS, _READ_DIGITS - 1)
    is_rest = g.logical_and(digits.flags, g.greater(digits.ranks, _READ_DIGITS), g.not_equal(x, ord("0")))
    is_cut = _any(is_rest)
    # the first digit is that of 10**(before - 1)
    before = g.sub(
        g.count_of_flags(g.logical_and(digits.flags, is_integer)),
        g.count_of_flags(g.logical_and(is_fraction, g.logical_not(digits.flags))),
    )
    power = g.add(g.sub(before, _READ_DIGITS), _exponents(x, states))
    is_zero = g.equal(first, 0)
    in_table = g.logical_and(g.greater_equal(power, POWERS_OF_TEN[0]), g.less_equal(power, POWERS_OF_TEN[1]))
    power = g.maximum(g.minimum(power, POWERS_OF_TEN[1]), POWERS_OF_TEN[0])
    (bits, field), (next_bits, _) = _nearest_floats(first, power), _nearest_floats(g.add(first, 1), power)
    is_normal = g.logical_and(g.greater(field, 0), g.less(field, _MAX_EXPONENT), in_table)
    is_decided = g.logical_or(g.logical_not(is_cut), g.equal(bits, next_bits))
    is_valid = g.logical_and(_any(is_digit), g.logical_or(is_zero, g.logical_and(is_normal, is_decided)))
    bits = g.where(is_zero, 0, bits)
    ends = g.strided_slice(states, [g.dim(x, g.rank(x) - 1) - 1], [g.dim(x, g.rank(x) - 1)], [g.rank(x) - 1])
    last = g.squeeze(ends, [g.rank(x) - 1])
    infinity = _MAX_EXPONENT << _MANTISSA_BITS
    bits = g.where(_in_states(last, "infinity"), infinity, bits)
    bits = g.where(_in_states(last, "nan"), infinity | 1 << (_MANTISSA_BITS - 1), bits)
    is_valid = g.logical_or(is_valid, _in_states(last, "infinity", "nan"))
    is_valid = g.logical_and(is_valid, g.logical_not(_in_states(last, "hexadecimal")))
    is_negative = _any(g.logical_and(_in_states(states, "sign"), g.equal(x, ord("-"))))
    bits = g.add(bits, g.mul(g.cast(is_negative, "uint64"), 1 << 63))
    return ParsedNumbers(g.call_op("reinterpret", bits, dtype="float64"), is_valid)


def _exponents(x: Expr, states: Expr) -> Expr:
    """Return the decimal exponents in texts, int32; large ones as _LARGE_EXPONENT."""
    digits = _significant_digits(x, _in_states(states, "exponent"))
    count = g.count_of_flags(digits.flags)
    is_large = g.greater(count, _EXPONENT_DIGITS)
    number = g.cast(digits.number(g.unsqueeze(count, (g.rank(count),)), _EXPONENT_DIGITS), "int32")
    number = g.where(is_large, _LARGE_EXPONENT, number)
    is_negative = _any(g.logical_and(_in_states(states, "exponent sign"), g.equal(x, ord("-"))))
    return g.where(is_negative, g.negative(number), number)
