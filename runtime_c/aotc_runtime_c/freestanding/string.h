/* SPDX-License-Identifier: Apache-2.0 */
/* What the code of models needs of <string.h>, where there is no C library;
 * aotc_freestanding.c defines it. */
#ifndef AOTC_FREESTANDING_STRING_H
#define AOTC_FREESTANDING_STRING_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *left, const void *right, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
