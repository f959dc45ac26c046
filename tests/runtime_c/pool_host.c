/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on pools of all sizes: every part runs once, meetings keep order, two
 * callers share a pool, children of fork have pools that work.  Prints "ok". */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE 1 /* usleep under -std=c99 */
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aotc_pool.h"

#ifndef AOTC_NO_THREADS
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
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

/* --- forks, while another thread is in a run */

/* What the sanitizers can follow: that for threads none that a child starts,
 * that for leaks no child at its exit. */
#if defined(__SANITIZE_THREAD__)
enum { KINDS = 2 };
#else
enum { KINDS = 4 };
#endif
#if defined(__SANITIZE_ADDRESS__)
#define LEAVE _exit
#else
#define LEAVE exit
#endif

typedef struct background {
  const aotc_threads *threads;
  pthread_t thread;
  int32_t stop;
} background;

static void *run_on(void *argument) {
  background *const b = (background *)argument;
  while (!__atomic_load_n(&b->stop, __ATOMIC_SEQ_CST))
    run_job(b->threads);
  return NULL;
}

/* The child: 0 nothing, 1 ends the pool, 2 runs by two threads at once, 3 runs,
 * then has a child that does the same. */
static void child(const aotc_threads *threads, int kind);

static void fork_once(const aotc_threads *threads, int kind) {
  int status = 0;
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) child(threads, kind);
  if (waitpid(pid, &status, 0) != pid) fail("wait");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail("child");
}

static void child(const aotc_threads *threads, int kind) {
  pthread_t other;
  alarm(60); /* instead of hanging */
  if (kind == 2) {
    if (pthread_create(&other, NULL, caller, (void *)(uintptr_t)threads) != 0)
      fail("thread");
    caller((void *)(uintptr_t)threads);
    pthread_join(other, NULL);
  }
  if (kind == 3) {
    run_job(threads);
    fork_once(threads, 2);
    run_job(threads);
  }
  if (kind > 0) aotc_pool_destroy(threads);
  LEAVE(0);
}

static void forks(void) {
  background b;
  int kind;
  if (aotc_pool_create(3, &b.threads) != AOTC_OK) fail("create");
  run_job(b.threads);
  for (kind = 0; kind < KINDS; ++kind)
    fork_once(b.threads, kind); /* the workers rest */
  b.stop = 0;
  if (pthread_create(&b.thread, NULL, run_on, &b) != 0) fail("thread");
  for (kind = 0; kind < 12; ++kind) {
    usleep(1000);
    fork_once(b.threads, kind % KINDS);
  }
  __atomic_store_n(&b.stop, 1, __ATOMIC_SEQ_CST);
  pthread_join(b.thread, NULL);
  run_job(b.threads);
  aotc_pool_destroy(b.threads);
}
#else
static void share(void) {
}

static void forks(void) {
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
  forks();
  puts("ok");
  return 0;
}
