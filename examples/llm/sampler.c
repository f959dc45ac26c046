// SPDX-License-Identifier: Apache-2.0
#include "sampler.h"

#include <math.h>

// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
// Generators", 2014). Returns a multiple of 2^-24 in [0, 1).
static float uniform(uint64_t *state) {
  uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return (float)((z ^ (z >> 31)) >> 40) * (1.0F / 16777216.0F);
}

static int32_t most_likely(const float *logits, int32_t count) {
  int32_t best = -1;
  for (int32_t k = 0; k < count; ++k) {
    if (!(logits[k] < INFINITY)) return -1; // NaN, too
    if (logits[k] > (best < 0 ? -INFINITY : logits[best])) best = k;
  }
  return best;
}

static int precedes(const float *p, int32_t a, int32_t b) {
  return p[a] > p[b] || (p[a] == p[b] && a < b);
}

// Moves order[root] down until order[0..count) is a heap, whose root is the
// most likely token.
static void sift(int32_t *order, const float *p, int32_t root, int32_t count) {
  const int32_t moved = order[root];
  while (root < count / 2) {
    int32_t child = 2 * root + 1;
    if (child + 1 < count && precedes(p, order[child + 1], order[child]))
      ++child;
    if (precedes(p, moved, order[child])) break;
    order[root] = order[child];
    root = child;
  }
  order[root] = moved;
}

// Moves the fewest tokens whose probability is at least top_p of `total` to the
// end of order, the most likely one last. Returns their sum, and the position
// of the first one in `begin`.
static float nucleus(const float *p, int32_t *order, int32_t count,
                     float at_least, int32_t *begin) {
  float sum = 0.0F;
  for (int32_t k = 0; k < count; ++k)
    order[k] = k;
  for (int32_t k = count / 2; k-- > 0;)
    sift(order, p, k, count);
  int32_t rest = count;
  do {
    const int32_t top = order[0];
    order[0] = order[--rest];
    if (rest > 0) sift(order, p, 0, rest);
    order[rest] = top;
    sum += p[top];
  } while (rest > 0 && sum < at_least);
  *begin = rest;
  return sum;
}

int32_t sampler_draw(sampler *s, float *logits, int32_t *order, int32_t count) {
  const int32_t best = most_likely(logits, count);
  if (best < 0 || !(s->temperature > 0.0F)) return best;
  const float largest = logits[best];
  float total = 0.0F;
  for (int32_t k = 0; k < count; ++k) {
    logits[k] = expf((logits[k] - largest) / s->temperature);
    total += logits[k];
  }
  int32_t begin = 0;
  const int all = !(s->top_p < 1.0F);
  if (!all) total = nucleus(logits, order, count, s->top_p * total, &begin);
  float left = uniform(&s->random) * total;
  int32_t drawn = best;
  for (int32_t k = count; k-- > begin;) {
    const int32_t token = all ? k : order[k];
    if (!(logits[token] > 0.0F)) continue;
    drawn = token;
    left -= logits[token];
    if (left < 0.0F) break;
  }
  return drawn;
}
