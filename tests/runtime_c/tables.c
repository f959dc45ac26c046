/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what the header and the shared functions say, one JSON value. */
#include <stdio.h>

#include "aotc.h"

#define FIELD(type, field)                                                     \
  printf("\"%s.%s\": [%lu, %lu], ", #type, #field,                             \
         (unsigned long)offsetof(type, field),                                 \
         (unsigned long)sizeof(((type *)0)->field))

int main(void) {
  int k;
  printf("{\"layout\": {");
  FIELD(aotc_tensor, name);
  FIELD(aotc_tensor, shape);
  FIELD(aotc_tensor, bytes);
  FIELD(aotc_tensor, rank);
  FIELD(aotc_tensor, dtype);
  FIELD(aotc_tensor, quantization);
  FIELD(aotc_quantization, scale);
  FIELD(aotc_quantization, zero_point);
  FIELD(aotc_quantization, count);
  FIELD(aotc_quantization, axis);
  FIELD(aotc_run_options, size);
  FIELD(aotc_run_options, on_step);
  FIELD(aotc_run_options, step_context);
  FIELD(aotc_run_options, threads);
  FIELD(aotc_run_options, isa);
  FIELD(aotc_run_options, cuda);
  FIELD(aotc_model, abi_version);
  FIELD(aotc_model, num_inputs);
  FIELD(aotc_model, num_outputs);
  FIELD(aotc_model, num_isas);
  FIELD(aotc_model, name);
  FIELD(aotc_model, version);
  FIELD(aotc_model, inputs);
  FIELD(aotc_model, outputs);
  FIELD(aotc_model, workspace_bytes);
  FIELD(aotc_model, workspace_alignment);
  FIELD(aotc_model, weights_bytes);
  FIELD(aotc_model, run);
  FIELD(aotc_model, thread_workspace_bytes);
  FIELD(aotc_model, isas);
  FIELD(aotc_model, cpu_features);
  FIELD(aotc_model, cpu_missing);
  FIELD(aotc_isa, name);
  FIELD(aotc_isa, needs);
  FIELD(aotc_size, name);
  FIELD(aotc_size, least);
  FIELD(aotc_size, most);
  FIELD(aotc_size, step);
  FIELD(aotc_size, typical);
  FIELD(aotc_sizes, num_sizes);
  FIELD(aotc_sizes, sizes);
  FIELD(aotc_sizes, dims);
  FIELD(aotc_sizes, shapes);
  FIELD(aotc_sizes, check);
  FIELD(aotc_sizes, num_found);
  printf("\"end\": [0, 0]}, \"sizes\": {\"aotc_tensor\": %lu, "
         "\"aotc_quantization\": %lu, \"aotc_run_options\": %lu, "
         "\"aotc_model\": %lu, \"aotc_isa\": %lu, "
         "\"aotc_size\": %lu, \"aotc_sizes\": %lu}, ",
         (unsigned long)sizeof(aotc_tensor),
         (unsigned long)sizeof(aotc_quantization),
         (unsigned long)sizeof(aotc_run_options),
         (unsigned long)sizeof(aotc_model), (unsigned long)sizeof(aotc_isa),
         (unsigned long)sizeof(aotc_size), (unsigned long)sizeof(aotc_sizes));
  printf("\"abi\": %d, \"entry\": \"%s\", \"bytes\": [", AOTC_ABI_VERSION,
         AOTC_ENTRY_SYMBOL);
  for (k = -1; k < 25; ++k)
    printf("%lu, ", (unsigned long)aotc_dtype_bytes(k));
  printf("0], \"messages\": [");
  for (k = -1; k < 26; ++k)
    printf("\"%s\", ", aotc_status_message(k));
  printf("\"\"], \"numbered\": [\"%s\", \"%s\", \"%s\"]}\n",
         aotc_status_message(AOTC_ERROR_DIMS + 256),
         aotc_status_message(AOTC_ERROR_SHAPE + 512),
         aotc_status_message(AOTC_ERROR_STATE + 256));
  return 0;
}
