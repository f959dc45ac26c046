// SPDX-License-Identifier: Apache-2.0
// Text to tokens and back, by the vocabulary that make_vocabulary.py wrote.
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

enum { TOKENIZER_BEGIN = 1, TOKENIZER_END = 2 };

// A token, and the one that it makes with the next token, or -1.
typedef struct {
  int32_t token, joined;
} tokenizer_symbol;

extern const int32_t tokenizer_tokens;

// Byte-pair encoding of any bytes before '\0', UTF-8 or not, behind
// TOKENIZER_BEGIN. Returns the number of tokens in symbols[0..], or -1 if
// `room` symbols do not suffice; strlen(text) + 2 always do.
int32_t tokenizer_encode(const char *text, tokenizer_symbol *symbols,
                         int32_t room);

// The bytes of a token behind another one. They are not terminated.
const unsigned char *tokenizer_decode(int32_t previous, int32_t token,
                                      size_t *bytes);

#endif
