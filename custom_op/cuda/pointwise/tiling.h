#pragma once

#include <cstdint>
#include <vector>

#include "conv/problem.h"
#include "cuda/pointwise/instances.h"
#include "plan/device.h"

namespace convswap::pointwise {

// What a block of the kernel does.
struct Tiling {
  Instance instance{};
  int64_t filter_blocks = 1;  // of a group
  int64_t tiles = 0, chunks = 0;
  int64_t columns = 0;  // of the grid, which has a row for each block of filters of each group
  int64_t weight_bytes = 0, shared_bytes = 0;  // of a block: the latter with the slots
  double cost = 0;                             // nanoseconds, estimated
};

// All whose weights and slots fit into the device's shared memory, the cheapest by estimate first.
std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device);

}  // namespace convswap::pointwise
