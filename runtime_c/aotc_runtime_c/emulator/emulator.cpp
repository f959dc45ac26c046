/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs kernels that are compiled as C++, on the threads of the host.
 *
 * A block belongs to one thread of the host, from its begin to its end.  Of
 * each warp the first thread runs alone; if it ends without having met others,
 * the rest of the warp runs in a plain loop: in a correct program either all
 * threads of a warp meet others or none does.  If it waits, all threads of its
 * warp are fibers, which run one after the other up to the next meeting, all
 * warps up to the next barrier of the block.  In which order they do is the
 * caller's choice: what lacks a barrier gives other results in one of two.
 */
#include "aotc_emulator.h"

#include <link.h>
#include <stdio.h>
#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#if !defined(__x86_64__) || defined(AOTC_EMULATOR_UCONTEXT)
#include <ucontext.h>
#define SWITCH_BY_UCONTEXT
#endif

using aotc_emulator::Kernel;
using aotc_emulator::Lanes;
using aotc_emulator::Meeting;
using aotc_emulator::Threads;

namespace {

constexpr unsigned warp_size = 32;
constexpr unsigned max_threads = 1024;
constexpr size_t stack_bytes = size_t(1) << 20;
constexpr size_t page_bytes = 4096;
constexpr int poison = 0xff;

/* --- two stacks of one thread */

#if defined(SWITCH_BY_UCONTEXT)

using Context = ucontext_t;

void aotc_emulator_switch(Context &from, Context &to) {
  swapcontext(&from, &to);
}

void prepare(Context &context, unsigned char *stack, size_t bytes,
             void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = bytes;
  makecontext(&context, entry, 0);
}

#else

using Context = void *; /* the stack pointer; all else lies on the stack */

/* swapcontext saves the mask of signals too, by two calls of the system. */
extern "C" void aotc_emulator_switch(Context &from, Context &to)
    __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".type aotc_emulator_switch, @function\n"
        ".hidden aotc_emulator_switch\n"
        ".globl aotc_emulator_switch\n"
        "aotc_emulator_switch:\n"
        "  push %rbp\n  push %rbx\n  push %r12\n"
        "  push %r13\n  push %r14\n  push %r15\n"
        "  mov %rsp, (%rdi)\n"
        "  mov (%rsi), %rsp\n"
        "  pop %r15\n  pop %r14\n  pop %r13\n"
        "  pop %r12\n  pop %rbx\n  pop %rbp\n"
        "  ret\n"
        ".size aotc_emulator_switch, . - aotc_emulator_switch\n");

/* As if `entry` had been called, with a stack that is aligned as the ABI says.
 */
void prepare(Context &context, unsigned char *stack, size_t bytes,
             void (*entry)()) {
  void **top = reinterpret_cast<void **>(stack + bytes) - 3;
  *top = nullptr; /* nobody to return to */
  *--top = reinterpret_cast<void *>(entry);
  for (int k = 0; k < 6; ++k)
    *--top = nullptr;
  context = top;
}

#endif

enum class State { fresh, ready, at_barrier, at_warp, done };

struct Copy {
  void *to;
  const void *from;
  size_t bytes;
};

struct Fiber {
  unsigned char *stack = nullptr;
  Context context{};
  State state = State::fresh;
  unsigned exchanges = 0;
  Threads part{};
  std::vector<std::vector<Copy>> copies; /* groups that have not landed */
};

/* Everything of a launch but who runs which block. */
struct Launch {
  const Kernel &kernel;
  void *const *arguments;
  unsigned blocks, threads;
  size_t shared_bytes;
  bool backwards;
  std::atomic<unsigned> next{0};
  std::atomic<bool> failed{false};
  std::mutex lock{};
  std::string problem{};

  void fail(const std::string &why) {
    const std::lock_guard<std::mutex> guard(lock);
    if (!failed.exchange(true)) problem = why;
  }
};

/* Where the static shared arrays of a library lie in this thread. */
struct Statics {
  const void *code;
  unsigned char *begin;
  size_t bytes;
};

int find_statics(dl_phdr_info *library, size_t, void *argument) {
  Statics &wanted = *static_cast<Statics *>(argument);
  const auto code = reinterpret_cast<uintptr_t>(wanted.code);
  bool holds = false;
  size_t bytes = 0;
  for (int k = 0; k < library->dlpi_phnum; ++k) {
    const auto &part = library->dlpi_phdr[k];
    const uintptr_t begin = library->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD)
      holds = holds || (code >= begin && code - begin < part.p_memsz);
    else if (part.p_type == PT_TLS)
      bytes = part.p_memsz;
  }
  if (!holds) return 0;
  wanted.begin = static_cast<unsigned char *>(library->dlpi_tls_data);
  wanted.bytes = wanted.begin == nullptr ? 0 : bytes;
  return 1;
}

/* One thread of the host, with the stacks of a block's threads. */
class Worker {
public:
  void work(Launch &launch);
  void barrier(unsigned thread);
  const Lanes *exchange(unsigned thread, unsigned mask, const void *value,
                        size_t bytes);
  Fiber &fiber(unsigned thread) {
    return fibers_[thread];
  }
  /* Where fibers begin. */
  static void enter();
  void fail(const char *why) {
    launch_->fail(why);
  }

private:
  void run_block(unsigned block);
  void run_warp(unsigned warp);
  bool step_warp(unsigned first, unsigned count);
  void resume(unsigned thread, unsigned count);
  void wait(unsigned thread, State state);
  void poison_shared();
  bool barrier_is_complete();

  Launch *launch_ = nullptr;
  unsigned block_ = 0;
  unsigned current_ = 0;
  Context main_{};
  Fiber fibers_[max_threads];
  Lanes lanes_[max_threads / warp_size][2];
  std::vector<unsigned char> shared_;
  Statics statics_{};
};

thread_local Worker *worker;

void Worker::enter() {
  const unsigned thread = worker->current_;
  const Launch &launch = *worker->launch_;
  launch.kernel.run(worker->fibers_[thread].part, launch.arguments);
  worker->wait(thread, State::done); /* never resumed */
}

/* Leaves the stack of the fiber that runs until `resume` comes back to it. */
void Worker::wait(unsigned thread, State state) {
  fibers_[thread].state = state;
  aotc_emulator_switch(fibers_[thread].context, main_);
}

/* Runs a thread up to its next meeting, or it and those behind it in a loop. */
void Worker::resume(unsigned thread, unsigned count) {
  Fiber &fiber = fibers_[thread];
  if (fiber.state == State::fresh) {
    if (fiber.stack == nullptr) {
      /* The page below it faults when a thread needs more. */
      void *made = mmap(nullptr, page_bytes + stack_bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      fiber.stack = static_cast<unsigned char *>(made) + page_bytes;
      mprotect(fiber.stack, stack_bytes, PROT_READ | PROT_WRITE);
    }
    /* At one place in all pages, they would drive each other from the cache. */
    const size_t bytes = stack_bytes - thread % 32 * 128;
    prepare(fiber.context, fiber.stack, bytes, enter);
    fiber.part = {block_,        launch_->blocks, launch_->threads,
                  thread,        count,           launch_->backwards ? -1 : 1,
                  shared_.data()};
  }
  fiber.state = State::ready;
  current_ = thread;
  aotc_emulator_switch(main_, fiber.context);
}

/* A thread that runs in a loop with others cannot wait for them. */
void Worker::barrier(unsigned thread) {
  if (fibers_[current_].part.count != 1)
    launch_->fail("thread " + std::to_string(thread) +
                  " comes to a barrier that others of its warp do not");
  wait(current_, State::at_barrier);
}

const Lanes *Worker::exchange(unsigned thread, unsigned mask, const void *value,
                              size_t bytes) {
  const unsigned lane = thread % warp_size;
  Fiber &fiber = fibers_[current_];
  if (mask != ~0u || thread - lane + warp_size > launch_->threads)
    launch_->fail("an instruction of a warp is not for 32 threads");
  else if (fiber.part.count != 1)
    launch_->fail("thread " + std::to_string(thread) +
                  " comes to an instruction that others of its warp do not");
  /* Two in turn: a lane may give again before others have looked. */
  Lanes &lanes = lanes_[thread / warp_size][fiber.exchanges++ % 2];
  memcpy(lanes.value[lane], value, bytes);
  wait(current_, State::at_warp);
  return &lanes;
}

/* Runs the threads of a warp up to where each waits; whether to go on. */
bool Worker::step_warp(unsigned first, unsigned count) {
  bool at_warp = false, elsewhere = false;
  for (unsigned k = 0; k < count; ++k) {
    const unsigned thread = launch_->backwards ? first - k : first + k;
    Fiber &fiber = fibers_[thread];
    const bool fresh = fiber.state == State::fresh;
    if (fresh || fiber.state == State::ready) resume(thread, 1);
    if (launch_->failed) return false;
    if (k == 0 && fresh && fiber.state == State::done && count > 1) {
      const unsigned second = launch_->backwards ? first - 1 : first + 1;
      resume(second, count - 1);
      for (unsigned j = 1; j < count; ++j)
        fibers_[launch_->backwards ? first - j : first + j].state = State::done;
      return false;
    }
    (fiber.state == State::at_warp ? at_warp : elsewhere) = true;
  }
  if (at_warp && elsewhere)
    launch_->fail("an instruction of a warp is not reached by all its threads");
  return at_warp && !elsewhere;
}

void Worker::run_warp(unsigned warp) {
  const unsigned begin = warp * warp_size;
  const unsigned count = std::min(warp_size, launch_->threads - begin);
  const unsigned first = launch_->backwards ? begin + count - 1 : begin;
  while (step_warp(first, count))
    for (unsigned k = begin; k < begin + count; ++k)
      fibers_[k].state = State::ready;
}

/* Whether all threads wait, so that they may go on; they are ready then. */
bool Worker::barrier_is_complete() {
  unsigned waiting = 0;
  for (unsigned k = 0; k < launch_->threads; ++k)
    waiting += fibers_[k].state == State::at_barrier;
  if (waiting != 0 && waiting != launch_->threads)
    launch_->fail(std::to_string(waiting) + " of " +
                  std::to_string(launch_->threads) +
                  " threads come to a barrier");
  if (waiting == 0 || launch_->failed) return false;
  for (unsigned k = 0; k < launch_->threads; ++k)
    fibers_[k].state = State::ready;
  return true;
}

void Worker::run_block(unsigned block) {
  const unsigned warps = (launch_->threads + warp_size - 1) / warp_size;
  block_ = block;
  for (unsigned k = 0; k < launch_->threads; ++k) {
    fibers_[k].state = State::fresh;
    fibers_[k].exchanges = 0;
    fibers_[k].copies.assign(1, {});
  }
  bool met = false;
  do {
    for (unsigned k = 0; k < warps && !launch_->failed; ++k)
      run_warp(launch_->backwards ? warps - 1 - k : k);
  } while (!launch_->failed && barrier_is_complete() && (met = true));
  if (met) poison_shared(); /* who meets nobody shares nothing */
}

void Worker::poison_shared() {
  memset(shared_.data(), poison, shared_.size());
  if (statics_.bytes != 0) memset(statics_.begin, poison, statics_.bytes);
}

void Worker::work(Launch &launch) {
  worker = this;
  launch_ = &launch;
  shared_.resize(launch.shared_bytes);
  launch.kernel.memory(); /* the system gives memory to threads that ask */
  statics_ = {reinterpret_cast<const void *>(launch.kernel.run), nullptr, 0};
  dl_iterate_phdr(find_statics, &statics_);
  poison_shared();
  for (unsigned k; !launch.failed && (k = launch.next++) < launch.blocks;)
    run_block(launch.backwards ? launch.blocks - 1 - k : k);
}

/* --- what kernels call */

const Meeting meeting = {
    [](unsigned thread) { worker->barrier(thread); },
    [](unsigned thread, unsigned mask, const void *value, size_t bytes) {
      return worker->exchange(thread, mask, value, bytes);
    },
    [](unsigned thread, void *to, const void *from, size_t bytes) {
      memset(to, poison, bytes);
      worker->fiber(thread).copies.back().push_back({to, from, bytes});
    },
    [](unsigned thread, unsigned groups) {
      auto &copies = worker->fiber(thread).copies;
      for (; copies.size() > groups; copies.erase(copies.begin()))
        for (const Copy &copy : copies.front())
          memcpy(copy.to, copy.from, copy.bytes);
      copies.emplace_back();
    },
    [](const char *why) { worker->fail(why); },
};

/* --- threads of the host */

std::mutex idle_lock;
std::vector<std::unique_ptr<Worker>> idle; /* with their stacks */

std::unique_ptr<Worker> take_worker() {
  const std::lock_guard<std::mutex> guard(idle_lock);
  if (idle.empty()) return std::make_unique<Worker>();
  auto found = std::move(idle.back());
  idle.pop_back();
  return found;
}

void work_on(Launch &launch) {
  auto taken = take_worker();
  taken->work(launch);
  const std::lock_guard<std::mutex> guard(idle_lock);
  idle.push_back(std::move(taken));
}

} // namespace

/*
 * Runs a kernel to its end, blocks on `hosts` threads of the host; arguments
 * are pointers to the kernel's parameters.  Null, or what is wrong: threads
 * that do not meet, a size beyond the limits.
 */
extern "C" __attribute__((visibility("default"))) const char *
aotc_emulator_launch(const Kernel *kernel, unsigned blocks, unsigned threads,
                     size_t shared_bytes, void *const *arguments, int backwards,
                     unsigned hosts) {
  static thread_local std::string problem;
  if (blocks == 0 || threads == 0 || threads > max_threads)
    return "a grid has blocks, and a block 1 to 1024 threads";
  *kernel->meeting = &meeting;
  Launch launch{*kernel, arguments, blocks, threads, shared_bytes, !!backwards};
  std::vector<std::thread> helpers;
  for (unsigned k = 1; k < hosts && k < blocks; ++k)
    helpers.emplace_back(work_on, std::ref(launch));
  work_on(launch);
  for (std::thread &helper : helpers)
    helper.join();
  problem = launch.problem;
  return launch.failed ? problem.c_str() : nullptr;
}
