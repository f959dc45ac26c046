/* SPDX-License-Identifier: Apache-2.0 */
/* A model written by hand: y = x * scale + TINY_ADD, and the sum of y.
 *
 * TINY_ADD    a number to tell two builds apart
 * TINY_ABI    the version of the interface it claims
 * TINY_NULL   the entry gives no model
 * TINY_STATUS what a run returns instead of running
 * TINY_SLOW   runs take a fifth of a second */
#include <string.h>

#include "aotc.h"

#ifndef TINY_ADD
#define TINY_ADD 1
#endif
#ifndef TINY_ABI
#define TINY_ABI AOTC_ABI_VERSION
#endif

enum { COUNT = 6, ROUNDS = 2000, ALIGNMENT = 64 };

#ifdef TINY_SLOW
#include <unistd.h>
#endif

static int misaligned(const void *pointer, size_t alignment) {
  return (uintptr_t)pointer % alignment != 0;
}

static int check(const void *const *inputs, void *const *outputs,
                 const void *workspace, const aotc_run_options *options) {
  if (inputs == NULL || outputs == NULL || workspace == NULL)
    return AOTC_ERROR_NULL_ARGUMENT;
  if (inputs[0] == NULL || inputs[1] == NULL || outputs[0] == NULL ||
      outputs[1] == NULL)
    return AOTC_ERROR_NULL_ARGUMENT;
  if (options != NULL && options->size < sizeof(aotc_run_options))
    return AOTC_ERROR_OPTIONS;
  if (misaligned(inputs[0], sizeof(float)) ||
      misaligned(outputs[1], sizeof(double)) ||
      misaligned(workspace, ALIGNMENT))
    return AOTC_ERROR_ALIGNMENT;
  return AOTC_OK;
}

static int run(const void *const *inputs, void *const *outputs, void *workspace,
               const aotc_run_options *options) {
  volatile float *scratch = (volatile float *)workspace;
  const int status = check(inputs, outputs, workspace, options);
  const float *x, *scale;
  float *y;
  double sum = 0;
  int i, round;
  if (status != AOTC_OK) return status;
#ifdef TINY_STATUS
  return TINY_STATUS;
#endif
  x = (const float *)inputs[0];
  scale = (const float *)inputs[1];
  y = (float *)outputs[0];
#ifdef TINY_SLOW
  usleep(200000);
#endif
  /* long enough for two runs on one workspace to get into each other's way */
  for (round = 0; round < ROUNDS; ++round)
    for (i = 0; i < COUNT; ++i)
      scratch[i] = round == 0 ? x[i] : x[i] + (scratch[i] - x[i]);
  for (i = 0; i < COUNT; ++i) {
    y[i] = scratch[i] * scale[0] + (float)TINY_ADD;
    sum += (double)y[i];
  }
  memcpy(outputs[1], &sum, sizeof sum);
  return AOTC_OK;
}

#ifdef __cplusplus
extern "C" {
#endif
const aotc_model *aotc_model_entry(void);
#ifdef __cplusplus
}
#endif

const aotc_model *aotc_model_entry(void) {
  static const int64_t matrix[] = {2, 3};
  static const int64_t vector[] = {1};
  static const aotc_tensor inputs[] = {
      {"x", matrix, COUNT * sizeof(float), 2, AOTC_FLOAT32, NULL},
      {"scale:0", NULL, sizeof(float), 0, AOTC_FLOAT32, NULL},
  };
  static const aotc_tensor outputs[] = {
      {"y", matrix, COUNT * sizeof(float), 2, AOTC_FLOAT32, NULL},
      {"sum", vector, sizeof(double), 1, AOTC_FLOAT64, NULL},
  };
  static const aotc_model model = {
      TINY_ABI,  2,       2,
      0,         "tiny",  "0",
      inputs,    outputs, COUNT * sizeof(float),
      ALIGNMENT, 0,       run,
      0,         NULL,    NULL,
      NULL,
  };
#ifdef TINY_NULL
  return (void)model, (const aotc_model *)NULL;
#else
  return &model;
#endif
}
