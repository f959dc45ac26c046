/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of <string.h> and <math.h> that the code of models calls, for
 * programs without a C library.  Results are those of IEEE 754: correctly
 * rounded to nearest.  The symbols are weak where the compiler has such, so
 * that a program may have faster ones.
 *
 * Compile with -ffreestanding: else compilers could replace the loops here by
 * calls of the same functions.
 */
#include <stddef.h>
#include <stdint.h>

#include "math.h"
#include "string.h"

#undef sqrtf
#undef fmaf

#if defined(__GNUC__)
#define WEAK __attribute__((weak))
#else
#define WEAK
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-loop-distribute-patterns", "fp-contract=off")
#elif defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

WEAK void *memcpy(void *to, const void *from, size_t bytes) {
  unsigned char *write = (unsigned char *)to;
  const unsigned char *read = (const unsigned char *)from;
  while (bytes-- != 0)
    *write++ = *read++;
  return to;
}

WEAK void *memmove(void *to, const void *from, size_t bytes) {
  unsigned char *write = (unsigned char *)to;
  const unsigned char *read = (const unsigned char *)from;
  if ((uintptr_t)to < (uintptr_t)from) {
    while (bytes-- != 0)
      *write++ = *read++;
  } else {
    while (bytes-- != 0)
      write[bytes] = read[bytes];
  }
  return to;
}

WEAK void *memset(void *to, int value, size_t bytes) {
  unsigned char *write = (unsigned char *)to;
  while (bytes-- != 0)
    *write++ = (unsigned char)value;
  return to;
}

WEAK int memcmp(const void *left, const void *right, size_t bytes) {
  const unsigned char *a = (const unsigned char *)left;
  const unsigned char *b = (const unsigned char *)right;
  for (; bytes != 0; --bytes, ++a, ++b)
    if (*a != *b) return *a < *b ? -1 : 1;
  return 0;
}

typedef union {
  float value;
  uint32_t bits;
} float_bits;

typedef union {
  double value;
  uint64_t bits;
} double_bits;

#define SIGN ((uint64_t)1 << 63)
#define HIDDEN ((uint64_t)1 << 52)

/* The root of 24 bits and one more, digit by digit; it is never a tie. */
WEAK float sqrtf(float x) {
  float_bits number;
  uint32_t mantissa, root = 0, rest = 0;
  int exponent, k;
  number.value = x;
  if (number.bits << 1 == 0 || number.bits == 0x7f800000u) return x;
  if (number.bits > 0x7f800000u) return x == x ? NAN : x; /* below 0, NaN */
  exponent = (int)(number.bits >> 23);
  mantissa = number.bits & 0x7fffffu;
  if (exponent == 0) {
    for (exponent = 1; (mantissa & 0x800000u) == 0; --exponent)
      mantissa <<= 1;
  }
  mantissa |= 0x800000u;
  exponent -= 127;
  /* from here x is mantissa * 2^(exponent - 23), with an even exponent */
  mantissa <<= exponent & 1 ? 8 : 7;
  exponent = (exponent - (exponent & 1)) / 2;
  for (k = 0; k < 25; ++k) {
    const uint32_t trial = root << 2 | 1u;
    rest = rest << 2 | mantissa >> 30;
    mantissa <<= 2;
    root <<= 1;
    if (rest >= trial) {
      rest -= trial;
      root |= 1u;
    }
  }
  number.bits = (root >> 1) + (root & 1u) + ((uint32_t)(exponent + 126) << 23);
  return number.value;
}

/* The same for 53 bits. */
WEAK double sqrt(double x) {
  double_bits number;
  uint64_t mantissa, root = 0, rest = 0;
  int exponent, k;
  number.value = x;
  if (number.bits << 1 == 0 || number.bits == 0x7ff0000000000000u) return x;
  if (number.bits > 0x7ff0000000000000u) return x == x ? (double)NAN : x;
  exponent = (int)(number.bits >> 52);
  mantissa = number.bits & (HIDDEN - 1);
  if (exponent == 0) {
    for (exponent = 1; (mantissa & HIDDEN) == 0; --exponent)
      mantissa <<= 1;
  }
  mantissa |= HIDDEN;
  exponent -= 1023;
  mantissa <<= exponent & 1 ? 11 : 10;
  exponent = (exponent - (exponent & 1)) / 2;
  for (k = 0; k < 54; ++k) {
    const uint64_t trial = root << 2 | 1u;
    rest = rest << 2 | mantissa >> 62;
    mantissa <<= 2;
    root <<= 1;
    if (rest >= trial) {
      rest -= trial;
      root |= 1u;
    }
  }
  number.bits = (root >> 1) + (root & 1u) + ((uint64_t)(exponent + 1022) << 52);
  return number.value;
}

/* A finite number other than 0 is mantissa * 2^exponent, of 53 bits. */
static uint64_t mantissa_of(uint64_t bits, int *exponent) {
  uint64_t mantissa = bits & (HIDDEN - 1);
  *exponent = (int)(bits >> 52 & 0x7ffu);
  if (*exponent == 0) {
    for (*exponent = 1; (mantissa & HIDDEN) == 0; --*exponent)
      mantissa <<= 1;
  }
  *exponent -= 1075;
  return mantissa | HIDDEN;
}

/* The rest of a division is exact: long division, bit by bit. */
WEAK double fmod(double x, double y) {
  double_bits a, b;
  uint64_t sign, left, right;
  int exponent, least;
  a.value = x;
  b.value = y;
  sign = a.bits & SIGN;
  a.bits &= ~SIGN;
  b.bits &= ~SIGN;
  if (b.bits == 0 || a.bits >= 0x7ff0000000000000u ||
      b.bits > 0x7ff0000000000000u)
    return x != x || y != y ? x + y : (double)NAN;
  if (a.bits < b.bits) return x;
  left = mantissa_of(a.bits, &exponent);
  right = mantissa_of(b.bits, &least);
  for (; exponent > least; --exponent) {
    if (left >= right) left -= right;
    left <<= 1;
  }
  if (left >= right) left -= right;
  if (left != 0) {
    while ((left & HIDDEN) == 0 && least > -1074) {
      left <<= 1;
      --least;
    }
    while (least < -1074) {
      left >>= 1; /* zeros: the rest is a multiple of the smallest number */
      ++least;
    }
    left += (uint64_t)(least + 1074) << 52; /* with the hidden bit, one more */
  }
  a.bits = left | sign;
  return a.value;
}

WEAK float fmodf(float x, float y) {
  return (float)fmod(x, y);
}

/* 128 bits, as most 32-bit compilers have no integers of this size. */
typedef struct wide {
  uint64_t high, low;
} wide;

static wide product(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu,
                 b1 = b >> 32;
  const uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32),
                 other = a0 * b1 + (middle & 0xffffffffu);
  wide result;
  result.low = other << 32 | (low & 0xffffffffu);
  result.high = a1 * b1 + (middle >> 32) + (other >> 32);
  return result;
}

static wide shifted_left(wide x, int bits) {
  wide result = x;
  if (bits >= 64) {
    result.high = x.low << (bits - 64);
    result.low = 0;
  } else if (bits > 0) {
    result.high = x.high << bits | x.low >> (64 - bits);
    result.low = x.low << bits;
  }
  return result;
}

/* The last bit is 1 if any of the bits that are lost is. */
static wide shifted_right(wide x, int bits) {
  wide result = x;
  uint64_t lost = 0;
  if (bits >= 128) {
    lost = x.high | x.low;
    result.high = result.low = 0;
  } else if (bits >= 64) {
    lost = x.low | (bits > 64 ? x.high << (128 - bits) : 0);
    result.low = x.high >> (bits - 64);
    result.high = 0;
  } else if (bits > 0) {
    lost = x.low << (64 - bits);
    result.low = x.low >> bits | x.high << (64 - bits);
    result.high = x.high >> bits;
  }
  if (lost != 0) result.low |= 1u;
  return result;
}

static int is_less(wide a, wide b) {
  return a.high < b.high || (a.high == b.high && a.low < b.low);
}

/* x * 2^exponent, of 127 bits at most and not 0, rounded. */
static double rounded(wide x, int exponent, uint64_t sign) {
  int top = 127, drop;
  double_bits result;
  while (((top >= 64 ? x.high >> (top - 64) : x.low >> top) & 1u) == 0)
    --top;
  drop = top - 52;
  if (drop + exponent < -1074) drop = -1074 - exponent;
  if (drop > 1) {
    /* two bits more, the last of which stands for all that follow */
    const uint64_t bits = shifted_right(x, drop - 2).low;
    const uint64_t last = bits & 7u;
    result.bits = (bits >> 2) + (last == 3 || last >= 6 ? 1u : 0u);
  } else {
    const uint64_t bits = shifted_left(x, 2 - drop).low; /* drop is 1 or less */
    const uint64_t last = bits & 7u;
    result.bits = (bits >> 2) + (last == 3 || last >= 6 ? 1u : 0u);
  }
  if (result.bits >= HIDDEN) {
    const int biased = drop + exponent + 1074;
    result.bits = biased >= 2046 ? 0x7ff0000000000000u
                                 : result.bits + ((uint64_t)biased << 52);
    if (result.bits > 0x7ff0000000000000u) result.bits = 0x7ff0000000000000u;
  }
  result.bits |= sign;
  return result.value;
}

WEAK double fma(double x, double y, double z) {
  enum { ROOM = 16, MOST_LEFT = 73 };
  double_bits a, b, c;
  uint64_t sign, other;
  wide large, small;
  int ea, eb, ec, exponent, left;
  a.value = x;
  b.value = y;
  c.value = z;
  if ((a.bits >> 52 & 0x7ffu) == 0x7ffu || (b.bits >> 52 & 0x7ffu) == 0x7ffu ||
      a.bits << 1 == 0 || b.bits << 1 == 0)
    return x * y + z; /* which is exact */
  if ((c.bits >> 52 & 0x7ffu) == 0x7ffu) return z;
  sign = (a.bits ^ b.bits) & SIGN;
  other = c.bits & SIGN;
  large = product(mantissa_of(a.bits, &ea), mantissa_of(b.bits, &eb));
  exponent = ea + eb;
  if (c.bits << 1 == 0) return rounded(large, exponent, sign);
  small.high = 0;
  small.low = mantissa_of(c.bits, &ec);
  left = ec - exponent + ROOM;
  large = shifted_left(large, ROOM);
  exponent -= ROOM;
  if (left > MOST_LEFT) {
    large = shifted_right(large, left - MOST_LEFT);
    exponent = ec - MOST_LEFT;
    left = MOST_LEFT;
  }
  small = left >= 0 ? shifted_left(small, left) : shifted_right(small, -left);
  if (sign == other) {
    const uint64_t low = large.low + small.low;
    large.high += small.high + (low < large.low ? 1u : 0u);
    large.low = low;
    return rounded(large, exponent, sign);
  }
  if (is_less(large, small)) {
    const wide swapped = large;
    large = small;
    small = swapped;
    sign = other;
  }
  large.high -= small.high + (large.low < small.low ? 1u : 0u);
  large.low -= small.low;
  return large.high == 0 && large.low == 0 ? 0.0
                                           : rounded(large, exponent, sign);
}

/* The product is exact in double; the sum is rounded to odd there, after which
 * rounding to float is that of the exact sum (S. Boldo, G. Melquiond,
 * "Emulation of FMA and correctly rounded sums", 2008). */
WEAK float fmaf(float x, float y, float z) {
  const double exact = (double)x * (double)y, added = (double)z;
  double_bits sum;
  double part, error;
  sum.value = exact + added;
  if ((sum.bits >> 52 & 0x7ffu) == 0x7ffu || sum.bits << 1 == 0)
    return (float)sum.value;
  part = sum.value - exact;
  error = (exact - (sum.value - part)) + (added - part);
  if (error != 0 && (sum.bits & 1u) == 0)
    sum.bits += (error > 0) == (sum.value > 0) ? 1u : (uint64_t)-1;
  return (float)sum.value;
}
