/* SPDX-License-Identifier: Apache-2.0 */
/* What the code of models needs of <math.h>, where there is no C library;
 * aotc_freestanding.c defines the functions, with correctly rounded results. */
#ifndef AOTC_FREESTANDING_MATH_H
#define AOTC_FREESTANDING_MATH_H

#ifdef __cplusplus
extern "C" {
#endif

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf_sign(x)
#define signbit(x) __builtin_signbit(x)

/* compilers replace these by instructions, or by arithmetic on bits */
#define fabs(x) __builtin_fabs(x)
#define fabsf(x) __builtin_fabsf(x)
#define copysign(x, y) __builtin_copysign(x, y)
#define copysignf(x, y) __builtin_copysignf(x, y)

float sqrtf(float x);
double sqrt(double x);
float fmodf(float x, float y);
double fmod(double x, double y);
float fmaf(float x, float y, float z);
double fma(double x, double y, double z);

/* the instructions of processors that have them */
#if defined(__ARM_FP) && (__ARM_FP & 4)
#define sqrtf(x) __builtin_sqrtf(x)
#endif
#if defined(__ARM_FEATURE_FMA) && defined(__ARM_FP) && (__ARM_FP & 4)
#define fmaf(x, y, z) __builtin_fmaf(x, y, z)
#endif

#ifdef __cplusplus
}
#endif

#endif
