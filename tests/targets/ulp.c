/* SPDX-License-Identifier: Apache-2.0
 *
 * Elementary functions of float32, as kernels compiled for several machines, against the C library's in double.
 *
 *   ulp FUNCTION STEP FIRST CHECKED
 *
 * Takes all pairs of special numbers and every STEP-th of the 2^32 floats from the FIRST on, and prints, for each
 * machine, the largest error in units of the last place, the bits of the argument where it is, the number of
 * results that are no number, infinite or of the wrong zero where they must not be, and a machine before it that has
 * had all of its bits, or its own name.  MACHINES and the tables of kernels
 * come from the file that includes this one.
 *
 * The C library's functions of one number are slow.  Those of many (ulp_reference.c) say which results cannot be worse
 * than the worst so far, by a margin of 2^-10 units; the others say what the rest is.  For each CHECKED-th number both are
 * compared: the program fails where they differ by more than the margin.
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

extern void (*const REFERENCES[])(const float *, const float *, double *);

static float x[CHUNK], second[CHUNK], y[MACHINES][CHUNK];
static double many[CHUNK];
static double again[CHUNK];
static const double NONE[16];
static const double MARGIN = 0x1p-10;

/* Zeros, infinities, NaN, the least and largest subnormal and normal numbers, those around 1, 1/2, 2, 3, 100.5, and
 * around the largest that are halves, odd or even; of both signs. */
static const uint32_t SPECIAL[] = {0,          1,          0x7fffff,   0x800000,   0x7f7fffff, 0x7f800000,
                                   0x7fc00000, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x3f000000, 0x40000000,
                                   0x40400000, 0x42c90000, 0x4affffff, 0x4b000001, 0x4b7fffff, 0x4b800001};
enum { SPECIALS = 2 * sizeof SPECIAL / sizeof *SPECIAL };

static uint32_t special_bits(int k) { return SPECIAL[k / 2] | (uint32_t)(k & 1) << 31; }

/* A float by its bits; signaling NaN, which C99 leaves open, as quiet ones. */
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

/* What the errors of lgamma at a number are measured in, at least: it has a zero between any two negative ones. */
static double least_at(size_t f, double a) { return FUNCTIONS[f].unary == lgamma && a < 0 ? 1 : 0; }

static double exact_at(size_t f, int k) {
  return FUNCTIONS[f].unary ? FUNCTIONS[f].unary(x[k]) : FUNCTIONS[f].binary(x[k], second[k]);
}

/* Whether both arguments are numbers: of others, the reference of many says nothing. */
static int numbers(int k) { return (x[k] == x[k]) & (second[k] == second[k]); }

/* Marks all results that may be off by more than a limit, or of the wrong kind. */
static void mark(const float *found, double limit, double least) {
  int k;
  for (k = 0; k < CHUNK; ++k) {
    const double a = x[k], value = found[k], exact = many[k], size = fabs(exact), large = fabs(value);
    const double numbers = a - a + second[k] - second[k], low = a < 0 ? least : 0;
    const double near = fabs(value - exact) <= limit * unit(size > low ? size : low) ? large : 0;
    const double under = size <= limit * 0x1p-149 ? size : 0;
    const double over = size > 0x1.000001p128 ? size : 0;
    const double extreme = large > 0x1p128 ? over : large == 0 ? under : 0;
    const double alike = copysign(1, value) == copysign(1, exact) ? extreme : 0;
    const double sure = large < 0x1p128 ? near * (size < 0x1p128 ? 1 : 0) + alike : alike;
    again[k] = sure * (exact == 0 ? 0 : 1) + numbers > 0 ? 0 : 1;
  }
}

/* Whether both references say the same of a number, where that of many says something. */
static int agree(size_t f, int k) {
  const double exact = many[k], wanted = exact_at(f, k), size = fmax(fabs(exact), least_at(f, x[k]));
  if (!numbers(k) || exact != exact || exact == 0) return 1;
  if (fabs(exact) >= 0x1p128) return fabs(wanted) >= 0x1p128 && !signbit(exact) == !signbit(wanted);
  return fabs(wanted - exact) <= MARGIN * unit(size);
}

typedef struct {
  double worst;
  uint32_t where;
  unsigned long wrong;
  int twin, before; /* the first machine that has had the bits of this one so far; that before the latest chunk */
} found;

static void compare(size_t f, const float *results, int count, found *to) {
  int k;
  mark(results, to->worst - MARGIN, least_at(f, -1));
  for (k = 0; k < count; ++k) {
    double off;
    if (k % 16 == 0 && memcmp(again + k, NONE, sizeof NONE) == 0) k += 15;
    if (again[k] == 0) continue;
    off = error(results[k], exact_at(f, k), least_at(f, x[k]));
    if (off < 0 || off > to->worst) memcpy(&to->where, &x[k], sizeof to->where);
    if (off < 0) ++to->wrong;
    if (off > to->worst) to->worst = off;
  }
}

int main(int argc, char **argv) {
  found all[MACHINES] = {{0, 0, 0, 0, 0}};
  const uint64_t step = argc == 5 ? strtoull(argv[2], NULL, 10) : 0;
  uint64_t next = argc == 5 ? strtoull(argv[3], NULL, 10) : 0, taken = 0;
  const uint64_t checked = argc == 5 ? strtoull(argv[4], NULL, 10) : 0;
  size_t f = 0;
  int seen = 0, twin, k, m;
  if (step == 0 || checked == 0) return 2;
  while (f < sizeof FUNCTIONS / sizeof *FUNCTIONS && strcmp(FUNCTIONS[f].name, argv[1]) != 0) ++f;
  if (f == sizeof FUNCTIONS / sizeof *FUNCTIONS) return 2;
  while (next < UINT64_C(1) << 32) {
    uint64_t left;
    int count = 0, first;
    for (; count < CHUNK && seen < SPECIALS * SPECIALS; ++seen, ++count) {
      x[count] = quiet(special_bits(seen % SPECIALS));
      second[count] = quiet(special_bits(seen / SPECIALS));
    }
    first = count;
    left = ((UINT64_C(1) << 32) - next + step - 1) / step;
    count += left < (uint64_t)(CHUNK - count) ? (int)left : CHUNK - count;
    for (k = first; k < count; ++k) x[k] = quiet((uint32_t)(next + (uint64_t)(k - first) * step));
    if (FUNCTIONS[f].binary)
      for (k = first; k < count; ++k) second[k] = partner((uint32_t)(next + (uint64_t)(k - first) * step));
    next += (uint64_t)(count - first) * step;
    REFERENCES[f](x, second, many);
    for (k = (int)((checked - taken % checked) % checked); k < count; k += (int)checked)
      if (!agree(f, k)) {
        fprintf(stderr, "%s: references differ at %a, %a: %a\n", argv[1], x[k], second[k], many[k]);
        return 3;
      }
    for (m = 0; m < MACHINES; ++m) {
      KERNELS[m][f](x, second, y[m]);
      for (k = 0; k < CHUNK; ++k) y[m][k] = y[m][k] == y[m][k] ? y[m][k] : NAN; /* all are equal */
      const int before = all[m].twin;
      all[m].before = twin = before;
      while (twin < m && (all[twin].before != all[m].before || memcmp(y[m], y[twin], sizeof *y) != 0)) ++twin;
      if (twin == m)
        compare(f, y[m], count, &all[m]);
      else
        all[m] = all[twin];
      all[m].twin = twin;
      all[m].before = before;
    }
    taken += (uint64_t)count;
  }
  for (m = 0; m < MACHINES; ++m)
    printf("%s %.6f %08lx %lu %s\n", NAMES[m], all[m].worst, (unsigned long)all[m].where, all[m].wrong,
           NAMES[all[m].twin]);
  return 0;
}
