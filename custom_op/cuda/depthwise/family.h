#pragma once

// Kernel instances and tilings of depthwise.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::depthwise {

struct Instance {
  int rows, width;  // taps of a filter; 0 and 0 for filters of any size and up to three axes
  bool slides;      // reads each input row once; needs unit stride and dilation
  int registers;    // per thread, as compiled for compute capability 9.0; for the estimate

  // Template arguments of the kernel.
  std::string arguments() const { return joined(rows, ", ", width, slides ? ", true" : ", false"); }
};

inline constexpr Instance kInstances[] = {
    {3, 3, true, 48},  {5, 5, true, 64},  {7, 7, true, 80},  {3, 3, false, 48}, {5, 5, false, 64},
    {1, 3, false, 48}, {1, 5, false, 48}, {1, 7, false, 48}, {0, 0, false, 48},
};

// Tile of a block, and its threads' strips. arguments.h explains the fields that both have.
struct Tiling {
  Instance instance{};
  int planes = 1, rows = 1, columns = 1;  // of the convolution's output
  int threads = 0;
  int strip_outputs = 1, column_step = 0;
  int strips = 1, strips_across = 1;
  bool is_contiguous = false;
  int vector_columns = 1;     // columns of x per load
  int alignment_columns = 0;  // columns that a line has before the receptive field, for alignment
  int window_loads = 1;       // per row
  int window_rows = 1;        // per plane
  int window_pitch = 0, window_plane = 0, window_words = 0;
  int64_t shared_bytes = 0;
  int64_t blocks = 0;
  double cost = 0;  // nanoseconds, estimated

  // Names the tiling among those of a problem.
  std::string key() const {
    return joined(planes, "x", rows, "x", columns, " threads ", threads, " strip ", strip_outputs);
  }
};

// The estimated time of a tiling in nanoseconds.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// The tiling with the least estimated time, or nullopt if not even the smallest fits into the device's shared
// memory. The problem must be depthwise. Its output must not be empty; its data must be float32, float16 or
// bfloat16.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

// All tilings that fit into the device's shared memory, in ascending order of estimated time.
std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device);

}  // namespace convswap::depthwise
