#pragma once

// How one spatial axis of an image is laid out where rows (or columns) with the same coordinate modulo the
// stride lie together, each such phase for itself: there what every tap reads lies side by side.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "conv/problem.h"

namespace convswap {

struct PhaseAxis {
  int64_t stride;
  int64_t dilation;
  int64_t phases;  // that some tap reads
  int64_t reach;   // rows or columns of one phase beyond the output's that the last taps need

  PhaseAxis(const ConvProblem& problem, size_t axis)
      : stride(problem.stride[axis]), dilation(problem.dilation[axis]) {
    const int64_t last = (problem.filter[axis] - 1) * dilation;
    phases = std::min(stride, last + 1);
    reach = last / stride;
  }

  int64_t phase(int64_t tap) const { return tap * dilation % stride; }
  int64_t shift(int64_t tap) const { return tap * dilation / stride; }
};

// Which columns of a phase lie inside the image: column j is input column j * stride + offset.
struct InsideColumns {
  int64_t begin, end;

  InsideColumns(int64_t offset, int64_t stride, int64_t input, int64_t columns) {
    begin = std::min(columns, offset >= 0 ? 0 : (-offset + stride - 1) / stride);
    end = offset >= input ? begin : std::clamp((input - offset - 1) / stride + 1, begin, columns);
  }
};

}  // namespace convswap
