#pragma once

// Kernel instances and tilings of separable.

#include <cstdint>
#include <string>

#include "conv/problem.h"
#include "cuda/host/candidates.h"
#include "cuda/host/text.h"
#include "cuda/separable/arguments.h"
#include "plan/device.h"

namespace convswap::separable {

struct Instance {
  int stride;        // of the depthwise convolution
  int filter_tiles;  // of the 1x1 convolution, all in one block
  int rows;          // of depthwise outputs per thread
  int down, across;  // threads per channel

  int threads() const { return kStepChannels * down * across; }
  int tile_rows() const { return down * rows; }
  int tile_columns() const { return across * kColumns; }
  int max_filters() const { return filter_tiles * kTileFilters; }
  // Template arguments of the kernel.
  std::string arguments() const {
    return joined(stride, ", ", filter_tiles, ", ", rows, ", ", down, ", ", across);
  }
};

inline constexpr Instance kInstances[] = {
    {1, 1, 4, 2, 7}, {1, 1, 4, 2, 8}, {1, 1, 2, 2, 7}, {1, 1, 2, 2, 8}, {1, 1, 1, 2, 7},
    {1, 1, 1, 2, 8}, {1, 2, 4, 2, 7}, {1, 2, 4, 2, 8}, {1, 2, 2, 2, 7}, {1, 2, 2, 2, 8},
    {1, 2, 1, 2, 7}, {1, 2, 1, 2, 8}, {2, 1, 2, 2, 7}, {2, 1, 2, 2, 8}, {2, 1, 1, 2, 7},
    {2, 1, 1, 2, 8}, {2, 2, 2, 2, 7}, {2, 2, 2, 2, 8}, {2, 2, 1, 2, 7}, {2, 2, 1, 2, 8},
};

// Tile of a block.
struct Tiling {
  Instance instance{};
  int64_t tiles_down = 1, tiles_across = 1;  // per image
  int64_t blocks = 1;
  double cost = 0;  // nanoseconds, estimated

  // Names the tiling among those of a problem.
  std::string key() const { return instance.arguments(); }
};

int64_t shared_bytes_of(const Instance& instance);

// The estimated time of a tiling in nanoseconds.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds all tilings that support the problem.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

}  // namespace convswap::separable
