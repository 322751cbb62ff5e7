#pragma once

// Kernel instances and tilings of sliding_rows.

#include <cstdint>
#include <string>

#include "conv/problem.h"
#include "cuda/host/candidates.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::sliding_rows {

struct Instance {
  int taps, stride, pad_left;  // along both axes; padding before the first column
  int outputs;                 // output columns per lane
  int vector_columns;          // columns of x per load; the image's width is a multiple of it

  // Template arguments of the kernel.
  std::string arguments() const {
    return joined(taps, ", ", stride, ", ", pad_left, ", ", outputs, ", ", vector_columns);
  }
};

// Instances that differ in the columns per load only are in descending order of them. Padding is half a
// filter; for stride 2 also one column less, TensorFlow's "SAME" for images of even width.
inline constexpr Instance kInstances[] = {
    {3, 1, 1, 4, 4}, {3, 1, 1, 2, 2}, {3, 1, 1, 1, 1}, {5, 1, 2, 4, 4}, {5, 1, 2, 2, 2}, {5, 1, 2, 1, 1},
    {7, 1, 3, 4, 4}, {7, 1, 3, 2, 2}, {7, 1, 3, 1, 1}, {3, 2, 1, 2, 4}, {3, 2, 1, 2, 2}, {3, 2, 1, 2, 1},
    {3, 2, 0, 2, 4}, {3, 2, 0, 2, 2}, {3, 2, 0, 2, 1}, {5, 2, 2, 2, 4}, {5, 2, 2, 2, 2}, {5, 2, 2, 2, 1},
    {5, 2, 1, 2, 4}, {5, 2, 1, 2, 2}, {5, 2, 1, 2, 1}, {7, 2, 3, 2, 4}, {7, 2, 3, 2, 2}, {7, 2, 3, 2, 1},
};

// Distribution of a problem over warps and their lanes. arguments.h explains the fields.
struct Tiling {
  Instance instance{};
  int lanes = 1, warp_planes = 1;
  int segments = 1, segment_pieces = 0;
  int strips = 1, strip_rows = 1;
  int64_t blocks = 0;
  double cost = 0;  // nanoseconds, estimated

  // Names the tiling among those of a problem.
  std::string key() const { return joined("strips ", strips); }
};

// The instance with most columns per load that supports the problem, or null. The problem must be depthwise.
const Instance* instance_for(const ConvProblem& problem);

// The estimated time of a tiling in nanoseconds.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds tilings of the candidate strip heights. The problem must have an instance and an output; its data must
// be float32, float16 or bfloat16.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

}  // namespace convswap::sliding_rows
