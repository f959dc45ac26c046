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
 *     and who still names a stream of before is stopped;
 *   - while a stream is captured, nobody may wait or take memory.
 *
 * $AOTC_FAKE_DEVICES (1), $AOTC_FAKE_ARCH (80), $AOTC_FAKE_VERSION (12040) and
 * $AOTC_FAKE_MEMORY (bytes) make it another device or driver, and
 * $AOTC_EMULATOR_ORDER=backwards runs blocks and threads from the last to the
 * first.
 */
#include "fake_calls.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace fake;

thread_local int fake::entered;

namespace {

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
    CAPTURE_RESULTS(NAME)
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
  return waiting([] { return device.finish_all(); });
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
  return waiting([=] {
    const int problem = bytes == 0 ? ERROR_INVALID_VALUE : obstacle();
    return problem != SUCCESS ? problem : device.allocate(pointer, bytes);
  });
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return waiting([=] {
    const int problem = obstacle();
    return problem != SUCCESS ? problem : device.release(pointer);
  });
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
  return waiting([=] { return device.finish(stream_of(stream)); });
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
  return marking(stream,
                 [=] { return Work{{}, nullptr, event, ++event->asked}; });
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
  if (begin->asked == 0 || end->asked == 0) return result(ERROR_INVALID_HANDLE);
  *milliseconds = float(1e3 * (end->seconds - begin->seconds));
  return result(SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  return marking(stream,
                 [=] { return Work{{}, event, nullptr, event->asked}; });
}

} // extern "C"
#pragma GCC visibility pop
