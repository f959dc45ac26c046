/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA C on the CPU: behind this header, a text of kernels is C++17.
 *
 *   #include "aotc_emulator.h"
 *   extern "C" __global__ void __launch_bounds__(64) twice(float *x) {
 *     x[blockIdx.x * 64 + threadIdx.x] *= 2.0f;
 *   }
 *   AOTC_EMULATE(twice)
 *
 * The last line defines twice_emulated, an aotc_emulator::Kernel, which
 * aotc_emulator_launch (emulator.cpp) runs block by block.  A kernel is
 * inlined into a loop over threads, so that the compiler sees plain C; a
 * thread that comes to a barrier or an instruction of its warp is a fiber.
 *
 * Blocks and threads have one dimension.  Shared memory is __shared__ arrays
 * or, where its size is an argument of the launch, what aotc_shared points to;
 * all of it is NaN (bytes 0xff) when a block begins.
 */
#ifndef AOTC_EMULATOR_H
#define AOTC_EMULATOR_H

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#define __global__ inline __attribute__((always_inline))
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static thread_local __attribute__((aligned(16)))

namespace aotc_emulator {

struct Index {
  unsigned x, y, z;
};

/* What each lane of a warp has given. */
struct alignas(8) Lanes {
  unsigned char value[32][24];
};

/* Where threads of a block meet; `thread` is the one that calls. */
struct Meeting {
  void (*barrier)(unsigned thread);
  const Lanes *(*exchange)(unsigned thread, unsigned mask, const void *value,
                           size_t bytes);
  void (*copy)(unsigned thread, void *to, const void *from, size_t bytes);
  void (*wait)(unsigned thread, unsigned groups);
  void (*fail)(const char *why);
};

/* Threads of one block: first, first + step, ..., `count` of them. */
struct Threads {
  unsigned block, blocks, threads;
  unsigned first, count;
  int step;
  unsigned char *shared;
};

/* What AOTC_EMULATE tells of a kernel. */
struct Kernel {
  void (*run)(const Threads &threads, void *const *arguments);
  void *(*memory)(); /* some variable of the calling thread in this library */
  const Meeting **meeting;
  unsigned parameters;
  const unsigned *bytes; /* of each parameter */
  const bool *pointer;   /* whether it is one */
};

} // namespace aotc_emulator

/*
 * All of these are static, because a process has several libraries of kernels,
 * and because the compiler keeps a variable whose address nobody has in a
 * register while it writes through a kernel's pointers.
 */
static thread_local aotc_emulator::Index threadIdx, blockIdx, blockDim, gridDim;
static thread_local unsigned char *aotc_shared;

namespace aotc_emulator {

static const Meeting *meeting;
static thread_local char any;

static inline void *memory() {
  return &any;
}

template <auto kernel> struct Emulated;

template <class... Type, void (*kernel)(Type...)> struct Emulated<kernel> {
  /* One element more, as there are no arrays of none. */
  static constexpr unsigned bytes[] = {unsigned(sizeof(Type))..., 0};
  static constexpr bool pointer[] = {std::is_pointer_v<Type>..., false};

  static void loop(const Threads &part, Type... values) {
    gridDim = {part.blocks, 1, 1};
    blockDim = {part.threads, 1, 1};
    blockIdx = {part.block, 0, 0};
    aotc_shared = part.shared;
    unsigned thread = part.first;
    for (unsigned k = 0; k < part.count; ++k, thread += unsigned(part.step)) {
      threadIdx = {thread, 0, 0};
      kernel(values...);
    }
  }

  template <size_t... k>
  static void unpack(const Threads &part, void *const *arguments,
                     std::index_sequence<k...>) {
    loop(part, *static_cast<Type *>(arguments[k])...);
  }

  static void run(const Threads &part, void *const *arguments) {
    unpack(part, arguments, std::index_sequence_for<Type...>());
  }
};

/* Other threads run until all have come; then this one is itself again. */
static inline void barrier() {
  const Index me = threadIdx;
  meeting->barrier(me.x);
  threadIdx = me;
}

/* What all lanes give, which is the next one's to change. */
template <class Type>
inline const Lanes *exchange(unsigned mask, const Type &value) {
  static_assert(sizeof value <= sizeof Lanes().value[0], "a few registers");
  const Index me = threadIdx;
  const Lanes *found = meeting->exchange(me.x, mask, &value, sizeof value);
  threadIdx = me;
  return found;
}

/* What a device stops at, too. */
static inline void require_aligned(uintptr_t address, size_t bytes) {
  if (address % bytes != 0)
    meeting->fail("an access of several elements does not begin at a multiple "
                  "of their bytes");
}

/* Numbers by their bits. */
static inline float of_float32(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline float of_float16(unsigned bits) {
  uint32_t wide = (bits & 0x7fff) << 13;
  if (wide >= 0x0f800000) wide |= 0x7f800000; /* infinity, or no number */
  float value = of_float32(wide);
  if (wide < 0x0f800000) value *= 0x1p112f;
  return bits & 0x8000 ? -value : value;
}
static inline float of_bfloat16(unsigned bits) {
  return of_float32(bits << 16);
}

/* What the lane `from` gives; `value` itself where there is no such lane. */
template <class Type>
inline Type shuffle(unsigned mask, Type value, unsigned from) {
  const Lanes *lanes = exchange(mask, value);
  if (from < 32) memcpy(&value, lanes->value[from], sizeof value);
  return value;
}

} // namespace aotc_emulator

#define AOTC_EMULATE(name)                                                     \
  extern "C" __attribute__((visibility("default")))                            \
  const aotc_emulator::Kernel name##_emulated = {                              \
      aotc_emulator::Emulated<name>::run,                                      \
      aotc_emulator::memory,                                                   \
      &aotc_emulator::meeting,                                                 \
      sizeof aotc_emulator::Emulated<name>::bytes / sizeof(unsigned) - 1,      \
      aotc_emulator::Emulated<name>::bytes,                                    \
      aotc_emulator::Emulated<name>::pointer,                                  \
  };

/* --- what CUDA C has beyond C++ */

static inline void __syncthreads() {
  aotc_emulator::barrier();
}

template <class Type>
inline Type __shfl_xor_sync(unsigned mask, Type value, int bits) {
  const unsigned from = threadIdx.x % 32 ^ unsigned(bits);
  return aotc_emulator::shuffle(mask, value, from);
}
template <class Type>
inline Type __shfl_down_sync(unsigned mask, Type value, unsigned by) {
  return aotc_emulator::shuffle(mask, value, threadIdx.x % 32 + by);
}

/* Whether this block is the last of some to arrive, which begin anew then. */
static inline bool aotc_arrive(int32_t &count, int32_t blocks) {
  static thread_local bool last;
  aotc_emulator::barrier();
  if (threadIdx.x == 0) {
    last = __atomic_add_fetch(&count, 1, __ATOMIC_ACQ_REL) == blocks;
    if (last) count = 0;
  }
  aotc_emulator::barrier();
  return last;
}

/* --- what the text calls instead of instructions that C++ has no name for */

/* Some elements at once, from a multiple of their bytes to another one. */
template <int lanes, class Type>
inline void aotc_move(Type *to, const Type *from) {
  constexpr size_t bytes = lanes * sizeof(Type);
  aotc_emulator::require_aligned(uintptr_t(to) | uintptr_t(from), bytes);
  memcpy(to, from, bytes);
}

/* Asynchronous copies: NaN (bytes 0xff) until the thread has waited. */
template <int bytes>
inline void aotc_copy(void *to, const void *from, bool inside = true) {
  static const unsigned char zeros[bytes] = {0};
  aotc_emulator::require_aligned(uintptr_t(to) | uintptr_t(from), bytes);
  aotc_emulator::meeting->copy(threadIdx.x, to, inside ? from : zeros, bytes);
}
/* Ends a group of copies; waits until all but the latest ones have landed. */
template <int groups> inline void aotc_wait() {
  aotc_emulator::meeting->wait(threadIdx.x, unsigned(groups));
}

#endif
