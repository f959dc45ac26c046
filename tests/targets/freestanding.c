/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the functions of aotc_freestanding.c, renamed to own_*, with those of the C library: compare COUNT. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double own_fma(double x, double y, double z);
double own_fmod(double x, double y);
double own_sqrt(double x);
float own_fmaf(float x, float y, float z);
float own_fmodf(float x, float y);
float own_sqrtf(float x);

static uint64_t state = 88172645463325252u;

static uint64_t draw(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

/* Any bits, subnormal numbers, numbers near 1, and powers of 2. */
static double draw_double(void) {
  const uint64_t kind = draw() % 8;
  uint64_t bits = draw();
  double result;
  if (kind == 0) bits &= 0x800fffffffffffffu;
  if (kind > 0 && kind < 5) bits = (bits & 0x800fffffffffffffu) | (983 + draw() % 80) << 52;
  if (kind == 4) bits &= 0xfff0000000000000u;
  memcpy(&result, &bits, sizeof result);
  return result;
}

static float draw_float(void) {
  const uint64_t kind = draw() % 8;
  uint32_t bits = (uint32_t)draw();
  float result;
  if (kind == 0) bits &= 0x807fffffu;
  if (kind > 0 && kind < 5) bits = (bits & 0x807fffffu) | (107 + (uint32_t)(draw() % 40)) << 23;
  if (kind == 4) bits &= 0xff800000u;
  memcpy(&result, &bits, sizeof result);
  return result;
}

static int differ(const char *name, double found, double expected, double x, double y, double z) {
  if (found != found && expected != expected) return 0;
  if (found == expected && !signbit(found) == !signbit(expected)) return 0;
  fprintf(stderr, "%s of %a, %a, %a: %a, not %a\n", name, x, y, z, found, expected);
  return 1;
}

int main(int argc, char **argv) {
  long left = argc == 2 ? atol(argv[1]) : 0;
  int wrong = left == 0;
  for (; left > 0 && wrong == 0; --left) {
    const double x = draw_double(), y = draw_double();
    const float a = draw_float(), b = draw_float();
    double z = draw_double();
    float c = draw_float();
    const uint64_t kind = draw() % 4;
    if (kind < 2) {
      z = -x * y;
      c = -a * b;
    }
    if (kind == 1) {
      z = nextafter(z, 0);
      c = nextafterf(c, 0);
    }
    wrong += differ("fma", own_fma(x, y, z), fma(x, y, z), x, y, z);
    wrong += differ("fmod", own_fmod(x, y), fmod(x, y), x, y, 0);
    wrong += differ("sqrt", own_sqrt(x), sqrt(x), x, 0, 0);
    wrong += differ("fmaf", (double)own_fmaf(a, b, c), (double)fmaf(a, b, c), (double)a, (double)b, (double)c);
    wrong += differ("fmodf", (double)own_fmodf(a, b), (double)fmodf(a, b), (double)a, (double)b, 0);
    wrong += differ("sqrtf", (double)own_sqrtf(a), (double)sqrtf(a), (double)a, 0, 0);
  }
  return wrong;
}
