/* SPDX-License-Identifier: Apache-2.0 */
/* Launches and graphs of the fake driver, and streams that callers capture. */
#include "fake_calls.h"

#include <set>

using namespace fake;

struct CUgraphNode_st {
  std::function<int()> run;
  std::vector<CUgraphNode> before;
};
struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;

  CUgraphNode add(std::function<int()> run) {
    nodes.push_back(std::make_unique<CUgraphNode_st>());
    nodes.back()->run = std::move(run);
    return nodes.back().get();
  }
};
struct CUgraphExec_st {
  std::vector<std::pair<CUgraphNode, std::function<int()>>> order;
};

namespace {

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

} // namespace

/* The legacy stream waits for others, and cannot wait for one that does
 * nothing yet. */
CUresult fake::put(CUstream stream, std::function<int()> run) {
  return inside([&] {
    CUstream known = stream_of(stream);
    if (known != device.captured) {
      if (device.captured != nullptr && known == &device.default_stream)
        return spoil(ERROR_STREAM_CAPTURE_IMPLICIT);
      known->waiting.push_back({std::move(run), nullptr, nullptr, 0});
      return int(SUCCESS);
    }
    auto &nodes = device.capture->nodes;
    CUgraphNode last = nodes.empty() ? nullptr : nodes.back().get();
    CUgraphNode made = device.capture->add(std::move(run));
    if (last != nullptr) made->before.push_back(last);
    return int(SUCCESS);
  });
}

#pragma GCC visibility push(default)
extern "C" {

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
  Launch launch;
  if (!make_launch(launch, *given)) return result(ERROR_INVALID_VALUE);
  *node = graph->add([launch] { return device.run(launch); });
  (*node)->before.assign(before, before + count);
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
    exec->order.emplace_back(last.get(), last->run);
  }
  *made = exec.release();
  return result(SUCCESS);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  return alone([=] {
    const int finished = device.finish_all();
    delete exec;
    return finished;
  });
}

CUresult
cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                  const CUDA_KERNEL_NODE_PARAMS_v2 *given) {
  Launch launch;
  if (!make_launch(launch, *given)) return result(ERROR_INVALID_VALUE);
  return alone([=] {
    for (auto &[known, run] : exec->order)
      if (known == node)
        return run = [launch] { return device.run(launch); }, SUCCESS;
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
      if (one.second() != SUCCESS) break;
    return device.error;
  });
}

/* --- streams that callers capture, one at a time */

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  return inside([=]() -> int {
    CUstream known = stream_of(stream);
    if (known == &device.default_stream)
      return ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (device.captured != nullptr) return ERROR_INVALID_VALUE;
    device.captured = known;
    device.capture = new CUgraph_st;
    device.spoilt = false;
    return SUCCESS;
  });
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  return inside([=]() -> int {
    if (device.captured != stream_of(stream)) return ERROR_INVALID_VALUE;
    *graph = device.spoilt ? nullptr : device.capture;
    if (device.spoilt) delete device.capture;
    device.captured = nullptr;
    if (device.spoilt) return ERROR_STREAM_CAPTURE_INVALIDATED;
    return SUCCESS;
  });
}

} // extern "C"
#pragma GCC visibility pop
