#pragma once

// The kernel instances of sliding_rows, and the tilings that it chooses among.

#include <cstdint>
#include <vector>

#include "conv/problem.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::sliding_rows {

struct Instance {
  int taps, stride, left;  // of filters, and the padding before the first column (arguments.h)
  int outputs;             // columns that a lane computes
  int together;            // columns of x that are one load: the width of images is a multiple

  // As the kernel's template takes them.
  std::string arguments() const {
    return joined(taps, ", ", stride, ", ", left, ", ", outputs, ", ", together);
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

// How a problem is shared among warps and their lanes; see arguments.h.
struct Tiling {
  Instance instance{};
  int lanes = 1, warp_planes = 1;
  int segments = 1, segment_pieces = 0;
  int strips = 1, strip_rows = 1;
  int64_t blocks = 0;
  double cost = 0;  // nanoseconds, estimated
};

// The instance with most columns together that computes the problem; null where none does. The problem must
// be depthwise.
const Instance* instance_for(const ConvProblem& problem);

// Every height of strips, the cheapest by the estimate first. The problem must have an output, and float32,
// float16 or bfloat16 data.
std::vector<Tiling> tilings_of(const ConvProblem& problem, const Device& device, const Instance& instance);

}  // namespace convswap::sliding_rows
