/* SPDX-License-Identifier: Apache-2.0 */
/* How the functions of the fake driver go to the device. */
#ifndef AOTC_FAKE_CALLS_H
#define AOTC_FAKE_CALLS_H

#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <utility>

namespace fake {

using Guard = std::lock_guard<std::recursive_mutex>;

/* How often the thread has entered the context. */
extern thread_local int entered;

inline CUresult result(int value) {
  return CUresult(value);
}

/* What stands against a call: an error before, a thread without a context. */
inline int obstacle() {
  if (device.error != SUCCESS) return device.error;
  if (device.context.destroyed) return ERROR_CONTEXT_IS_DESTROYED;
  return entered > 0 ? SUCCESS : ERROR_INVALID_CONTEXT;
}

/* 1 and 2 are the legacy stream and that of the calling thread. */
inline CUstream stream_of(CUstream stream) {
  static thread_local CUstream own = nullptr;
  auto &known = device.streams;
  const auto is_known = [&](CUstream one) {
    return std::find(known.begin(), known.end(), one) != known.end();
  };
  if (uintptr_t(stream) <= 1) return &device.default_stream;
  if (uintptr_t(stream) == 2) {
    if (!is_known(own)) known.push_back(own = new CUstream_st);
    return own;
  }
  if (is_known(stream)) return stream;
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

/* What the driver refuses while a stream is captured, which ends the capture.
 */
inline int spoil(int problem) {
  device.spoilt = true;
  return problem;
}

/* What waits, and what takes or frees memory: not while a stream is captured,
 * whoever asks. */
template <class Action> CUresult waiting(Action action) {
  return alone([&] {
    return device.captured == nullptr ? int(action())
                                      : spoil(ERROR_STREAM_CAPTURE_UNSUPPORTED);
  });
}

/* Marks and waits of streams: here, captured ones have none. */
template <class Action> CUresult marking(CUstream stream, Action action) {
  return alone([&] {
    CUstream known = stream_of(stream);
    if (known == device.captured)
      return spoil(ERROR_STREAM_CAPTURE_UNSUPPORTED);
    known->waiting.push_back(action());
    return int(SUCCESS);
  });
}

/* Work for a stream; of a captured one, a node of its graph. */
CUresult put(CUstream stream, std::function<int()> run);

} // namespace fake

#endif
