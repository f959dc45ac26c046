/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the model at its first argument through the loader and runs it once
 * on ones; prints the status, the message, and the outputs of ten floats. The
 * second argument, if there is one, is the instruction set that the options
 * of the run name. */
#include <stdio.h>
#include <string.h>

#include "aotc_loader.h"

enum { INPUT = 64, OUTPUT = 10, WORKSPACE = 1 << 22, ALIGNMENT = 64 };

static float input[INPUT], output[OUTPUT];
static unsigned char memory[WORKSPACE + ALIGNMENT];

int main(int argc, char **argv) {
  aotc_library library;
  aotc_run_options options;
  char message[256];
  const void *inputs[1];
  void *outputs[1];
  unsigned char *const workspace =
      memory + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT);
  int k, status = aotc_library_open(&library, argv[1], message, sizeof message);
  printf("%d %s\n", status, message);
  if (status != AOTC_OK) return 0;
  if (library.model->workspace_bytes > WORKSPACE) return 1;
  for (k = 0; k < INPUT; ++k)
    input[k] = 1;
  inputs[0] = input;
  outputs[0] = output;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.isa = argc > 2 ? argv[2] : NULL;
  status = aotc_library_run(&library, inputs, outputs, workspace, &options);
  printf("%d %s\n", status, aotc_status_message(status));
  for (k = 0; status == AOTC_OK && k < OUTPUT; ++k)
    printf("%.9g ", (double)output[k]);
  aotc_library_close(&library);
  return 0;
}
