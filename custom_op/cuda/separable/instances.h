#pragma once

// The list of separable's kernel instances: for each element type one of each of these.

#include <string>

#include "cuda/separable/layout.h"

namespace convswap::separable {

struct Instance {
  int stride;        // of the depthwise convolution
  int filter_tiles;  // of the convolution behind it, all in one block
  int rows;          // that a thread computes
  int down, across;  // threads of a channel

  int threads() const { return kStepChannels * down * across; }
  int tile_rows() const { return down * rows; }
  int tile_columns() const { return across * kColumns; }
  int most_filters() const { return filter_tiles * kTileFilters; }
  // As the kernel's template takes them.
  std::string arguments() const {
    return std::to_string(stride) + ", " + std::to_string(filter_tiles) + ", " + std::to_string(rows) + ", " +
           std::to_string(down) + ", " + std::to_string(across);
  }
};

inline constexpr Instance kInstances[] = {
    {1, 1, 4, 2, 7}, {1, 1, 4, 2, 8}, {1, 1, 2, 2, 7}, {1, 1, 2, 2, 8}, {1, 1, 1, 2, 7},
    {1, 1, 1, 2, 8}, {1, 2, 4, 2, 7}, {1, 2, 4, 2, 8}, {1, 2, 2, 2, 7}, {1, 2, 2, 2, 8},
    {1, 2, 1, 2, 7}, {1, 2, 1, 2, 8}, {2, 1, 2, 2, 7}, {2, 1, 2, 2, 8}, {2, 1, 1, 2, 7},
    {2, 1, 1, 2, 8}, {2, 2, 2, 2, 7}, {2, 2, 2, 2, 8}, {2, 2, 1, 2, 7}, {2, 2, 1, 2, 8},
};

}  // namespace convswap::separable
