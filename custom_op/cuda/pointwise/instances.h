#pragma once

// The list of pointwise's kernel instances.

#include <string>
#include <string_view>

#include "cuda/pointwise/layout.h"

namespace convswap::pointwise {

inline constexpr std::string_view kFormats[] = {"float"};

struct Instance {
  int tiles;       // of eight filters, of a product
  int warpgroups;  // of a block: as many as registers allow
  int steps;       // products of a chunk

  int filters() const { return tiles * kTileFilters; }
  int channels() const { return steps * kDepth; }  // of a chunk
  // As the kernel's template takes them.
  std::string arguments() const {
    return std::to_string(tiles) + ", " + std::to_string(warpgroups) + ", " + std::to_string(steps);
  }
};

inline constexpr Instance kInstances[] = {{8, 3, 8}, {16, 2, 8}, {32, 2, 8}};

}  // namespace convswap::pointwise
