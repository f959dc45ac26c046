/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that every compiled model shares. */
#include "aotc.h"

#include <string.h>

/* In the order of aotc_status. */
static const char *const messages[] = {
    "success",
    "an input, an output or the workspace is missing",
    "an input, an output or the workspace is not aligned",
    "the options have an unknown size",
    "the library cannot be opened",
    "the library is not a compiled model",
    "the library was compiled for another version of the interface",
    "so many threads cannot be had",
    "the processor lacks instructions that the model was compiled for",
    "the model has no kernels for the instruction set named",
    "the driver of the GPU cannot be loaded",
    "the driver of the GPU is older than the model needs",
    "there is no GPU of that number",
    "the model has no code for the GPU",
    "the GPU has not enough memory left",
    "the host has not enough memory left",
    "the driver of the GPU reports an error",
    "a pointer is not of the GPU's memory, as was promised",
    "another thread runs the session",
    "the parameters are damaged, or those of another model",
    "a run gave another result than it should",
    "the block of state is of another model, or was not initialized",
    "a size is outside of its range",
    "the sizes or a computed value do not fit the model",
    "the state has no room for what a run appends",
};

const char *aotc_status_message(int status) {
  const int code = status > 0 ? status & 0xff : status;
  const int numbered = code == AOTC_ERROR_DIMS || code == AOTC_ERROR_SHAPE ||
                       code == AOTC_ERROR_CAPACITY;
  const int known = AOTC_OK <= status && status <= AOTC_ERROR_CAPACITY;
  return known || numbered ? messages[code] : "unknown status";
}

size_t aotc_dtype_bytes(int dtype) {
  /* in the order of aotc_dtype */
  static const unsigned char bytes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8,
                                        2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  return AOTC_BOOL <= dtype && dtype <= AOTC_UINT2 ? bytes[dtype] : 0;
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

/* The instruction set that is called `isa`, num_isas if there is none; for
 * NULL the first that the processor has, or the last, which needs least. */
static int32_t find_isa(const aotc_model *model, const char *isa,
                        uint32_t lacks) {
  const int32_t count = model->num_isas - (isa == NULL ? 1 : 0);
  int32_t k;
  for (k = 0; k < count; ++k) {
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
  text to = {message, message == NULL ? 0 : message_bytes};
  append(&to, "");
  if (chosen != NULL) *chosen = -1;
  if (k == model->num_isas)
    return isa != NULL ? tell_isas(model, isa, &to) : AOTC_OK;
  if ((model->isas[k].needs & lacks) != 0)
    return tell_missing(model, &model->isas[k], lacks, &to);
  if (chosen != NULL) *chosen = k;
  return AOTC_OK;
}
