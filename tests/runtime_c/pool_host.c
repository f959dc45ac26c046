/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on pools of all sizes: every part runs once, meetings keep order, two
 * callers share a pool.  Prints "ok". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aotc_pool.h"

#ifndef AOTC_NO_THREADS
#include <pthread.h>
#endif

enum { ROUNDS = 50 };

typedef struct board {
  int32_t seen[AOTC_MAX_THREADS]; /* the round that each part is in */
  int32_t parts[AOTC_MAX_THREADS];
  int32_t wrong[AOTC_MAX_THREADS];
} board;

static void fail(const char *what) {
  puts(what);
  exit(1);
}

static void job(void *argument, const aotc_team *team) {
  board *const b = (board *)argument;
  int32_t round;
  int32_t k;
  b->parts[team->part] = team->parts;
  for (round = 1; round <= ROUNDS; ++round) {
    b->seen[team->part] = round;
    if (team->parts > 1) team->wait(team->context);
    for (k = 0; k < team->parts; ++k)
      if (b->seen[k] != round) b->wrong[team->part] = 1;
    if (team->parts > 1) team->wait(team->context);
  }
}

static void run_job(const aotc_threads *threads) {
  board b;
  int32_t k;
  memset(&b, 0, sizeof b);
  if (threads->run(threads, job, &b) != AOTC_OK) fail("run");
  for (k = 0; k < AOTC_MAX_THREADS; ++k) {
    const int in = k < threads->parts;
    if (b.parts[k] != (in ? threads->parts : 0)) fail("part");
    if (b.seen[k] != (in ? ROUNDS : 0)) fail("rounds");
    if (b.wrong[k]) fail("order");
  }
}

#ifndef AOTC_NO_THREADS
static void *caller(void *argument) {
  int k;
  for (k = 0; k < 20; ++k)
    run_job((const aotc_threads *)argument);
  return NULL;
}

static void share(void) {
  const aotc_threads *threads;
  pthread_t other;
  if (aotc_pool_create(3, &threads) != AOTC_OK) fail("create");
  if (pthread_create(&other, NULL, caller, (void *)(uintptr_t)threads) != 0)
    fail("thread");
  caller((void *)(uintptr_t)threads);
  pthread_join(other, NULL);
  aotc_pool_destroy(threads);
}
#else
static void share(void) {
}
#endif

static void refuse(int32_t parts) {
  const aotc_threads *threads = NULL;
  if (aotc_pool_create(parts, &threads) != AOTC_ERROR_THREADS) fail("status");
  if (threads != NULL) fail("left");
}

int main(int argc, char **argv) {
  const int32_t most = argc > 1 ? (int32_t)atoi(argv[1]) : 1;
  const aotc_threads *threads;
  int32_t parts;
  int k;
  refuse(0);
  refuse(-1);
  refuse(AOTC_MAX_THREADS + 1);
  refuse(1000);
  if (aotc_pool_create(1, NULL) != AOTC_ERROR_NULL_ARGUMENT) fail("null");
  aotc_pool_destroy(NULL);
  for (parts = 1; parts <= most; ++parts) {
    if (aotc_pool_create(parts, &threads) != AOTC_OK) fail("create");
    if (threads->parts != parts) fail("parts");
    for (k = 0; k < 5; ++k)
      run_job(threads);
    aotc_pool_destroy(threads);
  }
  share();
  puts("ok");
  return 0;
}
