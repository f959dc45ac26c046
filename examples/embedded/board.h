// SPDX-License-Identifier: Apache-2.0
// What start.c has for programs.
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

int main(void);

void print(const char *text);
void print_number(uint32_t number);
void print_bytes(const void *from, size_t bytes);

// Bytes of stack that functions called since paint_stack() took.
void paint_stack(void);
size_t used_stack(void);

#endif
