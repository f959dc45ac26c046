/* SPDX-License-Identifier: Apache-2.0 */
/* A model written by hand: each input, one of every element type, is copied to
 * an output; the last output holds the int4 input as int32.  ECHO_EMPTY makes
 * it a model without inputs and workspace, ECHO_BYTES adds to the first size,
 * ECHO_TYPE replaces the first type. */
#include <string.h>

#include "aotc.h"

#ifndef ECHO_BYTES
#define ECHO_BYTES 0
#endif
#ifndef ECHO_TYPE
#define ECHO_TYPE AOTC_BOOL
#endif

enum { COUNT = 4, TYPES = 23 };

static const int64_t four[] = {COUNT};

#define ROW(type, bytes) {#type, four, COUNT * (bytes), 1, type, NULL}
#define ROWS                                                                   \
  {"AOTC_BOOL", four, COUNT + ECHO_BYTES, 1, ECHO_TYPE, NULL},                 \
      ROW(AOTC_INT8, 1), ROW(AOTC_INT16, 2), ROW(AOTC_INT32, 4),               \
      ROW(AOTC_INT64, 8), ROW(AOTC_UINT8, 1), ROW(AOTC_UINT16, 2),             \
      ROW(AOTC_UINT32, 4), ROW(AOTC_UINT64, 8), ROW(AOTC_FLOAT16, 2),          \
      ROW(AOTC_FLOAT32, 4), ROW(AOTC_FLOAT64, 8), ROW(AOTC_BFLOAT16, 2),       \
      ROW(AOTC_FLOAT8_E4M3FN, 1), ROW(AOTC_FLOAT8_E4M3FNUZ, 1),                \
      ROW(AOTC_FLOAT8_E5M2, 1), ROW(AOTC_FLOAT8_E5M2FNUZ, 1),                  \
      ROW(AOTC_FLOAT8_E8M0FNU, 1), ROW(AOTC_FLOAT4_E2M1FN, 1),                 \
      ROW(AOTC_INT4, 1), ROW(AOTC_UINT4, 1), ROW(AOTC_INT2, 1),                \
      ROW(AOTC_UINT2, 1)

static const aotc_tensor inputs_of[TYPES] = {ROWS};
static const aotc_tensor outputs_of[TYPES + 1] = {
    ROWS, {"widened", four, COUNT * 4, 1, AOTC_INT32, NULL}};

static int run(const void *const *inputs, void *const *outputs, void *workspace,
               const aotc_run_options *options) {
  int32_t widened[COUNT] = {0, 0, 0, 0};
  int k;
  (void)workspace;
  (void)options;
  if (inputs == NULL || outputs == NULL) return AOTC_ERROR_NULL_ARGUMENT;
#ifdef ECHO_EMPTY
  for (k = 0; k < COUNT; ++k)
    widened[k] = k;
  memcpy(outputs[0], widened, sizeof widened);
#else
  for (k = 0; k < TYPES; ++k)
    memcpy(outputs[k], inputs[k], inputs_of[k].bytes);
  for (k = 0; k < COUNT; ++k)
    widened[k] = ((const int8_t *)inputs[AOTC_INT4])[k];
  memcpy(outputs[TYPES], widened, sizeof widened);
#endif
  return AOTC_OK;
}

const aotc_model *aotc_model_entry(void);

const aotc_model *aotc_model_entry(void) {
#ifdef ECHO_EMPTY
  static const aotc_model model = {AOTC_ABI_VERSION,
                                   0,
                                   1,
                                   0,
                                   "echo",
                                   "0",
                                   NULL,
                                   outputs_of + TYPES,
                                   0,
                                   64,
                                   0,
                                   run,
                                   0,
                                   NULL,
                                   NULL,
                                   NULL};
#else
  static const aotc_model model = {AOTC_ABI_VERSION,
                                   TYPES,
                                   TYPES + 1,
                                   0,
                                   "echo",
                                   "0",
                                   inputs_of,
                                   outputs_of,
                                   0,
                                   64,
                                   0,
                                   run,
                                   0,
                                   NULL,
                                   NULL,
                                   NULL};
#endif
  return &model;
}
