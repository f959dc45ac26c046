/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that every compiled model shares. */
#include "aotc.h"

#include <string.h>

const char *aotc_status_message(int status) {
  switch (status) {
  case AOTC_OK: return "success";
  case AOTC_ERROR_NULL_ARGUMENT:
    return "an input, an output or the workspace is missing";
  case AOTC_ERROR_ALIGNMENT:
    return "an input, an output or the workspace is not aligned";
  case AOTC_ERROR_OPTIONS: return "the options have an unknown size";
  case AOTC_ERROR_OPEN: return "the library cannot be opened";
  case AOTC_ERROR_SYMBOL: return "the library is not a compiled model";
  case AOTC_ERROR_ABI:
    return "the library was compiled for another version of the interface";
  case AOTC_ERROR_THREADS: return "so many threads cannot be had";
  case AOTC_ERROR_CPU:
    return "the processor lacks instructions that the model was compiled for";
  case AOTC_ERROR_ISA:
    return "the model has no kernels for the instruction set named";
  default: return "unknown status";
  }
}

size_t aotc_dtype_bytes(int dtype) {
  switch (dtype) {
  case AOTC_BOOL:
  case AOTC_INT8:
  case AOTC_UINT8:
  case AOTC_FLOAT8_E4M3FN:
  case AOTC_FLOAT8_E4M3FNUZ:
  case AOTC_FLOAT8_E5M2:
  case AOTC_FLOAT8_E5M2FNUZ:
  case AOTC_FLOAT8_E8M0FNU:
  case AOTC_FLOAT4_E2M1FN:
  case AOTC_INT4:
  case AOTC_UINT4:
  case AOTC_INT2:
  case AOTC_UINT2: return 1;
  case AOTC_INT16:
  case AOTC_UINT16:
  case AOTC_FLOAT16:
  case AOTC_BFLOAT16: return 2;
  case AOTC_INT32:
  case AOTC_UINT32:
  case AOTC_FLOAT32: return 4;
  case AOTC_INT64:
  case AOTC_UINT64:
  case AOTC_FLOAT64: return 8;
  default: return 0;
  }
}

/* A message that grows until its buffer is full. */
typedef struct text {
  char *next;
  size_t left; /* bytes, the final zero included; 0: there is no buffer */
} text;

static void append(text *to, const char *part) {
  size_t length = strlen(part);
  if (to->left == 0) return;
  if (length > to->left - 1) length = to->left - 1;
  memcpy(to->next, part, length);
  to->next += length;
  to->left -= length;
  *to->next = '\0';
}

/* The first instruction set that is called `isa`, or that the processor has;
 * num_isas if there is none. */
static int32_t find_isa(const aotc_model *model, const char *isa,
                        uint32_t lacks) {
  int32_t k;
  for (k = 0; k < model->num_isas; ++k) {
    const aotc_isa *const one = &model->isas[k];
    if (isa != NULL ? strcmp(one->name, isa) == 0 : (one->needs & lacks) == 0)
      break;
  }
  return k;
}

static int tell_missing(const aotc_model *model, const aotc_isa *isa,
                        uint32_t lacks, text *message) {
  const char *before = "the processor lacks ";
  size_t k;
  for (k = 0; model->cpu_features[k] != NULL; ++k) {
    if (((isa->needs & lacks) >> k & 1u) == 0) continue;
    append(message, before);
    append(message, model->cpu_features[k]);
    before = ", ";
  }
  append(message, ", which kernels for ");
  append(message, isa->name);
  append(message, " need");
  return AOTC_ERROR_CPU;
}

static int tell_isas(const aotc_model *model, const char *isa, text *message) {
  int32_t k;
  append(message, "there are no kernels for ");
  append(message, isa);
  for (k = 0; k < model->num_isas; ++k) {
    append(message, k == 0 ? ", only for " : ", ");
    append(message, model->isas[k].name);
  }
  return AOTC_ERROR_ISA;
}

int aotc_model_check(const aotc_model *model, const char *isa, int *chosen,
                     char *message, size_t message_bytes) {
  const uint32_t lacks = model->num_isas > 0 ? model->cpu_missing() : 0;
  const int32_t k = find_isa(model, isa, lacks);
  text to;
  to.next = message;
  to.left = message == NULL ? 0 : message_bytes;
  append(&to, "");
  if (chosen != NULL) *chosen = -1;
  if (k == model->num_isas && isa != NULL) return tell_isas(model, isa, &to);
  if (k == model->num_isas && k > 0) /* the last one needs least */
    return tell_missing(model, &model->isas[k - 1], lacks, &to);
  if (k < model->num_isas && (model->isas[k].needs & lacks) != 0)
    return tell_missing(model, &model->isas[k], lacks, &to);
  if (chosen != NULL && k < model->num_isas) *chosen = k;
  return AOTC_OK;
}
