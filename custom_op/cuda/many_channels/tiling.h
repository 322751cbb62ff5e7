#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/problem.h"
#include "cuda/many_channels/layout.h"
#include "plan/device.h"

namespace convswap::many_channels {

// What a block of the kernel does.
struct Tiling {
  int tiles = 0;              // of eight columns, of a product
  int row_sets = 1;           // of 64 filters, of a block: two warpgroups share columns, or else filters
  int64_t filter_blocks = 1;  // of a group
  int64_t chunk_channels = kDepth, chunks = 0;
  int64_t steps = 0, group_steps = 0;  // products of a chunk, and those whose weights come as one copy
  int64_t strips = 1, strip_columns = 0;
  int store_width = 1;                             // as in Arguments
  int64_t pitch = 0, rows = 0;                     // places from row to row, and rows from slice to slice
  std::vector<int64_t> phase_rows, phase_columns;  // of the phases that taps read
  std::vector<int64_t> step_places;
  int64_t phases_across = 1;  // of the columns
  int64_t span = 0;           // places of a phase of a bundle
  int64_t image_tiles = 0;    // of all images together
  RunKind run_kind = RunKind::slices;
  // As in Arguments.
  int64_t runs = 0, run_bytes = 0, staged_channel_bytes = 0, pixel_stage_bytes = 0;
  int pixel_stages = 0, image_stages = 0, weight_stages = 0;
  SharedOffsets shared{};
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // nanoseconds, estimated

  int64_t columns() const {
    return int64_t{tiles} * kTileColumns * (row_sets == 2 ? 1 : kConsumerWarpgroups);
  }
  int64_t bundle_places() const { return span * static_cast<int64_t>(phase_rows.size()); }
  int64_t phases_down() const { return static_cast<int64_t>(phase_rows.size()) / phases_across; }
  int64_t image_stage_bytes() const {
    return chunk_channels / kBundleChannels * bundle_places() * kPlaceBytes;
  }
  int64_t weight_stage_bytes() const { return group_steps * row_sets * kStepUnits * 16; }
  int64_t filter_rows(const ConvProblem& problem) const {  // of all groups, also those without a filter
    return problem.group * filter_blocks * row_sets * kRows;
  }
  int64_t prepared_bytes(const ConvProblem& problem) const {  // of weights, in all their windows
    return filter_rows(problem) * kMostWeightWindows * chunks * steps * kDepth * 2;
  }
  int64_t works(const ConvProblem& problem) const { return image_tiles * problem.group * filter_blocks; }
};

// The cheapest tiling by estimate; empty where none fits into the device's shared memory. The problem must
// have an output and channels.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

}  // namespace convswap::many_channels
