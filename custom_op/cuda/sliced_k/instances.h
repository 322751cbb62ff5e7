#pragma once

// The list of sliced_k's kernel instances: for each element type one of each of these.

#include <string>

#include "cuda/sliced_k/layout.h"

namespace convswap::sliced_k {

struct Instance {
  bool one_tap;                   // filters of one tap, and no padding
  int filter_tiles, pixel_tiles;  // of a block
  int warps;                      // among which the depth of a block is shared

  int filters() const { return filter_tiles * kTileFilters; }
  int pixels() const { return pixel_tiles * kTilePixels; }
  // As the kernel's template takes them.
  std::string arguments() const {
    return std::string(one_tap ? "true, " : "false, ") + std::to_string(filter_tiles) + ", " +
           std::to_string(pixel_tiles) + ", " + std::to_string(warps);
  }
};

inline constexpr Instance kInstances[] = {
    {true, 1, 1, 8},  {true, 1, 1, 16},  {true, 1, 1, 32}, {true, 1, 2, 8},   {true, 1, 2, 16},
    {true, 1, 4, 8},  {true, 1, 4, 16},  {true, 2, 2, 16}, {true, 2, 4, 4},   {true, 2, 4, 8},
    {true, 4, 4, 4},  {true, 4, 4, 8},   {false, 1, 1, 8}, {false, 1, 1, 16}, {false, 1, 1, 32},
    {false, 1, 2, 8}, {false, 1, 2, 16}, {false, 1, 4, 8}, {false, 1, 4, 16}, {false, 2, 2, 16},
    {false, 2, 4, 4}, {false, 2, 4, 8},  {false, 4, 4, 4}, {false, 4, 4, 8},
};

}  // namespace convswap::sliced_k
