// SPDX-License-Identifier: Apache-2.0
// Cycles of each step of a model on a Cortex-M.
//
//   make CC=arm-none-eabi-gcc CFLAGS="-include $PWD/cycles.h
//   -D'AOTC_STEP(k)=cycles_step(k)'"
//
// builds the library of a model that calls cycles_step before each step of the
// schedule and after the last one.  The steps are those of metadata.json.
#ifndef CYCLES_H
#define CYCLES_H

// flags of C files are those of assembler files, too
#ifndef __ASSEMBLER__

#include <stdint.h>

enum { CYCLES_STEPS = 64 };

// Cycles from the call for step k to the next one; further steps are added to
// the last entry.
extern uint32_t cycles_of_step[CYCLES_STEPS];

// Starts the counter: that of the debug unit (DWT), or the SysTick timer on
// cores without it.  Returns 1 for DWT, 0 for SysTick, which counts 24 bits: a
// step may take 16.7 million cycles at most.
int cycles_start(void);

void cycles_step(int step);

#endif
#endif
