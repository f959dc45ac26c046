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
 *     threads that do not meet.
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
  std::vector<CUgraphNode> order;
  std::map<CUgraphNode, Launch> launches;
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
  return entered > 0 ? SUCCESS : ERROR_INVALID_CONTEXT;
}

/* 1 and 2 are the legacy stream and that of the thread. */
CUstream stream_of(CUstream stream) {
  return uintptr_t(stream) <= 2 ? &device.default_stream : stream;
}

CUresult put(CUstream stream, std::function<int()> run) {
  const Guard guard(device.lock);
  if (const int problem = obstacle()) return result(problem);
  Work work;
  work.run = std::move(run);
  stream_of(stream)->waiting.push_back(std::move(work));
  return result(SUCCESS);
}

/* A launch as the driver keeps it; false for one that no device takes. */
bool make_launch(Launch &made, CUfunction function, const unsigned (&grid)[3],
                 const unsigned (&block)[3], unsigned shared, void **values) {
  const bool fits = grid[0] > 0 && block[0] > 0 &&
                    block[0] <= fake::max_threads && grid[0] <= INT_MAX &&
                    shared <= function->shared_bytes;
  const bool flat = grid[1] * grid[2] * block[1] * block[2] == 1;
  if (!fits || !flat) return false;
  made = {function, grid[0], block[0], shared, {}};
  const aotc_emulator::Kernel &kernel = *function->kernel;
  for (unsigned k = 0; k < kernel.parameters; ++k) {
    const auto *const begin = static_cast<const unsigned char *>(values[k]);
    made.values.emplace_back(begin, begin + kernel.bytes[k]);
  }
  return true;
}

bool make_launch(Launch &made, const CUDA_KERNEL_NODE_PARAMS_v2 &given) {
  return make_launch(made, given.func,
                     {given.gridDimX, given.gridDimY, given.gridDimZ},
                     {given.blockDimX, given.blockDimY, given.blockDimZ},
                     given.sharedMemBytes, given.kernelParams);
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
    ERRORS(NAME)
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

CUresult cuDeviceGetName(char *name, int bytes, CUdevice) {
  snprintf(name, size_t(bytes), "emulated");
  return result(SUCCESS);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
                              CUdevice) {
  const int arch = int(setting("AOTC_FAKE_ARCH", 80));
  switch (int(attribute)) {
  case MAX_THREADS: *value = int(fake::max_threads); break;
  case MAX_SHARED_BYTES: *value = int(fake::shared_bytes); break;
  case PROCESSORS: *value = int(fake::processors); break;
  case CAPABILITY_MAJOR: *value = arch / 10; break;
  case CAPABILITY_MINOR: *value = arch % 10; break;
  case MAX_SHARED_BYTES_ON_REQUEST:
    *value = int(fake::shared_bytes_on_request);
    break;
  default: return result(ERROR_INVALID_VALUE);
  }
  return result(SUCCESS);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) {
  const Guard guard(device.lock);
  *context = &device.context;
  ++device.context.retained;
  return result(device.error);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  const Guard guard(device.lock);
  if (device.context.retained == 0) return result(ERROR_INVALID_CONTEXT);
  --device.context.retained;
  return result(SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  const Guard guard(device.lock);
  if (context != &device.context || context->retained == 0)
    return result(ERROR_INVALID_CONTEXT);
  ++entered;
  return result(SUCCESS);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  if (entered == 0) return result(ERROR_INVALID_CONTEXT);
  --entered;
  *context = &device.context;
  return result(SUCCESS);
}

CUresult cuCtxSynchronize(void) {
  const Guard guard(device.lock);
  return result(device.finish_all());
}

/* --- code */

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  const Guard guard(device.lock);
  if (const int problem = obstacle()) return result(problem);
  const size_t bytes = library_bytes(image);
  if (bytes == 0) return result(ERROR_NO_BINARY_FOR_GPU);
  void *const library = load_library(image, bytes);
  if (library == nullptr) return result(ERROR_INVALID_IMAGE);
  *module = new CUmod_st{library};
  return result(SUCCESS);
}

/* Libraries stay, as work may be put off that runs what is in them. */
CUresult cuModuleUnload(CUmodule module) {
  const Guard guard(device.lock);
  const CUresult finished = result(device.finish_all());
  delete module;
  return finished;
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
  const Guard guard(device.lock);
  if (const int problem = obstacle()) return result(problem);
  return result(bytes == 0 ? ERROR_INVALID_VALUE
                           : device.allocate(pointer, bytes));
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  const Guard guard(device.lock);
  if (const int problem = obstacle()) return result(problem);
  return result(device.release(pointer));
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                               CUdeviceptr pointer) {
  const Guard guard(device.lock);
  if (int(attribute) != MEMORY_TYPE || !device.holds(pointer))
    return result(ERROR_INVALID_VALUE);
  const unsigned type = MEMORY_TYPE_DEVICE;
  memcpy(value, &type, sizeof type);
  return result(SUCCESS);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                              CUstream stream) {
  void *const target = reinterpret_cast<void *>(uintptr_t(to));
  return put(stream, [=] { return memcpy(target, from, bytes), SUCCESS; });
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes,
                              CUstream stream) {
  const void *const source = reinterpret_cast<void *>(uintptr_t(from));
  return put(stream, [=] { return memcpy(to, source, bytes), SUCCESS; });
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
  const CUresult asked = cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
  const Guard guard(device.lock);
  return int(asked) == SUCCESS ? result(device.finish_all()) : asked;
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  const CUresult asked = cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
  const Guard guard(device.lock);
  return int(asked) == SUCCESS ? result(device.finish_all()) : asked;
}

/* --- streams and events */

CUresult cuStreamCreate(CUstream *stream, unsigned int) {
  const Guard guard(device.lock);
  if (const int problem = obstacle()) return result(problem);
  device.streams.push_back(*stream = new CUstream_st);
  return result(SUCCESS);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  const Guard guard(device.lock);
  const CUresult finished = result(device.finish(stream));
  auto &streams = device.streams;
  streams.erase(std::find(streams.begin(), streams.end(), stream));
  delete stream;
  return finished;
}

CUresult cuStreamSynchronize(CUstream stream) {
  const Guard guard(device.lock);
  return result(device.finish(stream_of(stream)));
}

CUresult cuStreamQuery(CUstream stream) {
  const Guard guard(device.lock);
  if (!stream_of(stream)->waiting.empty()) return result(ERROR_NOT_READY);
  return result(device.error);
}

CUresult cuEventCreate(CUevent *event, unsigned int) {
  *event = new CUevent_st;
  return result(SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent event) {
  const Guard guard(device.lock);
  const CUresult finished = result(device.finish_all()); /* all that names it */
  delete event;
  return finished;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  const Guard guard(device.lock);
  Work work;
  work.reached = event;
  work.number = ++event->asked;
  stream_of(stream)->waiting.push_back(work);
  return result(SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  const Guard guard(device.lock);
  Work work;
  work.awaited = event;
  work.number = event->asked;
  stream_of(stream)->waiting.push_back(work);
  return result(SUCCESS);
}

/* --- launches and graphs */

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x,
                        unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared,
                        CUstream stream, void **values, void **) {
  Launch launch;
  if (!make_launch(launch, function, {grid_x, grid_y, grid_z},
                   {block_x, block_y, block_z}, shared, values))
    return result(ERROR_INVALID_VALUE);
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
  std::vector<CUgraphNode> left;
  std::set<CUgraphNode> done;
  for (const auto &node : graph->nodes)
    left.push_back(node.get());
  const auto may_run = [&](CUgraphNode node) {
    const auto &before = node->before;
    return std::all_of(before.begin(), before.end(),
                       [&](CUgraphNode one) { return done.count(one) != 0; });
  };
  while (!left.empty()) {
    const auto last = std::find_if(left.rbegin(), left.rend(), may_run);
    if (last == left.rend()) return result(ERROR_INVALID_VALUE); /* a circle */
    done.insert(*last);
    exec->order.push_back(*last);
    exec->launches[*last] = (*last)->launch;
    left.erase(std::next(last).base());
  }
  *made = exec.release();
  return result(SUCCESS);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  const Guard guard(device.lock);
  const CUresult finished = result(device.finish_all());
  delete exec;
  return finished;
}

CUresult
cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                  const CUDA_KERNEL_NODE_PARAMS_v2 *given) {
  const Guard guard(device.lock);
  Launch launch;
  if (exec->launches.count(node) == 0 || !make_launch(launch, *given))
    return result(ERROR_INVALID_VALUE);
  exec->launches[node] = launch;
  return result(SUCCESS);
}

CUresult cuGraphUpload(CUgraphExec, CUstream) {
  return result(SUCCESS);
}

/* Nodes that change afterwards are those of later launches. */
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  const Guard guard(device.lock);
  std::vector<Launch> launches;
  for (CUgraphNode node : exec->order)
    launches.push_back(exec->launches.at(node));
  return put(stream, [launches] {
    for (const Launch &launch : launches)
      if (device.run(launch) != SUCCESS) break;
    return device.error;
  });
}

} // extern "C"
#pragma GCC visibility pop
