/* SPDX-License-Identifier: Apache-2.0
 *
 * Elementary functions of float32, as kernels compiled for several machines, against the C library's in double.
 *
 *   ulp FUNCTION STEP FIRST
 *
 * Takes all pairs of special numbers and every STEP-th of the 2^32 floats from the FIRST on, and prints, for each
 * machine, the largest error in units of the last place, the bits of the argument where it is, and the number of
 * results that are no number, infinite or of the wrong zero where they must not be.  MACHINES and the tables of kernels
 * come from the file that includes this one.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double sigmoid(double a) { return 1.0 / (1.0 + exp(-a)); }
static double rsqrt(double a) { return 1.0 / sqrt(a); }

/* In the order of the kernels. */
static const struct {
  const char *name;
  double (*unary)(double);
  double (*binary)(double, double);
} FUNCTIONS[] = {
    {"exp", exp, NULL},     {"log", log, NULL},     {"tanh", tanh, NULL},   {"erf", erf, NULL},
    {"sigmoid", sigmoid, NULL}, {"sin", sin, NULL}, {"cos", cos, NULL},     {"tan", tan, NULL},
    {"rsqrt", rsqrt, NULL}, {"power", NULL, pow},   {"exp2", exp2, NULL},   {"expm1", expm1, NULL},
    {"log2", log2, NULL},   {"log10", log10, NULL}, {"log1p", log1p, NULL}, {"cbrt", cbrt, NULL},
    {"asin", asin, NULL},   {"acos", acos, NULL},   {"atan", atan, NULL},   {"sinh", sinh, NULL},
    {"cosh", cosh, NULL},   {"asinh", asinh, NULL}, {"acosh", acosh, NULL}, {"atanh", atanh, NULL},
    {"atan2", NULL, atan2}, {"tgamma", tgamma, NULL}, {"lgamma", lgamma, NULL}};

static float x[CHUNK], second[CHUNK], y[MACHINES][CHUNK];

/* Zeros, infinities, NaN, the least and largest subnormal and normal numbers, those around 1, 1/2, 2, 3, 100.5, and
 * around the largest that are halves, odd or even; of both signs. */
static const uint32_t SPECIAL[] = {0,          1,          0x7fffff,   0x800000,   0x7f7fffff, 0x7f800000,
                                   0x7fc00000, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x3f000000, 0x40000000,
                                   0x40400000, 0x42c90000, 0x4affffff, 0x4b000001, 0x4b7fffff, 0x4b800001};
enum { SPECIALS = 2 * sizeof SPECIAL / sizeof *SPECIAL };

static uint32_t special_bits(int k) { return SPECIAL[k / 2] | (uint32_t)(k & 1) << 31; }

/* A float by its bits; signalling NaN, which C99 leaves open, as quiet ones. */
static float quiet(uint32_t bits) {
  float value;
  if ((bits & 0x7fffffffu) > 0x7f800000u) bits |= 0x00400000u;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The second argument that goes with a first one: whole, halves, ordinary, or any float. */
static float partner(uint32_t bits) {
  const uint32_t mixed = (bits ^ bits >> 15) * UINT32_C(2654435761), h = mixed ^ mixed >> 13;
  switch (h & 3) {
    case 0: return (float)(int)(h >> 2 & 31) - 16;
    case 1: return 0.5f * ((float)(int)(h >> 2 & 15) - 8);
    case 2: return ((float)(int)(h >> 8) - 0x1p23f) * 0x1p-21f;
    default: return quiet(mixed);
  }
}

/* The distance of floats around a double. */
static double unit(double exact) {
  uint64_t bits;
  memcpy(&bits, &exact, sizeof bits);
  bits &= UINT64_C(0x7ff0000000000000);
  memcpy(&exact, &bits, sizeof exact);
  return (exact < 0x1p-126 ? 0x1p-126 : exact) * 0x1p-23;
}

/* Infinity, and all that is beyond the floats, stands for 2^128. */
static double bounded(double value) { return fabs(value) < 0x1p128 ? value : copysign(0x1p128, value); }

/* In units of the last place; negative where the kind of the result is wrong.  Of results below `least`, in its. */
static double error(float found, double exact, double least) {
  if (exact != exact || found != found) return (exact != exact) == (found != found) ? 0 : -1;
  if (exact == 0) return found == 0 && !signbit(found) == !signbit(exact) ? 0 : -1;
  return fabs(bounded(found) - bounded(exact)) / unit(fmax(fabs(bounded(exact)), least));
}

int main(int argc, char **argv) {
  double worst[MACHINES] = {0};
  uint32_t where[MACHINES] = {0};
  unsigned long wrong[MACHINES] = {0};
  const uint64_t step = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
  uint64_t next = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
  size_t f = 0;
  int seen = 0;
  if (step == 0) return 2;
  while (f < sizeof FUNCTIONS / sizeof *FUNCTIONS && strcmp(FUNCTIONS[f].name, argv[1]) != 0) ++f;
  if (f == sizeof FUNCTIONS / sizeof *FUNCTIONS) return 2;
  while (next < UINT64_C(1) << 32) {
    int k, m, count = 0;
    while (count < CHUNK && next < UINT64_C(1) << 32) {
      const int special = seen < SPECIALS * SPECIALS;
      const uint32_t bits = special ? special_bits(seen % SPECIALS) : (uint32_t)next;
      next += special ? 0 : step;
      second[count] = special ? quiet(special_bits(seen / SPECIALS)) : partner(bits);
      seen += special;
      x[count++] = quiet(bits);
    }
    for (m = 0; m < MACHINES; ++m) KERNELS[m][f](x, second, y[m]);
    for (k = 0; k < count; ++k) {
      const double a = x[k], exact = FUNCTIONS[f].unary ? FUNCTIONS[f].unary(a) : FUNCTIONS[f].binary(a, second[k]);
      for (m = 0; m < MACHINES; ++m) {
        /* The logarithm of the gamma function has a zero between any two negative numbers. */
        const double off = error(y[m][k], exact, FUNCTIONS[f].unary == lgamma && a < 0 ? 1 : 0);
        if (off < 0 || off > worst[m]) memcpy(&where[m], &x[k], sizeof *where);
        if (off < 0) ++wrong[m];
        if (off > worst[m]) worst[m] = off;
      }
    }
  }
  for (f = 0; f < MACHINES; ++f) printf("%s %.6f %08lx %lu\n", NAMES[f], worst[f], (unsigned long)where[f], wrong[f]);
  return 0;
}
