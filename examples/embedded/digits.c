// SPDX-License-Identifier: Apache-2.0
// Classifies the held-out digits on a Cortex-M4 with the quantized network, and
// says what that takes: memory, stack, instructions.
#include "digits.h"
#include "board.h"

enum { PIXELS = DIGITS_INPUT_IMAGE_ELEMENTS, CLASSES = 10, LEVELS = 17 };

// 65 bytes an image: 64 gray values from 0 to 16, then the label.
__asm__(".section .rodata.images, \"a\", %progbits\n"
        "images:\n.incbin \"digits_test.bin\"\nimages_end:\n.text\n");
extern const unsigned char images[], images_end[];

// A timer that QEMU drives by instructions (-icount shift=0): one tick of the
// 25 MHz clock is 40 of them.
#define SYSTICK ((volatile uint32_t *)0xe000e010u)
enum { INSTRUCTIONS_A_TICK = 40, TICKS = 0xffffff };

static unsigned char workspace[DIGITS_WORKSPACE_BYTES]
    __attribute__((aligned(DIGITS_WORKSPACE_ALIGNMENT)));
static int8_t image[PIXELS], scores[CLASSES];

static int largest(void) {
  int best = 0;
  for (int k = 1; k < CLASSES; ++k) {
    if (scores[k] > scores[best]) best = k;
  }
  return best;
}

static void say(const char *before, uint32_t number, const char *after) {
  print(before);
  print_number(number);
  print(after);
}

int main(void) {
  const digits_inputs inputs = {image};
  const digits_outputs outputs = {scores};
  int8_t levels[LEVELS];
  uint32_t total = 0, correct = 0, ticks = 0, stack = 0;

  int status = digits_selftest(&outputs, workspace);
  if (status != AOTC_OK) {
    say("self-test: status ", (uint32_t)status, "\n");
    return 1;
  }
  for (int k = 0; k < LEVELS; ++k)
    levels[k] = digits_input_image_quantize((float)k / 16.0F);
  SYSTICK[1] = TICKS;
  SYSTICK[0] = 5;
  for (const unsigned char *row = images; row != images_end;
       row += PIXELS + 1) {
    for (int k = 0; k < PIXELS; ++k)
      image[k] = levels[row[k] % LEVELS];
    if (row == images) paint_stack();
    SYSTICK[2] = 0;
    status = digits_run(&inputs, &outputs, workspace, NULL);
    ticks += TICKS - SYSTICK[2];
    if (row == images) stack = (uint32_t)used_stack();
    if (status != AOTC_OK) return 1;
    correct += largest() == row[PIXELS];
    ++total;
  }
  say("", correct, " of ");
  say("", total, " digits right\n");
  say("RAM: workspace ", DIGITS_WORKSPACE_BYTES, " bytes, input and output ");
  say("", DIGITS_INPUT_IMAGE_BYTES + DIGITS_OUTPUT_SCORES_BYTES, ", stack ");
  say("", stack, " (stated: at most ");
  say("", DIGITS_STACK_BYTES, ")\n");
  say("instructions: ", ticks / total * INSTRUCTIONS_A_TICK, " an inference\n");
  return 0;
}
