/* SPDX-License-Identifier: Apache-2.0 */
/* Drives the loader: loader_host TINY OTHER_ABI NULL_MODEL PLAIN TEXT MISSING.
 * Prints what does not hold, and fails then.
 *
 * loader_host cut FILE...   tells of each file whether it was cut short: a line
 *                           of 1 and 0 */
#include <stdio.h>
#include <string.h>

#include "aotc_loader.h"

static int failures = 0;

#define EXPECT(condition) expect((condition) != 0, #condition, __LINE__)

static void expect(int holds, const char *text, int line) {
  if (holds) return;
  printf("line %d: %s\n", line, text);
  ++failures;
}

static void expect_failure(const char *path, int wanted) {
  aotc_library library;
  char message[256];
  int status;
  memset(message, 'x', sizeof message);
  status = aotc_library_open(&library, path, message, sizeof message);
  if (status != wanted) printf("%s: status %d: %s\n", path, status, message);
  EXPECT(status == wanted);
  EXPECT(memchr(message, '\0', sizeof message) != NULL);
  EXPECT(message[0] != '\0' && message[0] != 'x');
  EXPECT(library.handle == NULL && library.model == NULL);
  EXPECT(aotc_library_run(&library, NULL, NULL, NULL, NULL) ==
         AOTC_ERROR_NULL_ARGUMENT);
  aotc_library_close(&library);
}

static void test_messages(const char *missing) {
  aotc_library library;
  char message[8];
  char guard = 'g';
  memset(message, 'x', sizeof message);
  EXPECT(aotc_library_open(&library, missing, message, 5) == AOTC_ERROR_OPEN);
  EXPECT(strlen(message) == 4 && message[5] == 'x');
  EXPECT(aotc_library_open(&library, missing, &guard, 0) == AOTC_ERROR_OPEN);
  EXPECT(guard == 'g');
  EXPECT(aotc_library_open(&library, missing, NULL, 0) == AOTC_ERROR_OPEN);
  EXPECT(aotc_library_open(NULL, missing, message, sizeof message) ==
         AOTC_ERROR_NULL_ARGUMENT);
  EXPECT(aotc_library_open(&library, NULL, message, sizeof message) ==
         AOTC_ERROR_NULL_ARGUMENT);
  EXPECT(message[0] != '\0' && library.handle == NULL);
}

static void test_run(const char *path) {
  static unsigned char memory[256];
  const float x[6] = {1, 2, 3, 4, 5, 6};
  const float scale = 2;
  float y[6];
  double sum = 0;
  const void *inputs[2];
  void *outputs[2];
  unsigned char *workspace = memory + (64 - (uintptr_t)memory % 64);
  aotc_run_options options;
  aotc_library library;
  char message[64];
  int i;
  inputs[0] = x;
  inputs[1] = &scale;
  outputs[0] = y;
  outputs[1] = &sum;
  options.size = sizeof options;
  EXPECT(aotc_library_open(&library, path, message, sizeof message) == AOTC_OK);
  if (library.model == NULL) return;
  EXPECT(message[0] == '\0');
  EXPECT(strcmp(library.model->name, "tiny") == 0);
  EXPECT(library.model->workspace_bytes <= 128);
  EXPECT(aotc_library_run(&library, inputs, outputs, workspace, NULL) ==
         AOTC_OK);
  for (i = 0; i < 6; ++i)
    EXPECT(y[i] > 2 * x[i] && y[i] < 2 * x[i] + 2);
  EXPECT(sum > 47.5 && sum < 48.5);
  EXPECT(aotc_library_run(&library, inputs, outputs, workspace, &options) ==
         AOTC_OK);
  options.size = 1;
  EXPECT(aotc_library_run(&library, inputs, outputs, workspace, &options) ==
         AOTC_ERROR_OPTIONS);
  EXPECT(aotc_library_run(&library, inputs, outputs, workspace + 4, NULL) ==
         AOTC_ERROR_ALIGNMENT);
  EXPECT(aotc_library_run(&library, NULL, outputs, workspace, NULL) ==
         AOTC_ERROR_NULL_ARGUMENT);
  aotc_library_close(&library);
  EXPECT(library.handle == NULL && library.model == NULL);
  aotc_library_close(&library);
  aotc_library_close(NULL);
}

static int tell_cut(int count, char **paths) {
  aotc_library library;
  char message[256];
  int k;
  for (k = 0; k < count; ++k) {
    if (aotc_library_open(&library, paths[k], message, sizeof message) ==
        AOTC_OK)
      aotc_library_close(&library);
    putchar(strcmp(message, "the file was cut short") == 0 ? '1' : '0');
  }
  putchar('\n');
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 2 && strcmp(argv[1], "cut") == 0)
    return tell_cut(argc - 2, argv + 2);
  if (argc != 7) return 2;
  test_run(argv[1]);
  expect_failure(argv[2], AOTC_ERROR_ABI);
  expect_failure(argv[3], AOTC_ERROR_SYMBOL);
  expect_failure(argv[4], AOTC_ERROR_SYMBOL);
  expect_failure(argv[5], AOTC_ERROR_OPEN);
  expect_failure(argv[6], AOTC_ERROR_OPEN);
  test_messages(argv[6]);
  return failures == 0 ? 0 : 1;
}
