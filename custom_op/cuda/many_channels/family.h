#pragma once

// Kernel instances of many_channels, and the tilings that it chooses among.

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
  int tiles;  // N of a wgmma divided by eight

  // Template arguments of the kernel.
  std::string arguments() const { return std::to_string(tiles); }
};

inline constexpr Instance kInstances[] = {{8}, {12}, {16}, {20}, {24}, {26}, {28}, {30}, {32}};

// Tile sizes, splits and stages, with everything that follows from them.
struct Tiling {
  int tiles = 0;              // N of a wgmma divided by eight
  int64_t subtiles = 1;       // tiles of `kernel` in a prepared tile
  int64_t filter_blocks = 1;  // blocks of 64 filters in a group
  int64_t splits = 1;         // splits of a tile's chunks
  int64_t chunk_channels = kWgmmaK, chunks = 0;
  int64_t steps = 0, stage_steps = 0;  // wgmmas of a chunk, and of a weight stage
  int64_t strips = 1, strip_columns = 0;
  int64_t pitch = 0, slice_rows = 0;               // positions of a row, and rows of a slice
  std::vector<int64_t> phase_rows, phase_columns;  // phases that taps read
  int64_t column_phases = 1;
  std::vector<int64_t> step_offsets;
  int64_t phase_vectors = 0,
          prepared_phase_vectors =
              0;               // vectors of one phase of a channel block, in a tile and in a prepared tile
  int64_t prepared_tiles = 0;  // prepared tiles of the whole batch
  int64_t band_tiles = 0;      // prepared tiles of a band, which one pair of launches computes
  int image_stages = 0, weight_stages = 0;
  SharedOffsets shared{};
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // nanoseconds, estimated

  int64_t columns() const { return int64_t{tiles} * kTileColumns * kConsumerWarpgroups; }
  int64_t phases() const { return static_cast<int64_t>(phase_rows.size()); }
  int64_t channel_block_vectors() const { return phase_vectors * phases(); }
  int64_t image_stage_bytes() const {
    return chunk_channels / kVectorChannels * channel_block_vectors() * kVectorBytes;
  }
  int64_t weight_stage_bytes() const { return stage_steps * kStepUnits * 16; }
  int64_t prepared_chunk_bytes() const {
    return chunk_channels / kVectorChannels * prepared_phase_vectors * phases() * kVectorBytes;
  }
  int64_t prepared_chunks(const ConvProblem& problem) const { return problem.group * chunks; }
  int64_t filter_rows(const ConvProblem& problem) const {  // all groups, padded to whole filter blocks
    return problem.group * filter_blocks * kWgmmaM;
  }
  int64_t prepared_weight_bytes(const ConvProblem& problem) const {  // all binade windows
    return filter_rows(problem) * kMaxWeightWindows * chunks * steps * kWgmmaK * 2;
  }
  int64_t work_tiles_per_prepared_tile(const ConvProblem& problem) const {
    return subtiles * work_tiles_per_subtile(problem);
  }
  int64_t work_tiles_per_subtile(const ConvProblem& problem) const {
    return problem.group * filter_blocks * splits;
  }
  int64_t work_tiles(const ConvProblem& problem) const {
    return prepared_tiles * work_tiles_per_prepared_tile(problem);
  }
};

// Returns the tiling with the lowest estimate, or nothing if none fits into the device's shared memory. The
// problem must have an output and channels.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

// Returns the best tiling first, then the cheapest tiling for every other combination of wgmma width,
// channels of a chunk and splits.
std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device);

}  // namespace convswap::many_channels
