// SPDX-License-Identifier: Apache-2.0
/* What the header says of integers: reads floats, and for each writes the
 * integer of the input and the float that it stands for; for each integer of
 * the output the float. */
#include <stdio.h>

#include "net.h"

#ifdef NET_INPUT_X_AXIS
#define AT(k) , (k) % 3
#else
#define AT(k)
#endif

int main(void) {
  float value;
  int32_t k;
  const aotc_tensor *const x = net_info()->inputs;
  if (x->quantization == NULL) return 1;
  for (k = 0; k < x->quantization->count; ++k)
    fprintf(stderr, "%.9g %d\n", (double)x->quantization->scale[k],
            (int)x->quantization->zero_point[k]);
  fprintf(stderr, "%d", (int)x->quantization->axis);
  for (k = 0; fread(&value, sizeof value, 1, stdin) == 1; ++k) {
    const int32_t whole = (int32_t)net_input_x_quantize(value AT(k));
    const float real = net_input_x_dequantize((net_integer)whole AT(k));
    fwrite(&whole, sizeof whole, 1, stdout);
    fwrite(&real, sizeof real, 1, stdout);
  }
  return 0;
}
