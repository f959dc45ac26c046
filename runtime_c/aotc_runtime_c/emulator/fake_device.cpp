/* SPDX-License-Identifier: Apache-2.0 */
/* The device of the fake driver: memory, streams and launches. */
#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace fake {

Device device;

namespace {
constexpr size_t page_bytes = 4096, alignment = 256;
/* Launches of fewer threads than this are not worth threads of the host. */
constexpr unsigned worth_threads = 1 << 14;

size_t rounded(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}
} // namespace

long setting(const char *name, long otherwise) {
  const char *const given = getenv(name);
  return given != nullptr && *given != '\0' ? atol(given) : otherwise;
}

int Device::fail(int value, const std::string &why) {
  fprintf(stderr, "fake CUDA driver: %s\n", why.c_str());
  return error = value;
}

int Device::allocate(CUdeviceptr *pointer, size_t bytes) {
  const size_t limit = size_t(setting("AOTC_FAKE_MEMORY", LONG_MAX));
  if (bytes > limit || memory_bytes > limit - bytes) return ERROR_OUT_OF_MEMORY;
  const size_t taken = rounded(bytes, alignment);
  const size_t whole = rounded(taken, page_bytes);
  const auto again =
      std::find_if(forgotten.begin(), forgotten.end(),
                   [=](const auto &one) { return one.page_bytes == whole; });
  void *made = nullptr;
  if (again != forgotten.end()) {
    made = again->pages;
    forgotten.erase(again);
  } else { /* with a page behind that nobody may touch */
    made = mmap(nullptr, whole + page_bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (made == MAP_FAILED) return ERROR_OUT_OF_MEMORY;
  const Allocation one{static_cast<unsigned char *>(made), whole, bytes,
                       ++allocations};
  mprotect(made, whole, PROT_READ | PROT_WRITE);
  memset(made, 0xff, whole);
  mprotect(made, whole, PROT_NONE);
  *pointer = CUdeviceptr(uintptr_t(one.pages + (whole - taken)));
  memory.emplace(*pointer, one);
  memory_bytes += bytes;
  return SUCCESS;
}

/* The addresses are not given again, so that later uses fault, but after a
 * reset. */
int Device::release(CUdeviceptr pointer) {
  const auto found = memory.find(pointer);
  if (found == memory.end()) return ERROR_INVALID_VALUE;
  const int finished = finish_all();
  madvise(found->second.pages, found->second.page_bytes, MADV_DONTNEED);
  memory_bytes -= found->second.bytes;
  memory.erase(found);
  return finished;
}

const Allocation *Device::find(CUdeviceptr pointer) const {
  const auto after = memory.upper_bound(pointer);
  if (after == memory.begin()) return nullptr;
  const auto &found = *std::prev(after);
  return pointer - found.first <= found.second.bytes ? &found.second : nullptr;
}

void Device::reset() {
  for (const auto &one : memory)
    forgotten.push_back(one.second);
  memory.clear();
  memory_bytes = 0;
  streams.clear(); /* those who still name one are found out */
  captured = nullptr;
  default_stream.waiting.clear();
  context.destroyed = true;
  error = SUCCESS;
}

void Device::give_access(int access) {
  for (const auto &one : memory)
    mprotect(one.second.pages, one.second.page_bytes, access);
}

int Device::run(const Launch &launch) {
  const aotc_emulator::Kernel &kernel = *launch.function->kernel;
  const std::string &name = launch.function->name;
  std::vector<void *> arguments;
  for (unsigned k = 0; k < kernel.parameters; ++k) {
    arguments.push_back(const_cast<unsigned char *>(launch.values[k].data()));
    uintptr_t pointer = 0;
    if (!kernel.pointer[k]) continue;
    memcpy(&pointer, arguments[k], sizeof pointer);
    if (find(pointer) == nullptr)
      return fail(ERROR_ILLEGAL_ADDRESS, "argument " + std::to_string(k) +
                                             " of " + name +
                                             " is not memory of the device");
  }
  const char *const order = getenv("AOTC_EMULATOR_ORDER");
  const bool backwards = order != nullptr && strcmp(order, "backwards") == 0;
  const bool worth = launch.blocks >= worth_threads / launch.threads;
  const unsigned hosts = worth ? std::thread::hardware_concurrency() : 1;
  const char *const problem = aotc_emulator_launch(
      &kernel, launch.blocks, launch.threads, launch.shared_bytes,
      arguments.data(), backwards, hosts);
  if (problem == nullptr) return SUCCESS;
  return fail(ERROR_LAUNCH_FAILED, name + ": " + problem);
}

/* Does the next work of a stream, unless that has to wait for another one. */
bool Device::step(CUstream stream) {
  if (stream->waiting.empty()) return false;
  const Work work = stream->waiting.front();
  if (work.awaited != nullptr && work.awaited->reached < work.number)
    return false;
  stream->waiting.pop_front();
  if (work.run && error == SUCCESS) work.run();
  if (work.reached != nullptr) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    work.reached->reached = work.number;
    work.reached->seconds = std::chrono::duration<double>(now).count();
  }
  return true;
}

int Device::finish(CUstream stream) {
  if (stream->waiting.empty()) return error;
  give_access(PROT_READ | PROT_WRITE);
  while (!stream->waiting.empty()) {
    bool moved = step(stream);
    for (size_t k = streams.size(); !moved && k-- > 0;)
      moved = streams[k] != stream && step(streams[k]);
    if (!moved && !step(&default_stream)) {
      fail(ERROR_LAUNCH_FAILED, "streams wait for each other");
      stream->waiting.clear();
    }
  }
  give_access(PROT_NONE);
  return error;
}

int Device::finish_all() {
  for (CUstream stream : streams)
    finish(stream);
  return finish(&default_stream);
}

} // namespace fake
