#pragma once

// Kernel instances and tilings of tiled.

#include <cstdint>
#include <string>

#include "conv/problem.h"
#include "cuda/host/candidates.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::tiled {

// Outputs of a thread: 2 rows by these columns, for these filters.
struct Instance {
  int filters, columns;

  // Template arguments of the kernel.
  std::string arguments() const { return joined(filters, ", ", columns); }
};

// Instances for float32, float16 and bfloat16, and for float64, whose accumulators take twice the registers.
inline constexpr Instance kInstances[] = {{1, 2}, {4, 2}, {8, 2}, {8, 4}};
inline constexpr Instance kFloat64Instances[] = {{1, 2}, {4, 2}, {8, 2}};

// Tile of a block, and its threads.
struct Tiling {
  int rows = 0, columns = 0;                   // of the convolution's output
  int thread_columns = 0, thread_filters = 0;  // the kernel instance
  int filters = 0;
  int splits = 1;    // threads with the same outputs, which share the filter rows
  int channels = 0;  // per stage
  int threads = 0;
  int window_height = 0, window_width = 0, window_pitch = 0, window_plane = 0;
  int weight_pitch = 0;
  int stage_bytes = 0, shared_bytes = 0;
  int64_t blocks = 0;
  double cost = 0;  // nanoseconds, estimated

  // Names the tiling among those of a problem.
  std::string key() const {
    return joined(thread_filters, "x", thread_columns, " of ", rows, "x", columns, " filters ", filters,
                  " splits ", splits);
  }
};

// The estimated time of a tiling in nanoseconds.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds all tilings that fit into the device's shared memory. The problem must have an output and channels.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

}  // namespace convswap::tiled
