#pragma once

#include <cstdint>
#include <vector>

#include "conv/problem.h"
#include "cuda/sliding_rows/instances.h"
#include "plan/device.h"

namespace convswap::sliding_rows {

// How a problem is shared among warps and their lanes; see arguments.h.
struct Tiling {
  Instance instance{};
  int lanes = 1, warp_planes = 1;
  int segments = 1, segment_pieces = 0;
  int strips = 1, strip_rows = 1;
  int64_t blocks = 0;
  double cost = 0;  // nanoseconds, estimated
};

// The instance with most columns together that computes the problem; null where none does. The problem must
// be depthwise.
const Instance* instance_for(const ConvProblem& problem);

// Every height of strips, the cheapest by the estimate first. The problem must have an output, and float32,
// float16 or bfloat16 data.
std::vector<Tiling> tilings_of(const ConvProblem& problem, const Device& device, const Instance& instance);

}  // namespace convswap::sliding_rows
