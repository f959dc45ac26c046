/* SPDX-License-Identifier: Apache-2.0
 *
 * Elementary functions of many numbers in double, for ulp.c: loops that compilers turn into calls of the C library's
 * vector functions under -O3 -ffast-math, where it has them.  They are good to a few units of the last place of double.
 * 0 says nothing: ulp.c then asks the C library's other functions.
 */
#include <math.h>

#define UNARY(name, value) WITHIN(name, HUGE_VAL, value)
/* The function of numbers up to a bound, beyond which it is infinite, 0 or nothing for floats: vector functions are slow
 * where they must look at numbers one by one. */
#define WITHIN(name, bound, value)                                   \
  static void name##s(const float *x, const float *y, double *out) { \
    (void)y;                                                         \
    for (int k = 0; k < CHUNK; ++k) {                                \
      const double a = x[k] < -(bound) ? -(bound) : x[k] > (bound) ? (bound) : x[k]; \
      out[k] = value;                                                \
    }                                                                \
  }
#define BINARY(name)                                                              \
  static void name##s(const float *x, const float *y, double *out) {              \
    for (int k = 0; k < CHUNK; ++k) out[k] = name((double)x[k], (double)y[k]);     \
  }
#define PI 3.14159265358979323846

/* x (x + 1) ... (x + 7) */
static inline double rising(double x) {
  return x * (x + 1) * (x + 2) * (x + 3) * (x + 4) * (x + 5) * (x + 6) * (x + 7);
}

/* The logarithm of the gamma function of a number z of at least 8, by Stirling's series (Abramowitz and Stegun,
 * 6.1.41), and of one of at least 0 by its recurrence (6.1.15). */
static inline double stirling(double z) {
  const double r = 1 / z, s = r * r;
  const double rest = 1. / 12 - s * (1. / 360 - s * (1. / 1260 - s * (1. / 1680 - s * (1. / 1188 - s * 691. / 360360))));
  return (z - 0.5) * log(z) - z + 0.91893853320467274178 + r * rest;
}
static inline double log_gamma(double x) { return x < 8 ? stirling(x + 8) - log(rising(x)) : stirling(x); }
static inline double gamma_of(double x) { return x < 8 ? exp(stirling(x + 8)) / rising(x) : exp(stirling(x)); }

/* sin(PI x) for a float: what is left of it beside the nearest whole number is exact. */
static inline double sine(double x) {
  const double whole = rint(x), half = 0.5 * whole;
  return sin((half == rint(half) ? PI : -PI) * (x - whole));
}

/* Negative numbers by reflection (6.1.17).  Next to the zeros at 1 and 2, where terms cancel, the result is none. */
static inline double log_gamma_of(double a) {
  const double found = log_gamma(a < 0 ? 1 - a : a), mirrored = log(PI / fabs(sine(a))) - found;
  return a < 0 ? mirrored : fabs(found) < 1e-3 ? 0 : found;
}
static inline double gamma_of_any(double a) {
  const double found = gamma_of(a < 0 ? 1 - a : a);
  if (a < 0) return a < -100 || a == rint(a) ? 0 : PI / (sine(a) * found);
  return a == 0 ? 0 : found;
}

WITHIN(exp, 200, exp(a))
UNARY(log, a < 0 ? 0 : log(fabs(a)))
WITHIN(tanh, 200, tanh(a))
UNARY(erf, erf(a))
WITHIN(sigmoid, 200, 1 / (1 + exp(-a)))
UNARY(sin, sin(a))
UNARY(cos, cos(a))
UNARY(tan, tan(a))
UNARY(rsqrt, a <= 0 ? 0 : 1 / sqrt(fabs(a)))
BINARY(pow)
WITHIN(exp2, 300, exp2(a))
WITHIN(expm1, 200, expm1(a))
UNARY(log2, a < 0 ? 0 : log2(fabs(a)))
UNARY(log10, a < 0 ? 0 : log10(fabs(a)))
UNARY(log1p, a < -1 ? 0 : log1p(a < -1 ? 1 : a))
UNARY(cbrt, cbrt(a))
WITHIN(asin, 1, a * a < 1 ? asin(a) : 0)
WITHIN(acos, 1, a * a < 1 ? acos(a) : 0)
UNARY(atan, atan(a))
WITHIN(sinh, 200, sinh(a))
WITHIN(cosh, 200, cosh(a))
UNARY(asinh, asinh(a))
UNARY(acosh, a < 1 ? 0 : acosh(a < 1 ? 1 : a))
WITHIN(atanh, 1, a * a < 1 ? atanh(a) : 0)
BINARY(atan2)
WITHIN(tgamma, 100.5, gamma_of_any(a))
UNARY(lgamma, log_gamma_of(a))

/* In the order of the kernels. */
void (*const REFERENCES[])(const float *, const float *, double *) = {
    exps,   logs,   tanhs, erfs,  sigmoids, sins,  coss,  tans,  rsqrts, pows,   exp2s,  expm1s, log2s,  log10s,
    log1ps, cbrts,  asins, acoss, atans,    sinhs, coshs, asinhs, acoshs, atanhs, atan2s, tgammas, lgammas};
