/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake driver of CUDA is made of, beside the runtime's declarations.
 */
#ifndef AOTC_FAKE_CUDA_H
#define AOTC_FAKE_CUDA_H

#include "aotc_cuda_driver.h"
#include "aotc_emulator.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

extern "C" const char *aotc_emulator_launch(const aotc_emulator::Kernel *kernel,
                                            unsigned blocks, unsigned threads,
                                            size_t shared_bytes,
                                            void *const *arguments,
                                            int backwards, unsigned hosts);

#if !defined(CUDA_VERSION)
typedef int CUstreamCaptureMode;
#endif

/* Beyond those that the runtime knows. */
#define CAPTURE_RESULTS(R)                                                     \
  R(ERROR_INVALID_HANDLE, 400)                                                 \
  R(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                                     \
  R(ERROR_STREAM_CAPTURE_INVALIDATED, 901)                                     \
  R(ERROR_STREAM_CAPTURE_IMPLICIT, 906)
enum {
#define VALUE(name, value) name = value,
  CAPTURE_RESULTS(VALUE)
#undef VALUE
};

struct CUctx_st {
  int retained = 0;
  bool destroyed = false; /* by a reset, until somebody retains it anew */
};
struct CUmod_st {
  void *library;
};
struct CUfunc_st {
  const aotc_emulator::Kernel *kernel;
  std::string name;
  unsigned shared_bytes;
};
struct CUevent_st {
  long asked = 0, reached = 0;
  double seconds = 0; /* when */
};

namespace fake {

constexpr unsigned max_threads = 1024;
constexpr unsigned shared_bytes = 48 << 10;
constexpr unsigned shared_bytes_on_request = 163 << 10;

/* A number that the environment gives. */
long setting(const char *name, long otherwise);

/* Room for an allocation, which ends where the pages do. */
struct Allocation {
  unsigned char *pages;
  size_t page_bytes, bytes;
  unsigned long long number; /* which no other ever has */
};

/* One launch, with the values that its arguments have when it is asked for. */
struct Launch {
  CUfunction function;
  unsigned blocks, threads, shared_bytes;
  std::vector<std::vector<unsigned char>> values;
};

/* What a stream does next: work, or a mark that others wait for. */
struct Work {
  std::function<int()> run{};
  CUevent awaited = nullptr, reached = nullptr;
  long number = 0; /* of the event's recordings */
};

} // namespace fake

struct CUstream_st {
  std::deque<fake::Work> waiting{};
};

namespace fake {

/* The device.  The lock is held while its functions are called. */
struct Device {
  std::recursive_mutex lock{};
  std::map<CUdeviceptr, Allocation> memory{};
  std::vector<Allocation> forgotten{}; /* what resets have freed */
  unsigned long long allocations = 0;
  size_t memory_bytes = 0;
  std::vector<CUstream> streams{};
  CUstream_st default_stream{};
  CUctx_st context{};
  CUstream captured = nullptr; /* the stream that becomes a graph ... */
  CUgraph capture = nullptr;   /* ... which is this one ... */
  bool spoilt = false;         /* ... or none any more */
  int error = SUCCESS;         /* stays */

  int allocate(CUdeviceptr *pointer, size_t bytes);
  int release(CUdeviceptr pointer);
  /* The memory of the device that a pointer is to, or to the end of; else
   * nullptr. */
  const Allocation *find(CUdeviceptr pointer) const;
  /* Frees and forgets all that there is. */
  void reset();

  int run(const Launch &launch);
  /* All work of a stream, and of others only what it waits for. */
  int finish(CUstream stream);
  int finish_all();

private:
  void give_access(int access);
  int fail(int value, const std::string &why);
  bool step(CUstream stream);
};

extern Device device;

} // namespace fake

#endif
