/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs MODEL (a macro) twice on buffers of exactly the stated sizes, so that
 * sanitizers see every byte too far.  The workspace holds zeros first and ones
 * after that: results may not depend on what was in it.  The second run is by
 * THREADS (a macro too) at once, if it is there, so that sanitizers see races.
 * Arguments are files with the bytes of the inputs.
 */
#define _POSIX_C_SOURCE 200112L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aotc.h"
#ifdef THREADS
#include "aotc_pool.h"
#else
enum { THREADS = 0 };
#endif

const aotc_model *MODEL(void);

static void *block(size_t bytes, size_t alignment, int fill) {
  void *memory = NULL;
  if (posix_memalign(&memory, alignment, bytes) != 0) exit(2);
  memset(memory, fill, bytes);
  return memory;
}

static void read_file(const char *path, void *data, size_t bytes) {
  FILE *const file = fopen(path, "rb");
  if (file == NULL || fread(data, 1, bytes, file) != bytes) exit(5);
  fclose(file);
}

int main(int argc, char **argv) {
  const aotc_model *const model = MODEL();
  const size_t workspace_bytes = model->workspace_bytes + (size_t)THREADS * model->thread_workspace_bytes;
  aotc_run_options options = {sizeof options, NULL, NULL, NULL, NULL};
  const size_t num_inputs = (size_t)model->num_inputs, num_outputs = (size_t)model->num_outputs;
  const void **inputs = calloc(num_inputs, sizeof *inputs);
  void **outputs = calloc(2 * num_outputs, sizeof *outputs);
  size_t k, i, differ = 0;
  int run, status;
  unsigned state = 1;
  for (k = 0; k < num_inputs; ++k) {
    float *data = block(model->inputs[k].bytes, sizeof(void *), 0);
#ifdef AOTC_STRING
    /* texts that are none: any bytes, and no end */
    for (i = 0; model->inputs[k].dtype == AOTC_STRING && i < model->inputs[k].bytes; ++i) {
      state = state * 1664525u + 1013904223u;
      ((unsigned char *)data)[i] = (unsigned char)(state >> 24);
    }
#endif
    /* other types stay zero */
    for (i = 0; model->inputs[k].dtype == AOTC_FLOAT32 && i < model->inputs[k].bytes / sizeof(float); ++i) {
      state = state * 1664525u + 1013904223u; /* Numerical Recipes' generator */
      data[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0f;
    }
    if (k + 1 < (size_t)argc) read_file(argv[k + 1], data, model->inputs[k].bytes);
    inputs[k] = data;
  }
#ifdef AOTC_POOL_H
  if (aotc_pool_create(THREADS, &options.threads) != AOTC_OK) return 3;
#endif
  for (run = 0; run < 2; ++run) {
    void *const workspace = block(workspace_bytes, model->workspace_alignment, run == 0 ? 0 : 0xFF);
    void **const results = outputs + (size_t)run * num_outputs;
    for (k = 0; k < num_outputs; ++k) results[k] = block(model->outputs[k].bytes, sizeof(void *), 0x5A);
    status = model->run(inputs, results, workspace, run == 0 ? NULL : &options);
    if (status != AOTC_OK) {
      printf("status %d\n", status);
      fflush(stdout);
      _Exit(4);
    }
    free(workspace);
  }
#ifdef AOTC_POOL_H
  aotc_pool_destroy(options.threads);
#endif
  for (k = 0; k < num_outputs; ++k) {
    differ += memcmp(outputs[k], outputs[num_outputs + k], model->outputs[k].bytes) != 0;
    free(outputs[k]);
    free(outputs[num_outputs + k]);
  }
  for (k = 0; k < num_inputs; ++k) free((void *)(size_t)inputs[k]);
  free(inputs);
  free(outputs);
  printf("%lu outputs differ\n", (unsigned long)differ);
  return 0;
}
