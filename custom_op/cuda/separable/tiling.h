#pragma once

#include <cstdint>
#include <vector>

#include "conv/problem.h"
#include "cuda/separable/instances.h"
#include "plan/device.h"

namespace convswap::separable {

// What a block computes.
struct Tiling {
  Instance instance{};
  int64_t tiles_down = 1, tiles_across = 1;  // of an image
  int64_t blocks = 1;
  double cost = 0;  // nanoseconds, estimated
};

int64_t shared_bytes_of(const Instance& instance);

// All that compute the problem, the cheapest by the estimate first.
std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device);

}  // namespace convswap::separable
