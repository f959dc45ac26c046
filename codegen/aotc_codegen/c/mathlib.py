# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float32 as straight-line C, which compilers turn into vector code.

The C library's functions are calls, one element each; these inline into loops, the
longer ones because they must. `ULP` states how far off they are.  Infinities, NaN
and subnormal results are those of C99 Annex F.  Polynomials are Lawson-weighted
least-squares fits on Chebyshev nodes, those in double of Remez's algorithm.

    FUNCTIONS["tanh"]                             # the definition of aotc_tanh_f32

Below, each function is its body; the table at the end says what is around it.
"""

from __future__ import annotations

from typing import Final

from aotc_codegen.c.definitions import Definition, function


def _float(body: str, uses: str = "", params: str = "float x", kind: str = "$inline") -> Definition:
    return function(body, params, "float", f"bits {uses}", kind)


def _wide(made: Definition, otherwise: str = "") -> Definition:
    """A definition where vectors of double and shifts by lanes are instructions."""
    text = f"#if defined(__AVX2__) || defined(__aarch64__)\n{made.text}{otherwise}#endif\n"
    return Definition(text, made.uses)


def _or_library(name: str, body: str, uses: str, params: str = "float x") -> Definition:
    """Such a definition, and elsewhere the C library's function, whose calls are faster there."""
    call = f"return {name}f({params.replace('float ', '')});"
    ours, theirs = (_float(text, uses, params, "$always_inline") for text in (body, call))
    return _wide(ours, f"#else\n{theirs.text}")


def _horner(value: str, x: str, coefficients: str) -> str:
    """The steps of Horner's rule that follow the first coefficient."""
    signed = (f"- {c[1:]}" if c[0] == "-" else f"+ {c}" for c in coefficients.split())
    return "".join(f"  {value} = {value} * {x} {c};\n" for c in signed)


# n = round(x / ln 2) is read from the low bits of a sum with 1.5 * 2^23: no conversion, so no trap for NaN.
_EXP: Final = f"""\
  const float t = y * 1.44269504f + 12582912.0f;
  const float n = t - 12582912.0f;
  const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.3950489e-3f;
{_horner("p", "r", "8.36889e-3f 4.1666206e-2f 1.6666518e-1f 0.5f")}\
  p = (p * r) * r + r;
  p = p + 1.0f;
"""

# The scale 2^n is applied in two halves, because n reaches beyond the exponents of normal numbers.
# The limits 89 and -104 are minima of integers, since floats of one sign are ordered as these are: comparisons of
# floats GCC pulls apart into cases of their own, also together with those of callers.
EXP: Final = f"""\
  const int32_t bits = (int32_t)aotc_bits(x);
  const uint32_t high = (uint32_t)(bits < 0x42b20000 ? bits : 0x42b20000);
  const float y = aotc_from_bits(high < 0xc2d00000u ? high : 0xc2d00000u);
{_EXP}\
  const uint32_t k = aotc_bits(t) - 0x4b400000u + 256u;
  const uint32_t half = k >> 1;
  p = (p * aotc_from_bits((half - 1u) << 23)) * aotc_from_bits((k - half - 1u) << 23);
  return x == x ? p : x;
"""

# exp(y) where the result is a normal number: -87 <= y <= 88.
EXP_NORMAL: Final = f"""\
{_EXP}\
  return p * aotc_from_bits((aotc_bits(t) - 0x4b400000u + 127u) << 23);
"""

_LOG: Final = """
-1.1789808e-1f 1.1872976e-1f -1.2384348e-1f 1.4218658e-1f
-1.6669251e-1f 2.0002227e-1f -2.4999987e-1f 3.333331e-1f
"""

# x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log(m) = f - f^2/2 + f^3 p(f), f = m - 1.
LOG: Final = f"""\
  const int tiny = x < 1.17549435e-38f;
  const uint32_t u = aotc_bits(tiny ? x * 8388608.0f : x) - 0x3f3504f3u;
  const float e = (float)((int32_t)u >> 23) - (tiny ? 23.0f : 0.0f);
  const float f = aotc_from_bits((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float s = f * f;
  float p = 6.9153681e-2f;
{_horner("p", "f", _LOG)}\
  p = (p * f) * s;
  p = p + e * -2.12194440e-4f;
  p = p - 0.5f * s;
  p = (f + p) + e * 0.693359375f;
  p = x > 3.40282347e+38f ? x : p;
  p = x == 0.0f ? -INFINITY : p;
  return x >= 0.0f ? p : NAN;
"""

TANH: Final = f"""\
  const float a = fabsf(x);
  const float s = x * x;
  const float c = 10.0f < a ? 10.0f : a;
  const float big = 1.0f - 2.0f / (aotc_exp_normal_f32(c + c) + 1.0f);
  float p = -5.5286246e-3f;
{_horner("p", "s", "2.0483306e-2f -5.3692963e-2f 1.333090e-1f -3.3333263e-1f")}\
  p = (p * s) * x + x;
  return copysignf(a < 0.65f ? p : big, x);
"""

# |x| < 1: x * p(x^2); else 1 - exp(-q(|x|)), which is 1 from 4 on.
ERF: Final = f"""\
  const float a = fabsf(x);
  const float c = a > 4.0f ? 4.0f : a;
  const float s = c * c;
  float p = 7.889119e-5f;
  float q = 2.168685e-5f;
{_horner("p", "s", "-8.020841e-4f 5.1895352e-3f -2.6854444e-2f 1.12836003e-1f -3.7612626e-1f 1.1283791f")}\
{_horner("q", "c", "-4.4133636e-4f 4.204562e-3f -2.5208257e-2f 1.08418576e-1f 6.332199e-1f 1.1295785f -1.8804023e-4f")}\
  q = 1.0f - aotc_exp_normal_f32(-q);
  return c < 1.0f ? p * x : copysignf(q, x);
"""

# Payne and Hanek's reduction (1983) in 96 bits of 2/pi, from the place on where m * 2^e * 2/pi is no multiple of 4: the
# product has two bits of the quarter of the turn and 62 of the rest.  For |x| < 1 there is nothing to reduce.
TURN: Final = """\
  const uint32_t a = aotc_bits(x) & 0x7fffffffu;
  const uint32_t e = (a >> 23) - 127u, m = (a & 0x007fffffu) | 0x00800000u;
  const uint32_t s = e & 31u, r = 31u - s;
  const int small = a < 0x3f800000u, far = (e & 64u) != 0u, next = (e & 32u) != 0u;
  const uint32_t a0 = far ? 0x220a94feu : 0x00000051u;
  const uint32_t a1 = far ? 0x13abe8fau : 0x7cc1b727u;
  const uint32_t a2 = far ? 0x9a6ee06du : 0x220a94feu;
  const uint32_t a3 = far ? 0xb14acc9eu : 0x13abe8fau;
  const uint32_t a4 = far ? 0x21c820ffu : 0x9a6ee06du;
  const uint32_t b0 = next ? a1 : a0, b1 = next ? a2 : a1, b2 = next ? a3 : a2, b3 = next ? a4 : a3;
  const uint32_t w0 = (b0 << s) | ((b1 >> 1) >> r);
  const uint32_t w1 = (b1 << s) | ((b2 >> 1) >> r);
  const uint32_t w2 = (b2 << s) | ((b3 >> 1) >> r);
  const uint64_t product = (uint64_t)m * w1 + ((uint64_t)m * w2 >> 32);
  const uint32_t high = (uint32_t)(product >> 32) + m * w0, low = (uint32_t)product;
  const double top = (double)(int32_t)(high << 2 | low >> 30) * 3.6572951981678992e-10;
  const double turn = top + (double)(int32_t)((low << 2) >> 1) * 1.7030607900432773e-19;
  *rest = small ? (double)aotc_from_bits(a) : turn;
  return small ? 0u : (high + 0x20000000u) >> 30;
"""

# Both polynomials in one: b + b s p(s), where b is r for the sine and 1 for the cosine.
WAVE: Final = """\
  double r;
  const uint32_t q = aotc_turn_f32(x, &r) + quarter;
  const int odd = (q & 1u) != 0u;
  const double s = r * r, b = odd ? 1.0 : r;
  double p = odd ? 2.4138246562584954e-5 : 2.6953126420295278e-6;
  p = p * s + (odd ? -1.3883339756449393e-3 : -1.9836212114933676e-4);
  p = p * s + (odd ? 4.1666483357577685e-2 : 8.3333166195992582e-3);
  p = p * s + (odd ? -4.9999998116461878e-1 : -1.6666666494885057e-1);
  p = b + (b * s) * p;
  return fabsf(x) <= 3.40282347e+38f ? aotc_from_bits(aotc_bits((float)p) ^ ((q & 2u) << 30) ^ sign) : NAN;
"""

TAN: Final = f"""\
  double r;
  const uint32_t q = aotc_turn_f32(x, &r);
  const int odd = (q & 1u) != 0u;
  const double s = r * r;
  double p = 2.6953126420295278e-6, c = 2.4138246562584954e-5;
{_horner("p", "s", "-1.9836212114933676e-4 8.3333166195992582e-3 -1.6666666494885057e-1")}\
  p = r + (r * s) * p;
{_horner("c", "s", "-1.3883339756449393e-3 4.1666483357577685e-2 -4.9999998116461878e-1")}\
  c = 1.0 + c * s;
  p = (odd ? -c : p) / (odd ? p : c);
  return fabsf(x) <= 3.40282347e+38f ? aotc_from_bits(aotc_bits((float)p) ^ (aotc_bits(x) & 0x80000000u)) : NAN;
"""


_EXP2: Final = """
1.3399957587004336e-3 9.6184892437084544e-3 5.5503287119397479e-2
2.4022646886090252e-1 6.9314720576707142e-1 1.000000000555048
"""

# 2^(y log2 |x|): m in [sqrt(1/2), sqrt(2)) as for the logarithm, log2(m) by powers of s = (m - 1) / (m + 1).  y is cut
# where the result is 0, 1 or infinity, on an even number; w then has its whole part in the low bits of a sum.
# Conditions are joined by & and |: with branches between them, gcc 12 does not vectorise.
POW: Final = f"""\
  const float a = fabsf(x);
  const int tiny = a < 1.17549435e-38f;
  const uint32_t u = aotc_bits(tiny ? a * 8388608.0f : a) - 0x3f3504f3u;
  const float e = (float)((int32_t)u >> 23) - (tiny ? 23.0f : 0.0f);
  const float m = aotc_from_bits((u & 0x007fffffu) + 0x3f3504f3u);
  const float c = y > 1e12f ? 1e12f : y < -1e12f ? -1e12f : y;
  const float half = c * 0.5f, whole = rintf(c), even = rintf(half);
  const float edge = ((a == 0.0f) | (a > 3.40282347e+38f)) ? INFINITY : 1.0f;
  const uint32_t odd = ((whole == c) & (even != half)) ? 0x80000000u : 0u;
  const double s = ((double)m - 1.0) / ((double)m + 1.0), q = s * s;
  double p = 0.34074045710414318, z = 1.5345789109373779e-4, w, t, r;
  float f, v;
{_horner("p", "q", "0.41167210928805631 0.57708359619079403 0.96179667327563884 2.8853900817901471")}\
  w = (double)c * (p * s + (double)e);
  t = w + 6755399441055744.0;
  r = w - (t - 6755399441055744.0);
{_horner("z", "r", _EXP2)}\
  f = (float)aotc_from_bits64(aotc_bits64(z) + (aotc_bits64(t) << 52));
  v = (float)w * edge;
  f = v > 130.0f ? INFINITY : v < -152.0f ? 0.0f : f;
  f = aotc_from_bits(aotc_bits(f) | (aotc_bits(x) & odd));
  f = ((x < 0.0f) & (whole != c) & (a <= 3.40282347e+38f)) ? NAN : f;
  f = x != x ? x : y != y ? y : f;
  return ((y == 0.0f) | (x == 1.0f)) ? 1.0f : f;
"""


def _copied(made: str, name: str, given: str, x: str, u: str) -> str:
    body = f"{made} {u};\n  memcpy(&{u}, &{x}, sizeof {u});\n  return {u};"
    return function(body, f"{given} {x}", made).text.replace("$name", f"aotc_{name}")


def _reinterpretation(kind: str, whole: str, number: str) -> Definition:
    """Functions from a number to its bits and back."""
    to_bits = _copied(whole, f"bits{kind}", number, "x", "u")
    return Definition(to_bits + _copied(number, f"from_bits{kind}", whole, "u", "x"))


BITS: Final = _reinterpretation("", "uint32_t", "float")

_QUARTER: Final = "return aotc_wave_f32(x, {}u, {});"
_WAVES: Final = "float x, uint32_t quarter, uint32_t sign"
#: The definition of each function, which is called aotc_NAME_f32.
FUNCTIONS: Final = {
    "exp": _float(EXP),
    "exp_normal": _float(EXP_NORMAL, params="float y"),
    "log": _float(LOG),
    "tanh": _float(TANH, "exp_normal"),
    "erf": _float(ERF, "exp_normal", kind="$always_inline"),
    "turn": _wide(function(TURN, "float x, double *rest", "uint32_t", "bits", "$always_inline")),
    "wave": _wide(_float(WAVE, "turn", _WAVES, "$always_inline")),
    "sin": _or_library("sin", _QUARTER.format(0, "(aotc_bits(x) & 0x80000000u)"), "wave"),
    "cos": _or_library("cos", _QUARTER.format(1, "0u"), "wave"),
    "tan": _or_library("tan", TAN, "turn"),
    "bits64": _wide(_reinterpretation("64", "uint64_t", "double")),
    "pow": _or_library("pow", POW, "bits64", "float x, float y"),
}

_BOUNDS: Final = {1.0: "log sin cos tan power", 1.5: "exp tanh rsqrt", 2.5: "erf sigmoid"}
#: The largest errors of operators on float32, in units of the last place, whatever the target and the argument.
#:
#: A unit is the distance of floats around the exact value; for subnormal ones it is
#: the smallest subnormal.  Tests compare every float with the C library's functions in
#: double. sigmoid uses exp.  Where sin, cos, tan and power are calls of the C library,
#: their figures are those of glibc.
ULP: Final = {name: bound for bound, names in _BOUNDS.items() for name in names.split()}
