# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float32 as straight-line C, which compilers turn into vector code.

The C library's functions are calls, one element each; these inline into loops.  `ULP` states how far off they are.
Infinities, NaN and subnormal results are those of C99 Annex F.  Polynomials are Lawson-weighted
least-squares fits on Chebyshev nodes.

    text, calls = FUNCTIONS["tanh"]               # static inline float aotc_tanh_f32(float x) ..., ("exp",)
"""

from __future__ import annotations

from typing import Final

# n = round(x / ln 2) is read from the low bits of a sum with 1.5 * 2^23: no conversion, so no trap for NaN.
# The scale 2^n is applied in two halves, because n reaches beyond the exponents of normal numbers.
EXP: Final = """\
static inline float aotc_exp_f32(float x) {
  const float y = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
  const float t = y * 1.44269504f + 12582912.0f;
  const float n = t - 12582912.0f;
  const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
  const uint32_t k = aotc_bits(t) - 0x4b400000u + 256u;
  const uint32_t half = k >> 1;
  float p = 1.3950489e-3f;
  p = p * r + 8.36889e-3f;
  p = p * r + 4.1666206e-2f;
  p = p * r + 1.6666518e-1f;
  p = p * r + 0.5f;
  p = (p * r) * r + r;
  p = p + 1.0f;
  return (p * aotc_from_bits((half - 1u) << 23)) * aotc_from_bits((k - half - 1u) << 23);
}
"""

# x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log(m) = f - f^2/2 + f^3 p(f), f = m - 1.
LOG: Final = """\
static inline float aotc_log_f32(float x) {
  const int tiny = x < 1.17549435e-38f;
  const uint32_t u = aotc_bits(tiny ? x * 8388608.0f : x) - 0x3f3504f3u;
  const float e = (float)((int32_t)u >> 23) - (tiny ? 23.0f : 0.0f);
  const float f = aotc_from_bits((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float s = f * f;
  float p = 6.9153681e-2f;
  p = p * f - 1.1789808e-1f;
  p = p * f + 1.1872976e-1f;
  p = p * f - 1.2384348e-1f;
  p = p * f + 1.4218658e-1f;
  p = p * f - 1.6669251e-1f;
  p = p * f + 2.0002227e-1f;
  p = p * f - 2.4999987e-1f;
  p = p * f + 3.333331e-1f;
  p = (p * f) * s;
  p = p + e * -2.12194440e-4f;
  p = p - 0.5f * s;
  p = (f + p) + e * 0.693359375f;
  p = x > 3.40282347e+38f ? x : p;
  p = x == 0.0f ? -INFINITY : p;
  return x >= 0.0f ? p : NAN;
}
"""

TANH: Final = """\
static inline float aotc_tanh_f32(float x) {
  const float a = fabsf(x);
  const float s = x * x;
  const float big = 1.0f - 2.0f / (aotc_exp_f32(a + a) + 1.0f);
  float p = -5.5286246e-3f;
  p = p * s + 2.0483306e-2f;
  p = p * s - 5.3692963e-2f;
  p = p * s + 1.333090e-1f;
  p = p * s - 3.3333263e-1f;
  p = (p * s) * x + x;
  return copysignf(a < 0.65f ? p : big, x);
}
"""

# |x| < 1: x * p(x^2); else 1 - exp(-q(|x|)), which is 1 from 4 on.
ERF: Final = """\
static inline float aotc_erf_f32(float x) {
  const float a = fabsf(x);
  const float c = a > 4.0f ? 4.0f : a;
  const float s = c * c;
  float p = 7.889119e-5f;
  float q = 2.168685e-5f;
  p = p * s - 8.020841e-4f;
  p = p * s + 5.1895352e-3f;
  p = p * s - 2.6854444e-2f;
  p = p * s + 1.12836003e-1f;
  p = p * s - 3.7612626e-1f;
  p = p * s + 1.1283791f;
  q = q * c - 4.4133636e-4f;
  q = q * c + 4.204562e-3f;
  q = q * c - 2.5208257e-2f;
  q = q * c + 1.08418576e-1f;
  q = q * c + 6.332199e-1f;
  q = q * c + 1.1295785f;
  q = q * c - 1.8804023e-4f;
  q = 1.0f - aotc_exp_f32(-q);
  return c < 1.0f ? p * x : copysignf(q, x);
}
"""

FUNCTIONS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "exp": (EXP, ()),
    "log": (LOG, ()),
    "tanh": (TANH, ("exp",)),
    "erf": (ERF, ("exp",)),
}
"""The definition of each function, called aotc_NAME_f32, and the other functions that it calls."""

ULP: Final = {
    "exp": 1.5,
    "log": 1.0,
    "tanh": 1.5,
    "erf": 2.5,
    "sigmoid": 2.5,
    "rsqrt": 1.5,
    "sin": 1.0,
    "cos": 1.0,
    "power": 1.0,
}
"""The largest errors of operators on float32, in units of the last place, whatever the target and the argument.

A unit is the distance of floats around the exact value; for subnormal ones it is the smallest subnormal.  Tests compare
every float with the C library's functions in double.  sigmoid uses exp; sin, cos and power are calls of the C library,
and their figures those of glibc.
"""
