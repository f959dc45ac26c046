// SPDX-License-Identifier: Apache-2.0
// ResNet-18 in a C++ program: one image of random values in, the best class and the time of a run out.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "resnet18.h"

int main() {
  std::vector<float> image(RESNET18_INPUT_DATA_ELEMENTS), scores(RESNET18_OUTPUT_SCORES_ELEMENTS);
  std::mt19937 generator(0);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  for (float &value : image) value = uniform(generator);

  const std::unique_ptr<void, decltype(&std::free)> workspace(
      std::aligned_alloc(RESNET18_WORKSPACE_ALIGNMENT,
                         (RESNET18_WORKSPACE_BYTES + RESNET18_WORKSPACE_ALIGNMENT - 1) / RESNET18_WORKSPACE_ALIGNMENT *
                             RESNET18_WORKSPACE_ALIGNMENT),
      std::free);
  const resnet18_inputs in = {image.data()};
  const resnet18_outputs out = {scores.data()};

  const auto start = std::chrono::steady_clock::now();
  const int status = resnet18_run(&in, &out, workspace.get(), nullptr);
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  if (status != AOTC_OK) {
    std::fprintf(stderr, "%s\n", aotc_status_message(status));
    return 1;
  }
  std::size_t best = 0;
  for (std::size_t k = 1; k < scores.size(); ++k) best = scores[k] > scores[best] ? k : best;
  std::printf("class %zu of %zu, %.1f ms\n", best, scores.size(), elapsed.count());
  return 0;
}
