#pragma once

// The kernel instances of tiled, and the tilings that it chooses among.

#include <optional>

#include "conv/problem.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::tiled {

// What a thread computes, of 2 rows.
struct Instance {
  int filters, columns;

  // As the kernel's template takes them.
  std::string arguments() const { return joined(filters, ", ", columns); }
};

// For float32, float16 and bfloat16; and for float64, whose results take twice the registers.
inline constexpr Instance kInstances[] = {{1, 2}, {4, 2}, {8, 2}, {8, 4}};
inline constexpr Instance kFloat64Instances[] = {{1, 2}, {4, 2}, {8, 2}};

// What a block computes, and how its threads share it.
struct Tiling {
  int rows = 0, columns = 0;  // of the convolution's output
  // Of the 2 rows that a thread computes, and its filters: one of kInstances.
  int columns_of_thread = 0, filters_of_thread = 0;
  int filters = 0;
  int splits = 1;    // threads that share the outputs of one, each with filter rows of its own
  int channels = 0;  // that are staged at a time
  int threads = 0;
  int window_height = 0, window_width = 0, window_pitch = 0, window_plane = 0;  // of what is staged
  int weight_pitch = 0;
  int shared_bytes = 0;
  double cost = 0;  // nanoseconds, estimated
};

// The cheapest; nothing where not one fits into the device's shared memory. The problem must have an output
// and channels.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

}  // namespace convswap::tiled
