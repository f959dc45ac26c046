// SPDX-License-Identifier: Apache-2.0
// Classifies the held-out digits with the compiled network and prints the
// accuracy.
//
//   classify digits_test.bin
//
// The file holds 65 bytes an image: 64 gray values from 0 to 16, then the
// label.
#include <stdio.h>

#include "digits.h"

enum {
  PIXELS = DIGITS_INPUT_IMAGE_ELEMENTS,
  CLASSES = DIGITS_OUTPUT_SCORES_ELEMENTS
};

static _Alignas(
    DIGITS_WORKSPACE_ALIGNMENT) unsigned char workspace[DIGITS_WORKSPACE_BYTES];

static int largest(const float *scores) {
  int best = 0;
  for (int k = 1; k < CLASSES; ++k) {
    if (scores[k] > scores[best]) best = k;
  }
  return best;
}

int main(int argc, char **argv) {
  static float image[PIXELS], scores[CLASSES];
  const digits_inputs inputs = {image};
  const digits_outputs outputs = {scores};
  unsigned char row[PIXELS + 1];
  int total = 0, correct = 0;

  FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL) {
    fprintf(stderr, "usage: classify digits_test.bin\n");
    return 2;
  }
  while (fread(row, sizeof row, 1, file) == 1) {
    for (int k = 0; k < PIXELS; ++k)
      image[k] = (float)row[k] / 16.0F;
    const int status = digits_run(&inputs, &outputs, workspace, NULL);
    if (status != AOTC_OK) {
      fprintf(stderr, "digits_run: %s\n", aotc_status_message(status));
      fclose(file);
      return 1;
    }
    correct += largest(scores) == row[PIXELS];
    ++total;
  }
  fclose(file);
  if (total == 0) {
    fprintf(stderr, "%s holds no images\n", argv[1]);
    return 2;
  }
  printf("C: %d of %d digits right (%.2f %%)\n", correct, total,
         100.0 * correct / total);
  return 0;
}
