// SPDX-License-Identifier: Apache-2.0
// Continues a text:
//
//   generate [-n TOKENS] [-t TEMPERATURE] [-p TOP_P] [-s SEED] [-k TEXTS]
//   [TEXT]
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "generate.h"

enum { USAGE = 2 };

static const char usage[] =
    "usage: generate [-n TOKENS] [-t TEMPERATURE] [-p TOP_P] [-s SEED] "
    "[-k TEXTS] [--] [TEXT]\n"
    "  -n TOKENS       up to so many tokens (default: 128)\n"
    "  -t TEMPERATURE  0: the most likely token (default); 1: by probability\n"
    "  -p TOP_P        draw among the most likely tokens of this probability "
    "(default: 1)\n"
    "  -s SEED         seed of the random numbers (default: 0)\n"
    "  -k TEXTS        so many continuations, with seeds SEED, SEED + 1, ... "
    "(default: 1)\n";

static void write_text(const char *text, size_t bytes) {
  fwrite(text, 1, bytes, stdout);
  fflush(stdout);
}

// Reads a number from `low` to `high`; returns whether it is one.
static int read_number(const char *text, double low, double high, int whole,
                       double *number) {
  char *end;
  errno = 0;
  const double value = strtod(text, &end);
  if (end == text || *end != '\0' || errno != 0) return 0;
  if (!(value >= low && value <= high)) return 0;
  if (whole && value != (double)(int64_t)value) return 0;
  *number = value;
  return 1;
}

int main(int argc, char **argv) {
  double tokens = 128, temperature = 0, top_p = 1, seed = 0, texts = 1;
  const struct {
    char letter;
    double low, high;
    int whole;
    double *number;
  } options[] = {{'n', 0, 1e9, 1, &tokens},
                 {'t', 0, 1e3, 0, &temperature},
                 {'p', 0, 1, 0, &top_p},
                 {'s', 0, 9e15, 1, &seed},
                 {'k', 1, 1e6, 1, &texts}};
  const size_t count = sizeof options / sizeof *options;
  int next = 1;
  for (; next < argc && argv[next][0] == '-'; next += 2) {
    size_t k = 0;
    if (argv[next][1] == '-' && argv[next][2] == '\0') {
      ++next;
      break;
    }
    while (k < count && (argv[next][1] != options[k].letter || argv[next][2]))
      ++k;
    if (k == count || next + 1 == argc ||
        !read_number(argv[next + 1], options[k].low, options[k].high,
                     options[k].whole, options[k].number)) {
      fputs(usage, stderr);
      return USAGE;
    }
  }
  if (argc - next > 1) {
    fputs(usage, stderr);
    return USAGE;
  }
  const char *prompt = next < argc ? argv[next] : "";
  int result = generate_read(prompt);
  generate_save();
  const clock_t start = clock();
  double written = 0;
  for (int k = 0; k < (int)texts && result == GENERATE_OK; ++k) {
    sampler s = {(float)temperature, (float)top_p,
                 (uint64_t)seed + (uint64_t)k};
    int32_t length;
    generate_restore();
    fputs(prompt, stdout);
    result = generate_continue(&s, (int32_t)tokens, write_text, &length);
    putchar('\n');
    written += length;
  }
  fflush(stdout);
  if (result != GENERATE_OK) {
    fprintf(stderr, "generate: %s\n", generate_message(result));
    return 1;
  }
  const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  if (seconds > 0) {
    fprintf(stderr, "%.0f tokens, %.0f a second\n", written, written / seconds);
  }
  return 0;
}
