// SPDX-License-Identifier: Apache-2.0
// Classifies the held-out digits with the quantized network, whose input and
// output are integers, and prints the accuracy.
//
//   classify_int8 digits_test.bin
//
// The file holds 65 bytes an image: 64 gray values from 0 to 16, then the
// label.
#include <stdio.h>

#include "digits_int8.h"

enum {
  PIXELS = DIGITS_INT8_INPUT_IMAGE_ELEMENTS,
  CLASSES = DIGITS_INT8_OUTPUT_SCORES_ELEMENTS,
  LEVELS = 17
};

static _Alignas(DIGITS_INT8_WORKSPACE_ALIGNMENT) unsigned char workspace
    [DIGITS_INT8_WORKSPACE_BYTES];

// The greatest integer stands for the greatest probability.
static int largest(const uint8_t *scores) {
  int best = 0;
  for (int k = 1; k < CLASSES; ++k) {
    if (scores[k] > scores[best]) best = k;
  }
  return best;
}

int main(int argc, char **argv) {
  static uint8_t image[PIXELS], scores[CLASSES];
  const digits_int8_inputs inputs = {image};
  const digits_int8_outputs outputs = {scores};
  unsigned char row[PIXELS + 1];
  uint8_t levels[LEVELS];
  int total = 0, correct = 0;
  double confidence = 0;

  FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL) {
    fprintf(stderr, "usage: classify_int8 digits_test.bin\n");
    return 2;
  }
  for (int k = 0; k < LEVELS; ++k)
    levels[k] = digits_int8_input_image_quantize((float)k / 16.0F);
  while (fread(row, sizeof row, 1, file) == 1) {
    for (int k = 0; k < PIXELS; ++k)
      image[k] = levels[row[k] % LEVELS];
    const int status = digits_int8_run(&inputs, &outputs, workspace, NULL);
    if (status != AOTC_OK) {
      fprintf(stderr, "digits_int8_run: %s\n", aotc_status_message(status));
      fclose(file);
      return 1;
    }
    const int best = largest(scores);
    confidence += (double)digits_int8_output_scores_dequantize(scores[best]);
    correct += best == row[PIXELS];
    ++total;
  }
  fclose(file);
  if (total == 0) {
    fprintf(stderr, "%s holds no images\n", argv[1]);
    return 2;
  }
  printf("C, int8: %d of %d digits right (%.2f %%), mean confidence %.3f\n",
         correct, total, 100.0 * correct / total, confidence / total);
  return 0;
}
