#pragma once

// The kernel instances of sliced_k, and the tilings that it chooses among.

#include <cstdint>
#include <vector>

#include "conv/problem.h"
#include "cuda/host/text.h"
#include "cuda/sliced_k/arguments.h"
#include "plan/device.h"

namespace convswap::sliced_k {

struct Instance {
  bool one_tap;                   // filters of one tap, and no padding
  int filter_tiles, pixel_tiles;  // of a block
  int warps;                      // among which the depth of a block is shared

  int filters() const { return filter_tiles * kTileFilters; }
  int pixels() const { return pixel_tiles * kTilePixels; }
  // As the kernel's template takes them.
  std::string arguments() const {
    return joined(one_tap ? "true, " : "false, ", filter_tiles, ", ", pixel_tiles, ", ", warps);
  }
};

inline constexpr Instance kInstances[] = {
    {true, 1, 1, 8},  {true, 1, 1, 16},  {true, 1, 1, 32}, {true, 1, 2, 8},   {true, 1, 2, 16},
    {true, 1, 4, 8},  {true, 1, 4, 16},  {true, 2, 2, 16}, {true, 2, 4, 4},   {true, 2, 4, 8},
    {true, 4, 4, 4},  {true, 4, 4, 8},   {false, 1, 1, 8}, {false, 1, 1, 16}, {false, 1, 1, 32},
    {false, 1, 2, 8}, {false, 1, 2, 16}, {false, 1, 4, 8}, {false, 1, 4, 16}, {false, 2, 2, 16},
    {false, 2, 4, 4}, {false, 2, 4, 8},  {false, 4, 4, 4}, {false, 4, 4, 8},
};

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
