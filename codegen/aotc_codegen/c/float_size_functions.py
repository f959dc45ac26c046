# SPDX-License-Identifier: Apache-2.0
"""C functions that compute sizes of floats: their bits, products, and the nearest fractions.

float_functions(program)        # "" for a model none of whose sizes depends on a float
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aotc.ir.size_operands import MAX_DENOMINATOR, PRODUCT
from aotc.tir import Program

#: Function that converts a float of at least 0 to its bits; -1 stands for negative floats.
_BITS_FUNCTION: Final = """\
static int64_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return value < 0 ? -1 : (int64_t)(bits & 0x7fffffffu);
}
"""
#: The inverse function.
_FLOAT_FUNCTION: Final = """\
static float float_of_bits(int64_t number) {
  const uint32_t bits = (uint32_t)number;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
"""
#: Functions of floats that are sizes. The fraction is computed as Python's Fraction.limit_denominator computes it.
_FUNCTIONS_OF_FLOATS: Final[Mapping[str, str]] = {
    "product": """\
/* a * b, rounded down; for products of at least 0. */
static int64_t floor_of_product(float a, float b) {
  const float product = a * b;
  return product < 2147483648.0f ? (int64_t)product : INT64_C(2147483648);
}
""",
    "fraction": f"""\
/* Numerator or denominator of the fraction nearest to a float from 0 to 2^31, with a denominator of at most
 * {MAX_DENOMINATOR}. */
static int64_t part_of_fraction(float value, int is_numerator) {{
  int64_t n, d = 1, rest, p0 = 0, q0 = 1, p1 = 1, q1 = 0, k;
  if (value < 0x1p-30f) return is_numerator ? 0 : 1;
  for (; value < 8388608.0f && d < INT64_C(1) << 54; d *= 2) value *= 2;
  n = (int64_t)value;
  for (; n % 2 == 0 && d % 2 == 0; n /= 2) d /= 2;
  if (d <= {MAX_DENOMINATOR}) return is_numerator ? n : d;
  rest = d;
  for (;;) {{
    const int64_t a = n / rest, q = q0 + a * q1, p = p0 + a * p1;
    if (q > {MAX_DENOMINATOR}) break;
    p0 = p1;
    q0 = q1;
    p1 = p;
    q1 = q;
    k = n - a * rest;
    n = rest;
    rest = k;
  }}
  k = ({MAX_DENOMINATOR} - q0) / q1;
  if (2 * rest * (q0 + k * q1) <= d) return is_numerator ? p1 : q1;
  return is_numerator ? p0 + k * p1 : q0 + k * q1;
}}
""",
}


def float_functions(program: Program) -> str:
    """Return the C functions that sizes of a program need, one empty line behind each."""
    functions = dict.fromkeys(d.function for d in program.definitions if d.function)
    has_operands = any(o.is_bits for o in program.operands.values())
    if not functions and not has_operands:
        return ""
    kinds = dict.fromkeys("product" if f == PRODUCT else "fraction" for f in functions)
    texts = [*([_BITS_FUNCTION] if has_operands else []), _FLOAT_FUNCTION]
    return "".join(text + "\n" for text in (*texts, *map(_FUNCTIONS_OF_FLOATS.__getitem__, kinds)))
