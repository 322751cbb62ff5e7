#pragma once

// The kernel instances of pointwise, and the tilings that it chooses among.

#include <cstdint>
#include <vector>

#include "conv/problem.h"
#include "cuda/host/text.h"
#include "cuda/pointwise/arguments.h"
#include "plan/device.h"

namespace convswap::pointwise {

struct Instance {
  int tiles;       // of eight filters, of a product
  int warpgroups;  // of a block
  int steps;       // products of a chunk
  int slots;       // for chunks in shared memory, of each warpgroup; none where they wait in registers

  int filters() const { return tiles * kTileFilters; }
  int channels(int element_bytes) const { return steps * kDepthBytes / element_bytes; }  // of a chunk
  // As the kernel's template takes them.
  std::string arguments() const { return joined(tiles, ", ", warpgroups, ", ", steps, ", ", slots); }
};

inline constexpr Instance kInstances[] = {
    {8, 3, 4, 0},  {8, 3, 8, 0},  {8, 4, 4, 0},  {12, 3, 4, 0}, {16, 3, 4, 0}, {16, 4, 4, 0}, {8, 3, 4, 4},
    {12, 3, 4, 4}, {16, 3, 4, 4}, {24, 3, 4, 4}, {32, 2, 4, 4}, {4, 1, 4, 4},  {8, 1, 4, 4}};

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
