/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strings of models: how a tensor of strings lies in memory, and functions that
 * write and read one.  C99, valid as C++; needs nothing but a few headers of
 * the standard.
 *
 * A tensor of strings is an array of slots of equal size, row major.  A slot
 * holds the UTF-8 text of a string and then bytes 0xFF, which occur in no UTF-8
 * text, up to its end.  The last dimension of the tensor's descriptor, whose
 * element type is AOTC_STRING, is the size of a slot in bytes.  A run relies on
 * slots that aotc_strings_write wrote; others give any result, and no other
 * harm.
 *
 *   static uint8_t slots[NAME_INPUT_CITY_BYTES];
 *   const aotc_string cities[] = {{"Oslo", 4}, {"Lima", 4}};
 *   int status = aotc_strings_write(slots, NAME_INPUT_CITY_STRING_BYTES,
 * cities, 2, NULL);
 */
#ifndef AOTC_STRINGS_H
#define AOTC_STRINGS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Element type of tensors of strings, beside those of aotc_dtype. */
#define AOTC_STRING 23
/* What fills a slot behind the text. */
#define AOTC_STRING_PADDING 0xFF

/* Statuses; aotc_status has none of these numbers. */
#define AOTC_ERROR_STRING_SIZE 40 /* a string is longer than a slot */
#define AOTC_ERROR_STRING_TEXT 41 /* a string is not UTF-8 */

/* Text that need not end in a zero, and may contain zeros. */
typedef struct aotc_string {
  const char *text; /* may be NULL where `bytes` is 0 */
  size_t bytes;
} aotc_string;

/* The number of bytes, 1 to 4, of the UTF-8 sequence at `text`, of which `rest`
 * bytes are there; 0 if there is none. */
static inline size_t aotc_utf8_sequence(const unsigned char *text,
                                        size_t rest) {
  const unsigned first = text[0];
  /* bounds on the second byte: neither overlong forms nor surrogates */
  unsigned least = 0x80, most = 0xBF;
  size_t count, k;
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  count = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (first == 0xE0) least = 0xA0;
  if (first == 0xED) most = 0x9F;
  if (first == 0xF0) least = 0x90;
  if (first == 0xF4) most = 0x8F;
  if (count > rest || text[1] < least || text[1] > most) return 0;
  for (k = 2; k < count; ++k)
    if (text[k] < 0x80 || text[k] > 0xBF) return 0;
  return count;
}

/* What prevents a string from being written to a slot: a status. */
static inline int aotc_string_check(aotc_string string, size_t slot_bytes) {
  const unsigned char *text = (const unsigned char *)string.text;
  size_t at = 0;
  if (string.bytes == 0) return 0;
  if (text == NULL) return 1; /* AOTC_ERROR_NULL_ARGUMENT */
  if (string.bytes > slot_bytes) return AOTC_ERROR_STRING_SIZE;
  while (at < string.bytes) {
    const size_t count = aotc_utf8_sequence(text + at, string.bytes - at);
    if (count == 0) return AOTC_ERROR_STRING_TEXT;
    at += count;
  }
  return 0;
}

/* Writes `count` strings to slots of `slot_bytes` bytes each: AOTC_OK, or what
 * is wrong with the first wrong string, whose number goes to `wrong` if that is
 * not NULL; then nothing is written. */
static inline int aotc_strings_write(uint8_t *slots, size_t slot_bytes,
                                     const aotc_string *strings, size_t count,
                                     size_t *wrong) {
  size_t k;
  if (count != 0 && (slots == NULL || strings == NULL)) {
    if (wrong != NULL) *wrong = 0;
    return 1; /* AOTC_ERROR_NULL_ARGUMENT */
  }
  for (k = 0; k < count; ++k) {
    const int status = aotc_string_check(strings[k], slot_bytes);
    if (status == 0) continue;
    if (wrong != NULL) *wrong = k;
    return status;
  }
  for (k = 0; k < count; ++k) {
    const size_t bytes = strings[k].bytes;
    uint8_t *slot = slots + k * slot_bytes;
    if (bytes != 0) memcpy(slot, strings[k].text, bytes);
    memset(slot + bytes, AOTC_STRING_PADDING, slot_bytes - bytes);
  }
  return 0;
}

/* String number `k`, where it lies in its slot: valid until the slots change.
 */
static inline aotc_string aotc_strings_read(const uint8_t *slots,
                                            size_t slot_bytes, size_t k) {
  const uint8_t *slot = slots + k * slot_bytes;
  aotc_string string;
  string.text = (const char *)slot;
  string.bytes = 0;
  while (string.bytes < slot_bytes && slot[string.bytes] != AOTC_STRING_PADDING)
    ++string.bytes;
  return string;
}

#endif
