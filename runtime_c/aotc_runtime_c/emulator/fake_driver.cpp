/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcuda.so.1 without a GPU: one device, whose work this machine does.
 *
 * An image of code is a shared library of kernels (aotc_emulator.h); all else
 * is as with the real driver, and where that leaves something open, what goes
 * wrong most easily is done:
 *
 *   - work is put off until somebody waits for it;
 *   - of the nodes of a graph that may run, the last goes first, and of the
 *     streams the one that is waited for goes before others;
 *   - memory of the device has no access but while the device works, lies
 *     against the end of a page, is NaN (bytes 0xff) at first, and is gone for
 *     good when it is freed;
 *   - arguments that point to no such memory are an error that stays, as are
 *     threads that do not meet;
 *   - what a reset of the device has freed has its addresses given to others,
 *     and who still names a stream of before is stopped.
 *
 * $AOTC_FAKE_DEVICES (1), $AOTC_FAKE_ARCH (80), $AOTC_FAKE_VERSION (12040) and
 * $AOTC_FAKE_MEMORY (bytes) make it another device or driver, and
 * $AOTC_EMULATOR_ORDER=backwards runs blocks and threads from the last to the
 * first.
 */
#include "fake_cuda.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

using fake::device;
using fake::Launch;
using fake::setting;
using fake::Work;

struct CUgraphNode_st {
  Launch launch;
  std::vector<CUgraphNode> before;
};
struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};
struct CUgraphExec_st {
  std::vector<std::pair<CUgraphNode, Launch>> order;
};

namespace {

using Guard = std::lock_guard<std::recursive_mutex>;

/* How often the thread has entered the context. */
thread_local int entered;

CUresult result(int value) {
  return CUresult(value);
}

/* What stands against a call: an error before, a thread without a context. */
int obstacle() {
  if (device.error != SUCCESS) return device.error;
  if (device.context.destroyed) return ERROR_CONTEXT_IS_DESTROYED;
  return entered > 0 ? SUCCESS : ERROR_INVALID_CONTEXT;
}

/* 1 and 2 are the legacy stream and that of the thread. */
CUstream stream_of(CUstream stream) {
  if (uintptr_t(stream) <= 2) return &device.default_stream;
  const auto &known = device.streams;
  if (std::find(known.begin(), known.end(), stream) != known.end())
    return stream;
  fprintf(stderr, "fake CUDA driver: there is no such stream\n");
  abort();
}

/* What a call does while nobody else calls the device ... */
template <class Action> CUresult alone(Action action) {
  const Guard guard(device.lock);
  return CUresult(action());
}

/* ... and where nothing stands against it. */
template <class Action> CUresult inside(Action action) {
  return alone([&] {
    const int problem = obstacle();
    return problem != SUCCESS ? problem : int(action());
  });
}

CUresult put(CUstream stream, std::function<int()> run) {
  return inside([&] {
    stream_of(stream)->waiting.push_back({std::move(run), nullptr, nullptr, 0});
    return SUCCESS;
  });
}

/* A launch as the driver keeps it; false for one that no device takes. */
bool make_launch(Launch &made, const CUDA_KERNEL_NODE_PARAMS_v2 &given) {
  const unsigned blocks = given.gridDimX, threads = given.blockDimX;
  const bool fits = blocks > 0 && threads > 0 && threads <= fake::max_threads &&
                    blocks <= INT_MAX &&
                    given.sharedMemBytes <= given.func->shared_bytes;
  if (!fits ||
      given.gridDimY * given.gridDimZ * given.blockDimY * given.blockDimZ != 1)
    return false;
  made = {given.func, blocks, threads, given.sharedMemBytes, {}};
  const aotc_emulator::Kernel &kernel = *given.func->kernel;
  for (unsigned k = 0; k < kernel.parameters; ++k) {
    const auto *const begin =
        static_cast<const unsigned char *>(given.kernelParams[k]);
    made.values.emplace_back(begin, begin + kernel.bytes[k]);
  }
  return true;
}

/* --- code */

/* The bytes of a library for this machine, 0 for any other image. */
size_t library_bytes(const void *image) {
  ElfW(Ehdr) head, mine;
  memcpy(&head, image, sizeof head);
  if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return 0;
  Dl_info found;
  dladdr(reinterpret_cast<void *>(&library_bytes), &found);
  memcpy(&mine, found.dli_fbase, sizeof mine);
  if (head.e_machine != mine.e_machine) return 0;
  return head.e_shoff + size_t(head.e_shnum) * head.e_shentsize;
}

/* The system loads libraries from files.  A library's stays open: under the
 * name of its number dlopen would give that library again, not the next. */
void *load_library(const void *image, size_t bytes) {
  const int file = memfd_create("kernels", MFD_CLOEXEC);
  void *library = nullptr;
  if (file >= 0 && write(file, image, bytes) == ssize_t(bytes)) {
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fprintf(stderr, "%s\n", dlerror());
  }
  if (file >= 0 && library == nullptr) close(file);
  return library;
}

} // namespace

#pragma GCC visibility push(default)
extern "C" {

/* --- the device */

CUresult cuInit(unsigned int) {
  return result(setting("AOTC_FAKE_DEVICES", 1) > 0 ? SUCCESS
                                                    : ERROR_NO_DEVICE);
}

CUresult cuDriverGetVersion(int *version) {
  *version = int(setting("AOTC_FAKE_VERSION", 12040));
  return result(SUCCESS);
}

CUresult cuGetErrorName(CUresult error, const char **name) {
  switch (int(error)) {
#define NAME(name_, value)                                                     \
  case value: *name = "CUDA_" #name_; return result(SUCCESS);
    DRIVER_RESULTS(NAME)
#undef NAME
  default: *name = nullptr; return result(ERROR_INVALID_VALUE);
  }
}

CUresult cuDeviceGetCount(int *count) {
  *count = int(setting("AOTC_FAKE_DEVICES", 1));
  return result(SUCCESS);
}

CUresult cuDeviceGet(CUdevice *found, int number) {
  *found = number;
  const bool exists = number >= 0 && number < setting("AOTC_FAKE_DEVICES", 1);
  return result(exists ? SUCCESS : ERROR_INVALID_DEVICE);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
                              CUdevice) {
  const int arch = int(setting("AOTC_FAKE_ARCH", 80));
  *value = int(attribute) == CAPABILITY_MAJOR   ? arch / 10
           : int(attribute) == CAPABILITY_MINOR ? arch % 10
                                                : 1000; /* some figure */
  return result(SUCCESS);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) {
  return alone([=] {
    *context = &device.context;
    ++device.context.retained;
    device.context.destroyed = false;
    return device.error;
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  return alone([] {
    if (device.context.retained == 0) return ERROR_INVALID_CONTEXT;
    --device.context.retained;
    return SUCCESS;
  });
}

/* The context stays retained, as the driver's documentation has it. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice) {
  return alone([] { return device.reset(), SUCCESS; });
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return alone([=] {
    if (context != &device.context || context->retained == 0)
      return ERROR_INVALID_CONTEXT;
    if (context->destroyed) return ERROR_CONTEXT_IS_DESTROYED;
    ++entered;
    return SUCCESS;
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  if (entered == 0) return result(ERROR_INVALID_CONTEXT);
  --entered;
  *context = &device.context;
  return result(SUCCESS);
}

CUresult cuCtxSynchronize(void) {
  return alone([] { return device.finish_all(); });
}

/* --- code */

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  return inside([=] {
    const size_t bytes = library_bytes(image);
    if (bytes == 0) return ERROR_NO_BINARY_FOR_GPU;
    void *const library = load_library(image, bytes);
    if (library == nullptr) return ERROR_INVALID_IMAGE;
    *module = new CUmod_st{library};
    return SUCCESS;
  });
}

/* Libraries stay, as work may be put off that runs what is in them. */
CUresult cuModuleUnload(CUmodule module) {
  return alone([=] {
    delete module;
    return device.finish_all();
  });
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module,
                             const char *name) {
  const std::string symbol = std::string(name) + "_emulated";
  const void *const kernel = dlsym(module->library, symbol.c_str());
  if (kernel == nullptr) return result(ERROR_NOT_FOUND);
  *function = new CUfunc_st{static_cast<const aotc_emulator::Kernel *>(kernel),
                            name, fake::shared_bytes};
  return result(SUCCESS);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute,
                            int value) {
  if (int(attribute) != DYNAMIC_SHARED_BYTES || value < 0 ||
      unsigned(value) > fake::shared_bytes_on_request)
    return result(ERROR_INVALID_VALUE);
  function->shared_bytes = std::max(fake::shared_bytes, unsigned(value));
  return result(SUCCESS);
}

/* --- memory */

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
  return inside([=] {
    return bytes == 0 ? int(ERROR_INVALID_VALUE)
                      : device.allocate(pointer, bytes);
  });
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return inside([=] { return device.release(pointer); });
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                               CUdeviceptr pointer) {
  const Guard guard(device.lock);
  const fake::Allocation *const found = device.find(pointer);
  const int wanted = int(attribute);
  const unsigned type = MEMORY_TYPE_DEVICE, ordinal = 0;
  if (found == nullptr) return result(ERROR_INVALID_VALUE);
  if (wanted == BUFFER_ID)
    memcpy(value, &found->number, sizeof found->number);
  else if (wanted == MEMORY_TYPE)
    memcpy(value, &type, sizeof type);
  else if (wanted == DEVICE_ORDINAL)
    memcpy(value, &ordinal, sizeof ordinal);
  else
    return result(ERROR_INVALID_VALUE);
  return result(SUCCESS);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                       CUstream stream) {
  void *const target = reinterpret_cast<void *>(uintptr_t(to));
  const void *const source = reinterpret_cast<void *>(uintptr_t(from));
  return put(stream, [=] { return memcpy(target, source, bytes), SUCCESS; });
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes,
                         CUstream stream) {
  void *const target = reinterpret_cast<void *>(uintptr_t(to));
  return put(stream, [=] { return memset(target, value, bytes), SUCCESS; });
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  const CUresult asked = cuMemcpyAsync(to, from, bytes, nullptr);
  return int(asked) == SUCCESS ? cuCtxSynchronize() : asked;
}

/* --- streams and events */

CUresult cuStreamCreate(CUstream *stream, unsigned int) {
  return inside([=] {
    device.streams.push_back(*stream = new CUstream_st);
    return SUCCESS;
  });
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  return alone([=] {
    const int finished = device.finish(stream_of(stream));
    auto &streams = device.streams;
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    delete stream;
    return finished;
  });
}

CUresult cuStreamSynchronize(CUstream stream) {
  return alone([=] { return device.finish(stream_of(stream)); });
}

CUresult cuEventCreate(CUevent *event, unsigned int) {
  *event = new CUevent_st;
  return result(SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent event) {
  const CUresult finished = cuCtxSynchronize(); /* all that names it */
  delete event;
  return finished;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return alone([=] {
    stream_of(stream)->waiting.push_back({{}, nullptr, event, ++event->asked});
    return SUCCESS;
  });
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
  *milliseconds = float(1e3 * (end->seconds - begin->seconds));
  return result(SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  return alone([=] {
    stream_of(stream)->waiting.push_back({{}, event, nullptr, event->asked});
    return SUCCESS;
  });
}

/* --- launches and graphs */

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x,
                        unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared,
                        CUstream stream, void **values, void **extra) {
  Launch launch;
  const bool made =
      make_launch(launch, {function, grid_x, grid_y, grid_z, block_x, block_y,
                           block_z, shared, values, extra, nullptr, nullptr});
  if (!made) return result(ERROR_INVALID_VALUE);
  return put(stream, [launch] { return device.run(launch); });
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int) {
  *graph = new CUgraph_st;
  return result(SUCCESS);
}

CUresult cuGraphDestroy(CUgraph graph) {
  delete graph;
  return result(SUCCESS);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph,
                                 const CUgraphNode *before, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS_v2 *given) {
  auto made = std::make_unique<CUgraphNode_st>();
  if (!make_launch(made->launch, *given)) return result(ERROR_INVALID_VALUE);
  made->before.assign(before, before + count);
  *node = made.get();
  graph->nodes.push_back(std::move(made));
  return result(SUCCESS);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph,
                                     unsigned long long) {
  auto exec = std::make_unique<CUgraphExec_st>();
  std::set<CUgraphNode> done;
  const auto is_done = [&](CUgraphNode one) { return done.count(one) != 0; };
  const auto may_run = [&](const auto &node) {
    const auto &before = node->before;
    return !is_done(node.get()) &&
           std::all_of(before.begin(), before.end(), is_done);
  };
  const auto &nodes = graph->nodes; /* each behind those that it waits for */
  while (done.size() < nodes.size()) {
    const auto &last = *std::find_if(nodes.rbegin(), nodes.rend(), may_run);
    done.insert(last.get());
    exec->order.emplace_back(last.get(), last->launch);
  }
  *made = exec.release();
  return result(SUCCESS);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  const CUresult finished = cuCtxSynchronize();
  delete exec;
  return finished;
}

CUresult
cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                  const CUDA_KERNEL_NODE_PARAMS_v2 *given) {
  return alone([=] {
    for (auto &[known, launch] : exec->order)
      if (known == node && make_launch(launch, *given)) return SUCCESS;
    return ERROR_INVALID_VALUE;
  });
}

CUresult cuGraphUpload(CUgraphExec, CUstream) {
  return result(SUCCESS);
}

/* Nodes that change afterwards are those of later launches. */
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return put(stream, [order = exec->order] {
    for (const auto &one : order)
      if (device.run(one.second) != SUCCESS) break;
    return device.error;
  });
}

} // extern "C"
#pragma GCC visibility pop
