#pragma once

// The list of pointwise's kernel instances.

#include <string>
#include <string_view>

#include "cuda/pointwise/layout.h"

namespace convswap::pointwise {

inline constexpr std::string_view kFormats[] = {"float", "Float16", "BFloat16"};

struct Instance {
  int tiles;       // of eight filters, of a product
  int warpgroups;  // of a block
  int steps;       // products of a chunk
  int slots;       // for chunks in shared memory, of each warpgroup; none where they wait in registers

  int filters() const { return tiles * kTileFilters; }
  int channels(int element_bytes) const { return steps * kDepthBytes / element_bytes; }  // of a chunk
  // As the kernel's template takes them.
  std::string arguments() const {
    return std::to_string(tiles) + ", " + std::to_string(warpgroups) + ", " + std::to_string(steps) + ", " +
           std::to_string(slots);
  }
};

inline constexpr Instance kInstances[] = {
    {8, 3, 4, 0},  {8, 3, 8, 0},  {8, 4, 4, 0},  {12, 3, 4, 0}, {16, 3, 4, 0}, {16, 4, 4, 0}, {8, 3, 4, 4},
    {12, 3, 4, 4}, {16, 3, 4, 4}, {24, 3, 4, 4}, {32, 2, 4, 4}, {4, 1, 4, 4},  {8, 1, 4, 4}};

}  // namespace convswap::pointwise
