/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of the operating system for runs of compiled models.  Optional: a
 * program without it runs models on the calling thread.  C99, valid as C++.
 *
 *   const aotc_threads *threads;
 *   aotc_run_options options = {sizeof options};
 *   int status = aotc_pool_create(4, &threads);
 *   if (status != AOTC_OK) return status;
 *   options.threads = threads;
 *   status = net_run(&inputs, &outputs, workspace, &options);
 *   aotc_pool_destroy(threads);
 *
 * Link with -pthread.  Compiled with -DAOTC_NO_THREADS, pools have one part.
 */
#ifndef AOTC_POOL_H
#define AOTC_POOL_H

#include "aotc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A pool of `parts` threads: the one that runs a job, and parts - 1 that are
 * started here and wait.  AOTC_OK; AOTC_ERROR_THREADS for
 * other numbers than 1..AOTC_MAX_THREADS and where the system refuses;
 * AOTC_ERROR_NULL_ARGUMENT.  `*threads` is NULL on failure.
 *
 * Several sessions may share a pool: runs that come at the same time follow
 * one another.  A job must not run another one on its own pool, nor fork.
 *
 * A process may fork while pools exist, and while other threads run jobs: in
 * the child the first run on a pool makes threads of its own, and gives
 * AOTC_ERROR_THREADS where the system refuses them. */
int aotc_pool_create(int32_t parts, const aotc_threads **threads);

/* Ends the threads, after the last run has returned; NULL is left alone. */
void aotc_pool_destroy(const aotc_threads *threads);

#ifdef __cplusplus
}
#endif

#endif
