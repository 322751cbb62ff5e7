#pragma once

// Kernel instances and tilings of pointwise.

#include <cstdint>
#include <string>

#include "conv/problem.h"
#include "cuda/host/candidates.h"
#include "cuda/host/text.h"
#include "cuda/pointwise/arguments.h"
#include "plan/device.h"

namespace convswap::pointwise {

struct Instance {
  int tiles;       // of eight filters, in one wgmma
  int warpgroups;  // of a block
  int steps;       // wgmmas per chunk
  int stages;      // pipeline stages in smem per warpgroup; 0: chunks stay in registers

  int filters() const { return tiles * kTileFilters; }
  int channels(int element_bytes) const { return steps * kWgmmaDepthBytes / element_bytes; }  // per chunk
  // Template arguments of the kernel.
  std::string arguments() const { return joined(tiles, ", ", warpgroups, ", ", steps, ", ", stages); }
};

inline constexpr Instance kInstances[] = {
    {8, 3, 4, 0},  {8, 3, 8, 0},  {8, 4, 4, 0},  {12, 3, 4, 0}, {16, 3, 4, 0}, {16, 4, 4, 0}, {8, 3, 4, 4},
    {12, 3, 4, 4}, {16, 3, 4, 4}, {24, 3, 4, 4}, {32, 2, 4, 4}, {4, 1, 4, 4},  {8, 1, 4, 4}};

// Tiling of the problem and launch shape.
struct Tiling {
  Instance instance{};
  int64_t filter_blocks = 1;  // of a group
  int64_t tiles = 0, chunks = 0;
  int64_t grid_columns = 0;                    // the grid's rows are the filter blocks of all groups
  int64_t weight_bytes = 0, shared_bytes = 0;  // per block; shared_bytes includes the stages
  double cost = 0;                             // nanoseconds, estimated

  // Names the tiling among those of a problem.
  std::string key() const { return instance.arguments(); }
};

// Estimated nanoseconds.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds all tilings that fit into the device's shared memory.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

}  // namespace convswap::pointwise
