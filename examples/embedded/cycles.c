// SPDX-License-Identifier: Apache-2.0
// The counters have the same addresses on all Cortex-M cores.
#include "cycles.h"

#define DEMCR (*(volatile uint32_t *)0xe000edfcu)
#define DWT_CTRL (*(volatile uint32_t *)0xe0001000u)
#define DWT_CYCCNT (*(volatile uint32_t *)0xe0001004u)
#define SYSTICK_CTRL (*(volatile uint32_t *)0xe000e010u)
#define SYSTICK_LOAD (*(volatile uint32_t *)0xe000e014u)
#define SYSTICK_VALUE (*(volatile uint32_t *)0xe000e018u)

enum {
  TRCENA = 1 << 24,
  CYCCNTENA = 1,
  SYSTICK_ON = 5,
  SYSTICK_MASK = 0xffffff
};

uint32_t cycles_of_step[CYCLES_STEPS];
static int has_dwt, current;
static uint32_t before;

static uint32_t counter(void) {
  return has_dwt ? DWT_CYCCNT : SYSTICK_MASK - SYSTICK_VALUE;
}

static uint32_t passed(uint32_t from, uint32_t to) {
  return has_dwt ? to - from : (to - from) & SYSTICK_MASK;
}

int cycles_start(void) {
  volatile int k;
  uint32_t first;
  DEMCR |= TRCENA;
  DWT_CYCCNT = 0;
  DWT_CTRL |= CYCCNTENA;
  // cores without the counter ignore writes
  first = DWT_CYCCNT;
  for (k = 0; k < 100; ++k)
    continue;
  has_dwt = DWT_CYCCNT != first;
  if (!has_dwt) {
    SYSTICK_LOAD = SYSTICK_MASK;
    SYSTICK_VALUE = 0;
    SYSTICK_CTRL = SYSTICK_ON; // the clock of the core, no interrupts
  }
  return has_dwt;
}

void cycles_step(int step) {
  const uint32_t now = counter();
  if (step > 0) cycles_of_step[current] += passed(before, now);
  current = step < CYCLES_STEPS ? step : CYCLES_STEPS - 1;
  before = counter();
}
