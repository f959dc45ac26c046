/* SPDX-License-Identifier: Apache-2.0
 *
 * A model called net with one input, data, and one output: run alone and by teams of threads, to the same bits.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aotc_pool.h"
#include "net.h"

enum { MAX_PARTS = 4 };

int main(void) {
  static float data[NET_INPUT_DATA_ELEMENTS], alone[NET_OUTPUT_OUTPUT_ELEMENTS], shared[NET_OUTPUT_OUTPUT_ELEMENTS];
  const net_inputs inputs = {data};
  const net_outputs first = {alone}, second = {shared};
  const size_t bytes = NET_WORKSPACE_BYTES + MAX_PARTS * net_info()->thread_workspace_bytes;
  unsigned char *memory = malloc(bytes + NET_WORKSPACE_ALIGNMENT), *arena = memory;
  int parts, k;
  if (memory == NULL) return 1;
  arena += NET_WORKSPACE_ALIGNMENT - (size_t)arena % NET_WORKSPACE_ALIGNMENT;
  for (k = 0; k < NET_INPUT_DATA_ELEMENTS; ++k) data[k] = (float)(k * 37 % 101) - 50.0f;
  if (net_run(&inputs, &first, arena, NULL) != AOTC_OK) return 2;
  for (parts = 2; parts <= MAX_PARTS; ++parts) {
    aotc_run_options options = {sizeof options, NULL, NULL, NULL, NULL};
    if (aotc_pool_create(parts, &options.threads) != AOTC_OK) return 3;
    for (k = 0; k < 3; ++k) {
      memset(shared, 0xff, sizeof shared);
      if (net_run(&inputs, &second, arena, &options) != AOTC_OK) return 4;
      if (memcmp(alone, shared, sizeof alone) != 0) return 5;
    }
    aotc_pool_destroy(options.threads);
  }
  free(memory);
  puts("ok");
  return 0;
}
