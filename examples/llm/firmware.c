// SPDX-License-Identifier: Apache-2.0
// Continues PROMPT by TOKENS tokens on a microcontroller, twice from one saved
// conversation.
#include "board.h"
#include "generate.h"

#ifndef PROMPT
#define PROMPT "Once upon a time"
#endif
#ifndef TOKENS
#define TOKENS 32
#endif

static void write_text(const char *text, size_t bytes) {
  char one[2] = "";
  for (size_t k = 0; k < bytes; ++k) {
    one[0] = text[k];
    print(one);
  }
}

int main(void) {
  const float temperatures[] = {0.0F, 0.8F};
  int result = generate_read(PROMPT);
  generate_save();
  for (int k = 0; k < 2 && result == GENERATE_OK; ++k) {
    sampler s = {temperatures[k], 0.9F, 1};
    int32_t length;
    generate_restore();
    print(PROMPT);
    result = generate_continue(&s, TOKENS, write_text, &length);
    print("\n");
  }
  if (result != GENERATE_OK) print(generate_message(result));
  return result;
}
