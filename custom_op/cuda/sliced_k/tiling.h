#pragma once

#include <cstdint>
#include <vector>

#include "conv/problem.h"
#include "cuda/sliced_k/instances.h"
#include "plan/device.h"

namespace convswap::sliced_k {

// What a block computes.
struct Tiling {
  Instance instance{};
  int64_t filter_blocks = 1;  // of a group
  int64_t pixel_blocks = 1;
  double cost = 0;  // nanoseconds, estimated
};

// Of a filter: channels times taps.
int64_t depth_of(const ConvProblem& problem);

// Whether its float32 numbers are multiplied as two TF32 each: in precision ieee, and in depthwise
// convolutions, which no default of ONNX Runtime rounds (kRoundedDepthwise in plan/planner.cc).
bool splits(const ConvProblem& problem);

int64_t shared_bytes_of(const Instance& instance);

// Whether four weights of a filter, and a thread's pixels of a channel, are one load, where they are aligned.
bool loads_weights_together(const ConvProblem& problem);
bool loads_pixels_together(const ConvProblem& problem, const Instance& instance);

// All that compute the problem, the cheapest by the estimate first.
std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device);

}  // namespace convswap::sliced_k
