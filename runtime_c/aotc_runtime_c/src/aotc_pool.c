/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A barrier is a word in memory.  The threads that come first poll it for a
 * while (most barriers of a run are microseconds apart) and then sleep; the
 * last one changes it, and wakes those that sleep, if there are any.
 *
 * A poll delays the other threads of its processor.  While other programs keep
 * processors busy, two threads of a pool often share one.  A worker then moves
 * to another processor, or sleeps at once.  For this, each thread stores the
 * number of its processor when it waits for long.  Waiting threads do not call
 * sched_yield: Linux may then run other programs for milliseconds.
 */
#if !defined(_WIN32) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1 /* sched_getcpu, sysconf and pthreads under -std=c99 */
#endif
#include "aotc_pool.h"

#include <stdlib.h>

#if defined(AOTC_NO_THREADS)

static int run_alone(const aotc_threads *threads, aotc_job_fn job,
                     void *argument) {
  const aotc_team team = {0, 1, NULL, NULL};
  (void)threads;
  job(argument, &team);
  return AOTC_OK;
}

int aotc_pool_create(int32_t parts, const aotc_threads **threads) {
  static const aotc_threads alone = {1, 0, run_alone, NULL};
  if (threads == NULL) return AOTC_ERROR_NULL_ARGUMENT;
  *threads = parts == 1 ? &alone : NULL;
  return parts == 1 ? AOTC_OK : AOTC_ERROR_THREADS;
}

void aotc_pool_destroy(const aotc_threads *threads) {
  (void)threads;
}

#else

/* --- the system: threads, a lock with a condition, words of memory */

#if defined(_WIN32)
#include <windows.h>

typedef HANDLE thread_t;
typedef struct lock_t {
  SRWLOCK mutex;
  CONDITION_VARIABLE condition;
} lock_t;
#define THREAD_RESULT DWORD WINAPI

static int thread_start(thread_t *thread, LPTHREAD_START_ROUTINE body,
                        void *argument) {
  *thread = CreateThread(NULL, 0, body, argument, 0, NULL);
  return *thread == NULL;
}

static void thread_join(thread_t thread) {
  WaitForSingleObject(thread, INFINITE);
  CloseHandle(thread);
}

static int lock_init(lock_t *lock) {
  InitializeSRWLock(&lock->mutex);
  InitializeConditionVariable(&lock->condition);
  return 0;
}

#define lock_free(lock) ((void)(lock))
#define lock_take(lock) AcquireSRWLockExclusive(&(lock)->mutex)
#define lock_give(lock) ReleaseSRWLockExclusive(&(lock)->mutex)
#define lock_wait(lock)                                                        \
  SleepConditionVariableSRW(&(lock)->condition, &(lock)->mutex, INFINITE, 0)
#define lock_wake(lock) WakeAllConditionVariable(&(lock)->condition)
#define give_way() SwitchToThread()
#define processor() ((int32_t)GetCurrentProcessorNumber())

static int32_t processors(void) {
  SYSTEM_INFO info;
  GetSystemInfo(&info);
  return (int32_t)info.dwNumberOfProcessors;
}

#else
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

typedef pthread_t thread_t;
typedef struct lock_t {
  pthread_mutex_t mutex;
  pthread_cond_t condition;
} lock_t;
#define THREAD_RESULT void *

#define thread_start(thread, body, argument)                                   \
  pthread_create(thread, NULL, body, argument)
#define thread_join(thread) pthread_join(thread, NULL)
#define lock_take(lock) pthread_mutex_lock(&(lock)->mutex)
#define lock_give(lock) pthread_mutex_unlock(&(lock)->mutex)
#define lock_wait(lock) pthread_cond_wait(&(lock)->condition, &(lock)->mutex)
#define lock_wake(lock) pthread_cond_broadcast(&(lock)->condition)
#define give_way() sched_yield()
#define processors() ((int32_t)sysconf(_SC_NPROCESSORS_ONLN))

static int lock_init(lock_t *lock) {
  if (pthread_mutex_init(&lock->mutex, NULL) != 0) return 1;
  if (pthread_cond_init(&lock->condition, NULL) == 0) return 0;
  pthread_mutex_destroy(&lock->mutex);
  return 1;
}

/* The number of the processor that executes this, or -1. */
static int32_t processor(void) {
#if defined(__linux__)
  return (int32_t)sched_getcpu();
#elif defined(__APPLE__) && __MAC_OS_X_VERSION_MIN_REQUIRED >= 110000
  size_t number;
  return pthread_cpu_number_np(&number) == 0 ? (int32_t)number : -1;
#else
  return -1;
#endif
}

static void lock_free(lock_t *lock) {
  pthread_cond_destroy(&lock->condition);
  pthread_mutex_destroy(&lock->mutex);
}

#endif

/* Sequentially consistent: a sleeper that counts itself and then looks at the
 * word, and a waker that changes the word and then looks for sleepers, cannot
 * miss each other. */
#if defined(_MSC_VER) && !defined(__clang__)
typedef volatile LONG word_t;
#define word_get(word) ((int32_t)InterlockedOr(word, 0))
#define word_add(word, value)                                                  \
  ((int32_t)InterlockedExchangeAdd(word, value) + (value))
#define word_set(word, value) InterlockedExchange(word, value)
#define word_swap(word, old, value)                                            \
  (InterlockedCompareExchange(word, value, old) == (old))
#else
typedef int32_t word_t;
#define word_get(word) __atomic_load_n(word, __ATOMIC_SEQ_CST)
#define word_add(word, value) __atomic_add_fetch(word, value, __ATOMIC_SEQ_CST)
#define word_set(word, value) __atomic_store_n(word, value, __ATOMIC_SEQ_CST)

/* Whether the word was `old`, and is `value` now. */
static int word_swap(word_t *word, int32_t old, int32_t value) {
  return __atomic_compare_exchange_n(word, &old, value, 0, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST);
}
#endif

static void rest(void) {
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
  __builtin_ia32_pause();
#elif defined(__GNUC__) && defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

/* --- forks: a child has the memory of its parent, and none of its threads.
 * `process` is a positive number that differs between the two. */

#if defined(_WIN32)
#define watch_forks() 0
#define process() 1
#elif defined(__APPLE__)
/* a library that is closed would leave its handlers behind; asking is cheap */
#define watch_forks() 0
#define process() ((int32_t)getpid())
#else
static word_t forks; /* between the first process and this one */
static int unwatched;

static void count_fork(void) {
  word_add(&forks, 1);
}

static void add_handler(void) {
  unwatched = pthread_atfork(NULL, NULL, count_fork);
}

static int watch_forks(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  return pthread_once(&once, add_handler) != 0 || unwatched != 0;
}

#define process() (word_get(&forks) + 1)
#endif

/* --- the pool */

enum {
  MAX_POLLS = 4000,      /* about 50 microseconds */
  POLLS_PER_CHECK = 40,  /* of whether threads share a processor */
  BARRIERS_PER_MOVE = 64 /* at least, while a worker stays on a processor */
};

struct pool;

typedef struct worker {
  thread_t thread;
  aotc_team team; /* its context is the worker */
  struct pool *pool;
  word_t processor; /* on which it last waited for long, or -1 */
  uint32_t moved;   /* meetings when it last changed its processor */
} worker;

typedef struct pool {
  aotc_threads threads; /* first: what callers hold */
  word_t owner; /* the process with the workers; negative while it makes them */
  lock_t sleep;
  lock_t turn;       /* one run after the other */
  int32_t max_polls; /* before a thread sleeps */
  aotc_job_fn job;
  void *argument;
  word_t runs;     /* changes when a job is there */
  word_t sleepers; /* threads that must be woken */
  word_t arrived;  /* threads that are at the present barrier */
  word_t meetings; /* barriers passed: changes when all have arrived */
  word_t stop;
  int32_t started;
  worker workers[AOTC_MAX_THREADS];
} pool;

/* Stores the processor for other threads, and returns it. */
static int32_t note_processor(worker *self) {
  const int32_t here = processor();
  if (word_get(&self->processor) != here) word_set(&self->processor, here);
  return here;
}

/* Whether another thread of the pool was last seen on this one's processor. */
static int is_processor_shared(worker *self) {
  pool *const p = self->pool;
  const int32_t here = note_processor(self);
  int32_t k;
  for (k = 0; k < p->threads.parts; ++k) {
    worker *const other = &p->workers[k];
    if (other != self && word_get(&other->processor) == here) return here >= 0;
  }
  return 0;
}

/* Moves a worker to a processor on which no other thread of the pool was last
 * seen, and returns 1, or 0 if it cannot.  Linux leaves threads on a processor
 * on which they take turns: it counts only those that are ready to run. */
static int leave_processor(worker *self) {
#if defined(__linux__)
  pool *const p = self->pool;
  const uint32_t meetings = (uint32_t)word_get(&p->meetings);
  cpu_set_t allowed, others;
  int32_t k;
  if (self->team.part == 0 || meetings - self->moved < BARRIERS_PER_MOVE ||
      sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return 0; /* part 0 is a thread of the caller's */
  self->moved = meetings;
  others = allowed;
  for (k = 0; k < p->threads.parts; ++k) {
    const int32_t there = word_get(&p->workers[k].processor);
    if (there >= 0 && there < CPU_SETSIZE) CPU_CLR((size_t)there, &others);
  }
  return CPU_COUNT(&others) > 0 &&
         sched_setaffinity(0, sizeof others, &others) == 0 &&
         sched_setaffinity(0, sizeof allowed, &allowed) == 0;
#else
  return (void)self, 0;
#endif
}

static void await_change(worker *self, word_t *word, int32_t old) {
  pool *const p = self->pool;
  int32_t k;
  for (k = 1; k <= p->max_polls; ++k) {
    if (word_get(word) != old) return;
    if (k % POLLS_PER_CHECK == 0 && is_processor_shared(self)) {
      if (word != &p->meetings || !leave_processor(self)) break;
      note_processor(self);
    }
    rest();
  }
  lock_take(&p->sleep);
  word_add(&p->sleepers, 1);
  while (word_get(word) == old)
    lock_wait(&p->sleep);
  word_add(&p->sleepers, -1);
  lock_give(&p->sleep);
}

static void wake_sleepers(worker *self) {
  pool *const p = self->pool;
  if (word_get(&p->sleepers) == 0) return;
  note_processor(self);
  lock_take(&p->sleep); /* a counted sleeper waits now, or sees the change */
  lock_give(&p->sleep);
  lock_wake(&p->sleep);
}

static void meet(void *context) {
  worker *const self = (worker *)context;
  pool *const p = self->pool;
  const int32_t meeting = word_get(&p->meetings);
  if (word_add(&p->arrived, 1) < p->threads.parts) {
    await_change(self, &p->meetings, meeting);
    return;
  }
  word_set(&p->arrived, 0);
  word_add(&p->meetings, 1);
  wake_sleepers(self);
}

static THREAD_RESULT work(void *argument) {
  worker *const self = (worker *)argument;
  pool *const p = self->pool;
  int32_t seen = 0;
  for (;;) {
    await_change(self, &p->runs, seen);
    seen = word_get(&p->runs); /* the next run begins when all have met */
    if (word_get(&p->stop)) return 0;
    p->job(p->argument, &self->team);
    meet(self);
  }
}

static int start_workers(pool *p) {
  int32_t k;
  for (k = 0; k < p->threads.parts; ++k) {
    worker *const w = &p->workers[k];
    w->team.part = k;
    w->team.parts = p->threads.parts;
    w->team.wait = meet;
    w->team.context = w;
    w->pool = p;
    word_set(&w->processor, -1); /* threads that run already may read it */
    if (k > 0 && thread_start(&w->thread, work, w) != 0) return 1;
    p->started = k;
  }
  return 0;
}

static void end_workers(pool *p) {
  int32_t k;
  word_set(&p->stop, 1);
  word_add(&p->runs, 1);
  wake_sleepers(&p->workers[0]);
  for (k = 1; k <= p->started; ++k)
    thread_join(p->workers[k].thread);
  lock_free(&p->turn);
  lock_free(&p->sleep);
}

/* Whatever the locks and words were when a process forked, they begin anew. */
static int start(pool *p) {
  p->runs = p->sleepers = p->arrived = p->meetings = p->stop = 0;
  p->started = 0;
  if (lock_init(&p->sleep) != 0) return 1;
  if (lock_init(&p->turn) != 0) {
    lock_free(&p->sleep);
    return 1;
  }
  if (start_workers(p) == 0) return 0;
  end_workers(p);
  return 1;
}

/* Sees to it that this process has the workers: 0, or it cannot.  Of threads
 * that come together one makes them. */
static int own(pool *p) {
  const int32_t me = process();
  for (;;) {
    const int32_t owner = word_get(&p->owner);
    if (owner == me) return 0;
    if (owner == -me)
      give_way();
    else if (word_swap(&p->owner, owner, -me)) {
      const int failed = start(p);
      word_set(&p->owner, failed ? 0 : me);
      if (failed) return 1;
    }
  }
}

static int run_together(const aotc_threads *threads, aotc_job_fn job,
                        void *argument) {
  pool *const p = (pool *)threads->state;
  if (own(p) != 0) return AOTC_ERROR_THREADS;
  lock_take(&p->turn);
  p->job = job;
  p->argument = argument;
  word_add(&p->runs, 1);
  wake_sleepers(&p->workers[0]);
  job(argument, &p->workers[0].team);
  meet(&p->workers[0]); /* no thread executes the job any more */
  lock_give(&p->turn);
  return AOTC_OK;
}

int aotc_pool_create(int32_t parts, const aotc_threads **threads) {
  pool *p;
  if (threads == NULL) return AOTC_ERROR_NULL_ARGUMENT;
  *threads = NULL;
  if (parts < 1 || parts > AOTC_MAX_THREADS) return AOTC_ERROR_THREADS;
  p = (pool *)calloc(1, sizeof *p);
  if (p == NULL) return AOTC_ERROR_THREADS;
  p->threads.parts = parts;
  p->threads.run = run_together;
  p->threads.state = p;
  /* polling would keep others from working where processors are few */
  p->max_polls = parts <= processors() ? MAX_POLLS : 0;
  if (watch_forks() != 0 || own(p) != 0) {
    free(p);
    return AOTC_ERROR_THREADS;
  }
  *threads = &p->threads;
  return AOTC_OK;
}

void aotc_pool_destroy(const aotc_threads *threads) {
  pool *p;
  if (threads == NULL) return;
  p = (pool *)threads->state;
  if (word_get(&p->owner) == process()) end_workers(p);
  free(p);
}

#endif
