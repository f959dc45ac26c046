// SPDX-License-Identifier: Apache-2.0
// Draws a token from the logits of a language model.
#ifndef SAMPLER_H
#define SAMPLER_H

#include <stdint.h>

typedef struct {
  float temperature; // 0: the most likely token; else logits are divided by it
  float top_p;       // draw among the most likely tokens of this probability
  uint64_t random;   // state of the generator, first the seed
} sampler;

// Returns the index of the drawn token, or -1 if the logits have a NaN or +inf,
// or nothing but -inf. Logits become probabilities where temperature is not 0.
// order is scratch memory for `count` indices.
int32_t sampler_draw(sampler *s, float *logits, int32_t *order, int32_t count);

#endif
