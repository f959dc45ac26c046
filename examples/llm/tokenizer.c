// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding as in SentencePiece: a space comes before the text, and a
// code point without a token becomes one token for each byte.
#include "tokenizer.h"

#include <string.h>

#include "vocabulary.h"

enum { UNKNOWN = 0, FIRST_BYTE = 3, FIRST_PIECE = FIRST_BYTE + 256 };

const int32_t tokenizer_tokens = VOCABULARY_TOKENS;

static size_t bytes_of(int32_t token) {
  return vocabulary_start[token + 1] - vocabulary_start[token];
}

static const unsigned char *text_of(int32_t token) {
  return vocabulary_text + vocabulary_start[token];
}

// The token of a text; -1: none.
static int32_t find(const unsigned char *text, size_t bytes) {
  int32_t low = 0, high = VOCABULARY_PIECES;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    const int32_t token = vocabulary_sorted[middle];
    const size_t other = bytes_of(token);
    int order = memcmp(text_of(token), text, other < bytes ? other : bytes);
    if (order == 0) order = (other > bytes) - (other < bytes);
    if (order == 0) return token;
    if (order < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return -1;
}

static int32_t join(int32_t a, int32_t b) {
  unsigned char text[VOCABULARY_LONGEST];
  if (a < FIRST_PIECE || b < FIRST_PIECE) return -1;
  if (bytes_of(a) + bytes_of(b) > sizeof text) return -1;
  memcpy(text, text_of(a), bytes_of(a));
  memcpy(text + bytes_of(a), text_of(b), bytes_of(b));
  return find(text, bytes_of(a) + bytes_of(b));
}

// Bytes of the code point at `text`, which ends with '\0'; 1 for what is not
// UTF-8.
static size_t bytes_of_code_point(const unsigned char *text) {
  const size_t bytes = text[0] < 0xc0   ? 1
                       : text[0] < 0xe0 ? 2
                       : text[0] < 0xf0 ? 3
                                        : 4;
  for (size_t k = 1; k < bytes; ++k) {
    if ((text[k] & 0xc0) != 0x80) return 1;
  }
  return bytes;
}

// Appends the tokens of a code point. Returns their new number, or -1.
static int32_t append(const unsigned char *text, size_t bytes,
                      tokenizer_symbol *symbols, int32_t count, int32_t room) {
  const int32_t token = find(text, bytes);
  if ((token < 0 ? (int32_t)bytes : 1) > room - count) return -1;
  if (token >= 0) {
    symbols[count].token = token;
    return count + 1;
  }
  for (size_t k = 0; k < bytes; ++k)
    symbols[count++].token = FIRST_BYTE + text[k];
  return count;
}

int32_t tokenizer_encode(const char *text, tokenizer_symbol *symbols,
                         int32_t room) {
  const unsigned char *at = (const unsigned char *)text;
  const unsigned char space = ' ';
  int32_t count = 1;
  if (room < 1) return -1;
  symbols[0].token = TOKENIZER_BEGIN;
  if (*at != '\0' && find(&space, 1) >= 0)
    count = append(&space, 1, symbols, count, room);
  while (*at != '\0' && count > 0) {
    const size_t bytes = bytes_of_code_point(at);
    count = append(at, bytes, symbols, count, room);
    at += bytes;
  }
  if (count < 0) return -1;
  for (int32_t k = 0; k + 1 < count; ++k)
    symbols[k].joined = join(symbols[k].token, symbols[k + 1].token);
  for (;;) {
    int32_t best = -1;
    for (int32_t k = 0; k + 1 < count; ++k) {
      if (symbols[k].joined >= 0 &&
          (best < 0 || vocabulary_score[symbols[k].joined] >
                           vocabulary_score[symbols[best].joined]))
        best = k;
    }
    if (best < 0) return count;
    symbols[best].token = symbols[best].joined;
    --count;
    memmove(symbols + best + 1, symbols + best + 2,
            (size_t)(count - best - 1) * sizeof *symbols);
    for (int32_t k = best > 0 ? best - 1 : 0; k <= best && k + 1 < count; ++k)
      symbols[k].joined = join(symbols[k].token, symbols[k + 1].token);
  }
}

const unsigned char *tokenizer_decode(int32_t previous, int32_t token,
                                      size_t *bytes) {
  if (token < 0 || token >= VOCABULARY_TOKENS) token = UNKNOWN;
  const unsigned char *text = text_of(token);
  // the space that encoding adds before the text
  const int added = previous == TOKENIZER_BEGIN && token >= FIRST_PIECE &&
                    bytes_of(token) > 0 && text[0] == ' ';
  *bytes = bytes_of(token) - (size_t)added;
  return text + added;
}
