#pragma once

// The list of sliding_rows' kernel instances: for each element type one of each of these.

#include <string>

namespace convswap::sliding_rows {

struct Instance {
  int taps, stride, left;  // of filters, and the padding before the first column (slide.h)
  int outputs;             // columns that a lane computes
  int together;            // columns of x that are one load: the width of images is a multiple

  // As the kernel's template takes them.
  std::string arguments() const {
    return std::to_string(taps) + ", " + std::to_string(stride) + ", " + std::to_string(left) + ", " +
           std::to_string(outputs) + ", " + std::to_string(together);
  }
};

// Those of one way to slide have more columns together first. Padding of half a filter, and with stride 2
// also what TensorFlow's "SAME" puts before images of even width.
inline constexpr Instance kInstances[] = {
    {3, 1, 1, 4, 4}, {3, 1, 1, 2, 2}, {3, 1, 1, 1, 1}, {5, 1, 2, 4, 4}, {5, 1, 2, 2, 2}, {5, 1, 2, 1, 1},
    {7, 1, 3, 4, 4}, {7, 1, 3, 2, 2}, {7, 1, 3, 1, 1}, {3, 2, 1, 2, 4}, {3, 2, 1, 2, 2}, {3, 2, 1, 2, 1},
    {3, 2, 0, 2, 4}, {3, 2, 0, 2, 2}, {3, 2, 0, 2, 1}, {5, 2, 2, 2, 4}, {5, 2, 2, 2, 2}, {5, 2, 2, 2, 1},
    {5, 2, 1, 2, 4}, {5, 2, 1, 2, 2}, {5, 2, 1, 2, 1}, {7, 2, 3, 2, 4}, {7, 2, 3, 2, 2}, {7, 2, 3, 2, 1},
};

}  // namespace convswap::sliding_rows
