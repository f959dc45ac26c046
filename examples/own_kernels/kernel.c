/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel written by hand: one row of relu(x * w^T + b).
 *
 * out[n] = max(0, b[n] + sum over k of x[k] * w[n][k]), four sums at a time. */
#include <stddef.h>

static void dense_relu(const float *x, const float *w, const float *b,
                       float *out, size_t units, size_t width) {
  size_t n;
  for (n = 0; n < units; ++n) {
    const float *const row = w + n * width;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float total = b[n];
    size_t k = 0;
    for (; k + 4 <= width; k += 4) {
      sum[0] += x[k] * row[k];
      sum[1] += x[k + 1] * row[k + 1];
      sum[2] += x[k + 2] * row[k + 2];
      sum[3] += x[k + 3] * row[k + 3];
    }
    for (; k < width; ++k)
      total += x[k] * row[k];
    total += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    out[n] = total > 0.0f ? total : 0.0f;
  }
}
