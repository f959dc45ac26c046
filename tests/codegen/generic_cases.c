/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a model on cases from a file by its generic interface.  Each buffer has
 * exactly the bytes of the case, so that sanitizers see every byte too far, and
 * the workspace is poisoned before each run.  Prints the status of each run,
 * and writes the outputs of those that end well to another file.
 *
 * A case is 64-bit integers: 1 if its sizes are known, 2 if the run finds a
 * value that is not allowed, so that its outputs are undefined, 0 otherwise; the
 * sizes; for each input its bytes, and these; for each output its bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

#define MOST 64

static int64_t number(FILE *file) {
  int64_t value;
  if (fread(&value, sizeof value, 1, file) != 1) exit(2);
  return value;
}

static unsigned char *block(int64_t bytes) {
  unsigned char *memory = malloc(bytes == 0 ? 1 : (size_t)bytes);
  if (memory == NULL) exit(3);
  memset(memory, 0x5A, bytes == 0 ? 1 : (size_t)bytes);
  return memory;
}

int main(int argc, char **argv) {
  const aotc_model *const model = net_info();
  const aotc_sizes *const sizes = net_sizes();
  const size_t align = model->workspace_alignment;
  const size_t room = (model->workspace_bytes / align + 1) * align;
  FILE *const cases = argc == 3 ? fopen(argv[1], "rb") : NULL, *const results = argc == 3 ? fopen(argv[2], "wb") : NULL;
  const int num_inputs = (int)model->num_inputs - 1, num_outputs = (int)model->num_outputs;
  int64_t bytes[MOST], values[MOST], shapes[8 * MOST], kind;
  if (cases == NULL || results == NULL || num_inputs >= MOST || num_outputs > MOST || sizes->num_sizes > MOST) return 4;
  while (fread(&kind, sizeof kind, 1, cases) == 1) {
    unsigned char *inputs[MOST], *outputs[MOST], *const workspace = aligned_alloc(align, room);
    int status, k;
    for (k = 0; k < sizes->num_sizes; ++k) values[k] = number(cases);
    for (k = 0; k < num_inputs; ++k) {
      const int64_t count = number(cases);
      inputs[k] = block(count);
      if (fread(inputs[k], 1, (size_t)count, cases) != (size_t)count) return 5;
    }
    inputs[num_inputs] = (unsigned char *)values;
    for (k = 0; k < num_outputs; ++k) outputs[k] = block(bytes[k] = number(cases));
    memset(workspace, 0x5A, room);
    status = model->run((const void *const *)inputs, (void *const *)outputs, workspace, NULL);
    if (kind != 0 && sizes->shapes(values, shapes) != (kind == 1 ? status : AOTC_OK)) return 6;
    printf("%d %s\n", status, sizes->check(status));
    for (k = 0; k < num_outputs; ++k) {
      int64_t at;
      if (status == AOTC_OK) fwrite(outputs[k], 1, (size_t)bytes[k], results);
      else if (kind != 2)
        for (at = 0; at < bytes[k]; ++at)
          if (outputs[k][at] != 0x5A) return 7;
      free(outputs[k]);
    }
    for (k = 0; k < num_inputs; ++k) free(inputs[k]);
    free(workspace);
  }
  fclose(cases);
  return fclose(results) == 0 ? 0 : 8;
}
