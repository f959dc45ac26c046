// SPDX-License-Identifier: Apache-2.0
// Text from a language model that aotc compiled as `llm`, token by token.
// All memory is static; nothing but the C library is needed.
#ifndef GENERATE_H
#define GENERATE_H

#include <stddef.h>
#include <stdint.h>

#include "sampler.h"

enum {
  GENERATE_OK,
  GENERATE_TOO_LONG, // the prompt has more tokens than the caches of the model
  GENERATE_OTHER_VOCABULARY, // the tokenizer is that of another model
  GENERATE_NOT_A_NUMBER, // the model gave no logits to draw from
  GENERATE_FAILED        // a run of the model returned an error
};

typedef void generate_write(const char *text, size_t bytes);

// What a result means.
const char *generate_message(int result);

// Begins a conversation: the model reads a prompt of any bytes.
int generate_read(const char *prompt);

// Appends up to `limit` tokens to the conversation, and writes each as soon as
// it is known; control characters are written as \xNN. Ends earlier at the
// model's token for the end, and where its caches are full. Returns a result,
// and the number of tokens in `count`.
int generate_continue(sampler *s, int32_t limit, generate_write *write,
                      int32_t *count);

// Copies the conversation to one place of memory, and from there.
void generate_save(void);
void generate_restore(void);

#endif
