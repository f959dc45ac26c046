/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake driver of CUDA is made of: its declarations, and its device. */
#ifndef AOTC_FAKE_CUDA_H
#define AOTC_FAKE_CUDA_H

#include "aotc_emulator.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

/* Where cuda.h is included before, its declarations are taken, so that a test
 * sees whether these are like them. */
#if !defined(CUDA_VERSION)
typedef int CUresult, CUdevice;
typedef int CUdevice_attribute, CUfunction_attribute, CUpointer_attribute;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
  CUfunction func;
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  void **kernelParams;
  void **extra;
  CUkernel kern;
  CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;
#endif

#define ERRORS(E)                                                              \
  E(SUCCESS, 0)                                                                \
  E(ERROR_INVALID_VALUE, 1)                                                    \
  E(ERROR_OUT_OF_MEMORY, 2)                                                    \
  E(ERROR_NO_DEVICE, 100)                                                      \
  E(ERROR_INVALID_DEVICE, 101)                                                 \
  E(ERROR_INVALID_IMAGE, 200)                                                  \
  E(ERROR_INVALID_CONTEXT, 201)                                                \
  E(ERROR_NO_BINARY_FOR_GPU, 209)                                              \
  E(ERROR_NOT_FOUND, 500)                                                      \
  E(ERROR_NOT_READY, 600)                                                      \
  E(ERROR_ILLEGAL_ADDRESS, 700)                                                \
  E(ERROR_LAUNCH_FAILED, 719)

enum : int {
#define VALUE(name, value) name = value,
  ERRORS(VALUE)
#undef VALUE
  /* attributes of devices, functions and pointers */
  MAX_THREADS = 1,
  MAX_SHARED_BYTES = 8,
  PROCESSORS = 16,
  CAPABILITY_MAJOR = 75,
  CAPABILITY_MINOR = 76,
  MAX_SHARED_BYTES_ON_REQUEST = 97,
  DYNAMIC_SHARED_BYTES = 8,
  MEMORY_TYPE = 2,
  MEMORY_TYPE_DEVICE = 2
};

extern "C" const char *aotc_emulator_launch(const aotc_emulator::Kernel *kernel,
                                            unsigned blocks, unsigned threads,
                                            size_t shared_bytes,
                                            void *const *arguments,
                                            int backwards, unsigned hosts);

struct CUctx_st {
  int retained = 0;
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
};

namespace fake {

constexpr unsigned max_threads = 1024, processors = 108;
constexpr unsigned shared_bytes = 48 << 10;
constexpr unsigned shared_bytes_on_request = 163 << 10;

/* A number that the environment gives. */
long setting(const char *name, long otherwise);

/* Room for an allocation, which ends where the pages do. */
struct Allocation {
  unsigned char *pages;
  size_t page_bytes, bytes;
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
  size_t memory_bytes = 0;
  std::vector<CUstream> streams{};
  CUstream_st default_stream{};
  CUctx_st context{};
  int error = SUCCESS; /* stays */

  int allocate(CUdeviceptr *pointer, size_t bytes);
  int release(CUdeviceptr pointer);
  /* Whether a pointer is to memory of the device, or to its end. */
  bool holds(CUdeviceptr pointer) const;

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
