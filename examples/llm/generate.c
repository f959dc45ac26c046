// SPDX-License-Identifier: Apache-2.0
#include "generate.h"

#include <string.h>

#include "llm.h"
#include "tokenizer.h"

enum {
  CAPACITY = LLM_STATE_CAPACITY,
  TOKENS = LLM_OUTPUT_LOGITS_ELEMENTS,
  // bytes of a prompt, and so tokens before they are joined
  PROMPT_ROOM = 8 * CAPACITY
};

// All that a conversation is. It has no pointers, so memcpy copies it.
typedef struct {
  unsigned char state[LLM_STATE_BYTES]
      __attribute__((aligned(LLM_STATE_ALIGNMENT)));
  float logits[TOKENS];
  int32_t last; // the last token that the model has read
} conversation;

static unsigned char workspace[LLM_WORKSPACE_BYTES + 1]
    __attribute__((aligned(LLM_WORKSPACE_ALIGNMENT)));
static conversation current, saved;

const char *generate_message(int result) {
  switch (result) {
  case GENERATE_OK: return "success";
  case GENERATE_TOO_LONG: return "the prompt is too long for the model";
  case GENERATE_OTHER_VOCABULARY:
    return "the vocabulary has another number of tokens than the model: give "
           "the model's TOKENIZER";
  case GENERATE_NOT_A_NUMBER: return "the model computed no finite logits";
  default: return "the model reported an error";
  }
}

void generate_save(void) {
  memcpy(&saved, &current, sizeof saved);
}

void generate_restore(void) {
  memcpy(&current, &saved, sizeof current);
}

// The model reads a token; the caches grow by it.
static int step(int32_t token) {
  const int64_t tokens = token, position = llm_state_length(current.state);
  const llm_inputs inputs = {&tokens, &position, current.state};
  llm_outputs outputs = {current.logits};
  current.last = token;
  return llm_run(&inputs, &outputs, workspace, NULL) == AOTC_OK
             ? GENERATE_OK
             : GENERATE_FAILED;
}

int generate_read(const char *prompt) {
  static tokenizer_symbol symbols[PROMPT_ROOM + 2];
  // a vocabulary of another model would lead outside of the embeddings
  if (tokenizer_tokens != TOKENS) return GENERATE_OTHER_VOCABULARY;
  const int32_t count = tokenizer_encode(prompt, symbols, PROMPT_ROOM + 2);
  if (count < 0 || count > CAPACITY) return GENERATE_TOO_LONG;
  if (llm_state_init(current.state) != AOTC_OK) return GENERATE_FAILED;
  int result = GENERATE_OK;
  for (int32_t k = 0; k < count && result == GENERATE_OK; ++k)
    result = step(symbols[k].token);
  return result;
}

static void write_token(int32_t previous, int32_t token,
                        generate_write *write) {
  size_t bytes;
  const unsigned char *text = tokenizer_decode(previous, token, &bytes);
  for (size_t k = 0; k < bytes; ++k) {
    const unsigned char c = text[k];
    if ((c < ' ' && c != '\n' && c != '\t') || c == 0x7f) {
      const char escaped[4] = {'\\', 'x', "0123456789abcdef"[c >> 4],
                               "0123456789abcdef"[c & 15]};
      write(escaped, sizeof escaped);
    } else {
      write((const char *)text + k, 1);
    }
  }
}

int generate_continue(sampler *s, int32_t limit, generate_write *write,
                      int32_t *count) {
  // drawing changes the logits, which a saved conversation keeps
  static float logits[TOKENS];
  static int32_t order[TOKENS];
  for (*count = 0; *count < limit; ++*count) {
    memcpy(logits, current.logits, sizeof logits);
    const int32_t token = sampler_draw(s, logits, order, TOKENS);
    if (token < 0) return GENERATE_NOT_A_NUMBER;
    if (token == TOKENIZER_BEGIN || token == TOKENIZER_END) return GENERATE_OK;
    write_token(current.last, token, write);
    if (llm_state_length(current.state) == CAPACITY) {
      ++*count;
      return GENERATE_OK;
    }
    const int result = step(token);
    if (result != GENERATE_OK) return result;
  }
  return GENERATE_OK;
}
