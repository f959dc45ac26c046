/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the program of sized_programs.py with sizes from a file: after a wrong
 * size nothing is written, and the workspace is usable.  Buffers have exactly
 * the bytes of a run, so that sanitizers see every byte too far.  Prints the
 * status of each run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

static float *block(int64_t count, float value) {
  float *memory = malloc((size_t)count * sizeof(float) + 1);
  int64_t k;
  if (memory == NULL) exit(2);
  for (k = 0; k < count; ++k) memory[k] = value;
  return memory;
}

static int64_t usable(int64_t size, int64_t most) {
  return size < 0 ? 0 : size > most ? most : size;
}

int main(int argc, char **argv) {
  union {
    unsigned char bytes[NET_WORKSPACE_BYTES + NET_WORKSPACE_ALIGNMENT];
  } scratch;
  size_t over = (uintptr_t)scratch.bytes % NET_WORKSPACE_ALIGNMENT;
  void *workspace = scratch.bytes + (over == 0 ? 0 : NET_WORKSPACE_ALIGNMENT - over);
  FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
  int64_t sizes[2], k;
  if (file == NULL) return 1;
  memset(scratch.bytes, 0x5a, sizeof scratch.bytes);
  while (fread(sizes, sizeof sizes, 1, file) == 1) {
    const int64_t x_count = 4 * usable(sizes[0], 8), z_count = usable(sizes[1], 96);
    float *x = block(x_count, 3), *z = block(z_count, 5), *y = block(x_count, -1), *w = block(z_count, -1);
    net_inputs inputs;
    net_outputs outputs;
    int status;
    memset(&outputs, 0x5a, sizeof outputs);
    inputs.x = x;
    inputs.z = z;
    inputs.n = sizes[0];
    inputs.h = sizes[1];
    outputs.y = y;
    outputs.w = w;
    status = net_run(&inputs, &outputs, workspace, NULL);
    if (status == AOTC_OK && (outputs.y_shape[0] != sizes[0] || outputs.y_shape[1] != 4)) return 3;
    if (status == AOTC_OK && outputs.w_shape[0] != sizes[1]) return 3;
    if (status != AOTC_OK && outputs.y_shape[0] != INT64_C(0x5a5a5a5a5a5a5a5a)) return 4;
    for (k = 0; k < x_count; ++k)
      if (y[k] != (status == AOTC_OK ? 8 : -1)) return 5;
    for (k = 0; k < z_count; ++k)
      if (w[k] != (status == AOTC_OK ? 10 : -1)) return 5;
    if ((status == AOTC_OK) != (net_workspace_bytes(&inputs) == NET_WORKSPACE_BYTES)) return 6;
    if (net_shapes(&inputs, &outputs) != status) return 7;
    printf("%d %s\n", status, net_check(status));
    free(x);
    free(z);
    free(y);
    free(w);
  }
  fclose(file);
  return 0;
}
