#pragma once

// The list of depthwise's kernel instances: for each element type one of each of these.

#include <string>

namespace convswap::depthwise {

struct Instance {
  int rows, width;  // of a filter's taps; 0 and 0: any, of three dimensions
  bool slides;      // down neighbouring rows, each of which is read once
  int registers;    // of a thread, as compiled for compute capability 9.0: for the estimate

  // As the kernel's template takes them.
  std::string arguments() const {
    return std::to_string(rows) + ", " + std::to_string(width) + (slides ? ", true" : ", false");
  }
};

inline constexpr Instance kInstances[] = {
    {3, 3, true, 48},  {5, 5, true, 64},  {7, 7, true, 80},  {3, 3, false, 48}, {5, 5, false, 64},
    {1, 3, false, 48}, {1, 5, false, 48}, {1, 7, false, 48}, {0, 0, false, 48},
};

}  // namespace convswap::depthwise
