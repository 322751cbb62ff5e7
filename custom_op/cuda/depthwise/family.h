#pragma once

// The kernel instances of depthwise, and the tilings that it chooses among.

#include <cstdint>
#include <optional>

#include "conv/problem.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::depthwise {

struct Instance {
  int rows, width;  // of a filter's taps; 0 and 0: any, of three dimensions
  bool slides;      // down neighbouring rows, each of which is read once
  int registers;    // of a thread, as compiled for compute capability 9.0: for the estimate

  // As the kernel's template takes them.
  std::string arguments() const { return joined(rows, ", ", width, slides ? ", true" : ", false"); }
};

inline constexpr Instance kInstances[] = {
    {3, 3, true, 48},  {5, 5, true, 64},  {7, 7, true, 80},  {3, 3, false, 48}, {5, 5, false, 64},
    {1, 3, false, 48}, {1, 5, false, 48}, {1, 7, false, 48}, {0, 0, false, 48},
};

// What a block computes, and how its threads share it.
struct Tiling {
  Instance instance{};
  int planes = 1, rows = 1, columns = 1;  // of the convolution's output
  int threads = 0;
  int strip_steps = 1, step_columns = 0;  // outputs of a thread; how far apart along a row, 0: down
  int strips = 1, strips_across = 1;
  bool is_flat = false;  // planes of the output and of x have the same numbers
  int together = 1;      // columns that are loaded together
  int window_left = 0;   // columns before the first that is needed, so that they are aligned
  int window_loads = 1;  // of a row
  int window_rows = 1;
  int window_pitch = 0, window_plane = 0, window_words = 0;
  int64_t shared_bytes = 0;
  int64_t blocks = 0;
  double cost = 0;  // nanoseconds, estimated
};

// The cheapest; nothing where not even the smallest fits into the device's shared memory. The problem must be
// depthwise, have an output, and float32, float16 or bfloat16 data.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

}  // namespace convswap::depthwise
