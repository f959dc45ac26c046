// SPDX-License-Identifier: Apache-2.0
// Start-up code for Cortex-M and 32-bit RISC-V: the vectors, .data and .bss,
// the floating-point unit; what a program prints goes to the debugger, which
// ends it, too (semihosting).
#include <stddef.h>
#include <stdint.h>

#include "board.h"

extern uint32_t data_load[], data_start[], data_end[];
extern uint32_t bss_start[], bss_end[], stack_start[], stack_end[];

enum { SYS_WRITE0 = 0x04, SYS_EXIT = 0x18, SYS_EXIT_EXTENDED = 0x20 };
enum { STOPPED = 0x20026, PAINT = 0x5aa5c33c, UNTOUCHED = 16 };

#ifdef __riscv
static void semihost(int operation, const void *argument) {
  register int a0 __asm__("a0") = operation;
  register const void *a1 __asm__("a1") = argument;
  __asm__ volatile(".option push\n.option norvc\n.balign 16\n"
                   "slli x0, x0, 0x1f\nebreak\nsrai x0, x0, 7\n.option pop"
                   : "+r"(a0)
                   : "r"(a1)
                   : "memory");
}
#else
static void semihost(int operation, const void *argument) {
  register int r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}
#endif

void print(const char *text) {
  semihost(SYS_WRITE0, text);
}

void print_number(uint32_t number) {
  char digits[12];
  char *at = digits + sizeof digits - 1;
  *at = '\0';
  do {
    *--at = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  print(at);
}

void print_bytes(const void *from, size_t bytes) {
  const unsigned char *at = from;
  char text[3] = "";
  for (; bytes != 0; --bytes, ++at) {
    text[0] = "0123456789abcdef"[*at >> 4];
    text[1] = "0123456789abcdef"[*at & 15];
    print(text);
  }
  print("\n");
}

// Everything below the caller's frame is painted; what is not any more was
// used.  The compiler must not take these for memset.
__attribute__((noinline)) void paint_stack(void) {
  volatile uint32_t *at = stack_start;
  volatile uint32_t *const end =
      (volatile uint32_t *)__builtin_frame_address(0) - UNTOUCHED;
  while (at < end)
    *at++ = PAINT;
}

__attribute__((noinline)) size_t used_stack(void) {
  const volatile uint32_t *at = stack_start;
  const uint32_t here = (uint32_t)(uintptr_t)__builtin_frame_address(0);
  while (*at == PAINT)
    ++at;
  return here - (uint32_t)(uintptr_t)at;
}

static void finish(int status) {
  const uint32_t reason[2] = {STOPPED, (uint32_t)status};
  semihost(SYS_EXIT_EXTENDED, reason);
  for (;;) {
  }
}

__attribute__((used, noreturn)) void start(void) {
  const uint32_t *from = data_load;
  uint32_t *to;
#ifdef __ARM_FP
  // coprocessors 10 and 11: the floating-point unit, and Helium
  *(volatile uint32_t *)0xe000ed88u |= 0xfu << 20;
  __asm__ volatile("dsb\nisb" ::: "memory");
#endif
  for (to = data_start; to < data_end;)
    *to++ = *from++;
  for (to = bss_start; to < bss_end;)
    *to++ = 0;
  finish(main());
  for (;;) {
  }
}

#ifdef __riscv
__attribute__((naked, used, section(".vectors"))) void reset(void) {
  __asm__ volatile("la sp, stack_end\nj start");
}
#else
static void fault(void) {
  print("fault\n");
  finish(3);
}

// The handler of the SysTick timer; a program may define its own.
__attribute__((weak)) void systick(void) {
  fault();
}

__attribute__((used, section(".vectors"))) void *const vectors[16] = {
    stack_end,     (void *)start, (void *)fault,
    (void *)fault, (void *)fault, (void *)fault,
    (void *)fault, (void *)fault, [15] = (void *)systick,
};
#endif
