#pragma once

// Tilings of row_windows.

#include <cstdint>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "cuda/host/candidates.h"
#include "cuda/host/text.h"
#include "cuda/row_windows/arguments.h"
#include "plan/device.h"

namespace convswap::row_windows {

// Tiling of an image; row_windows.cc explains the terms.
struct Tiling {
  int64_t filter_blocks = 1, block_filters = 0;  // of a group, of a block
  int64_t folds = 1, row_phases = 1, lead = 0;
  int64_t groups = 0, bands = 0;  // of output rows in a band, of an image
  int64_t band_rows = 0, pitch = 0;
  int64_t phase_windows = 0, channel_windows = 0, stage_windows = 0;
  int64_t column_chunks = 0;
  int64_t steps = 0;  // wgmmas per accumulator
  SharedOffsets shared;
  int64_t shared_bytes = 0;
  double cost = 0;  // nanoseconds, estimated

  // Names the tiling among those of a problem.
  std::string key() const { return joined("folds ", folds, " bands ", bands); }
};

// Number of elements of a 32-bit word; loading mode if images begin at a multiple of `words` words.
int elements_per_word(const ConvProblem& problem);
Loading loading_of(const ConvProblem& problem, int64_t lead, int words);

// Largest number of adjacent outputs per store, if y is aligned to it.
int max_outputs_per_store(const ConvProblem& problem);

// Number of segments of all rows that a band reads, padding segments included.
int64_t segments_of(const ConvProblem& problem, const Tiling& tiling, int windows_per_segment);

// Number of windows that a filter takes along the GEMM depth, for one output row.
int64_t windows_per_filter(const ConvProblem& problem);

// Whether windows that a filter's row has behind each other are those of other outputs.
bool can_lay_out_windows(const ConvProblem& problem);

// Windows of a tiling's steps, as the kernel takes them.
struct StepWindows {
  std::vector<DepthWindow> depth;  // two for each step
  std::vector<unsigned> offsets;
};
StepWindows step_windows_of(const ConvProblem& problem, const Tiling& tiling);

// The estimated time of a tiling in nanoseconds.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds all tilings that fit into the device's shared memory.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

}  // namespace convswap::row_windows
