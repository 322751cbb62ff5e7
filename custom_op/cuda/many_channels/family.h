#pragma once

// The kernel instances of many_channels, and the tilings that it chooses among.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/problem.h"
#include "cuda/many_channels/arguments.h"
#include "plan/device.h"

namespace convswap::many_channels {

inline constexpr std::string_view kFormats[] = {"ScaledFloat16Pairs", "Float16Pairs", "Bfloat16Pairs"};

struct Instance {
  int tiles;  // of eight columns, of a product

  // As the kernel's template takes them.
  std::string arguments() const { return std::to_string(tiles); }
};

inline constexpr Instance kInstances[] = {{8}, {12}, {16}, {20}, {24}, {26}, {28}, {30}, {32}};

// What a block of the kernel does.
struct Tiling {
  int tiles = 0;              // of eight columns, of a product
  int64_t parts = 1;          // of a prepared tile: tiles of blocks
  int64_t filter_blocks = 1;  // of a group
  int64_t splits = 1;         // of the chunks of a tile
  int64_t chunk_channels = kDepth, chunks = 0;
  int64_t steps = 0, group_steps = 0;  // products of a chunk, and those whose weights come as one copy
  int64_t strips = 1, strip_columns = 0;
  int64_t pitch = 0, rows = 0;                     // places from row to row, and rows from slice to slice
  std::vector<int64_t> phase_rows, phase_columns;  // of the phases that taps read
  int64_t column_phases = 1;
  std::vector<int64_t> step_places;
  int64_t span = 0, prepared_span = 0;  // places of a phase of a bundle, of a tile and of a prepared one
  int64_t prepared_tiles = 0;           // of all images together
  int64_t band_tiles = 0;               // of these, that are prepared together
  int image_stages = 0, weight_stages = 0;
  SharedOffsets shared{};
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // nanoseconds, estimated

  int64_t columns() const { return int64_t{tiles} * kTileColumns * kConsumerWarpgroups; }
  int64_t phases() const { return static_cast<int64_t>(phase_rows.size()); }
  int64_t bundle_places() const { return span * phases(); }
  int64_t image_stage_bytes() const {
    return chunk_channels / kBundleChannels * bundle_places() * kPlaceBytes;
  }
  int64_t weight_stage_bytes() const { return group_steps * kStepUnits * 16; }
  int64_t prepared_chunk_bytes() const {  // of pixels
    return chunk_channels / kBundleChannels * prepared_span * phases() * kPlaceBytes;
  }
  int64_t prepared_chunks(const ConvProblem& problem) const { return problem.group * chunks; }  // of a tile
  int64_t filter_rows(const ConvProblem& problem) const {  // of all groups, also those without a filter
    return problem.group * filter_blocks * kRows;
  }
  int64_t prepared_weight_bytes(const ConvProblem& problem) const {  // in all their windows
    return filter_rows(problem) * kMostWeightWindows * chunks * steps * kDepth * 2;
  }
  int64_t works_of_tile(const ConvProblem& problem) const { return parts * works_of_part(problem); }
  int64_t works_of_part(const ConvProblem& problem) const { return problem.group * filter_blocks * splits; }
  int64_t works(const ConvProblem& problem) const { return prepared_tiles * works_of_tile(problem); }
};

// The cheapest tiling by estimate; empty where none fits into the device's shared memory. The problem must
// have an output and channels.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

// The best tiling first, then those that differ from it and from each other in what a product has, in a
// chunk's channels or in the splits, each the cheapest of its kind.
std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device);

}  // namespace convswap::many_channels
