#pragma once

// Kernel instances of many_channels, and the tilings that it chooses among.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/problem.h"
#include "cuda/host/text.h"
#include "cuda/many_channels/arguments.h"
#include "plan/device.h"

namespace convswap::many_channels {

inline constexpr std::string_view kFormats[] = {"ScaledFloat16Pairs", "Float16Pairs", "Bfloat16Pairs"};

struct Instance {
  int accumulator_tiles;  // of a consumer warpgroup; N of a wgmma is eight times as many

  // Template arguments of the kernel.
  std::string arguments() const { return std::to_string(accumulator_tiles); }
};

// Instances of `kernel`, which multiplies by wgmma, and of `mma_kernel`, which multiplies by mma.sync.
inline constexpr Instance kInstances[] = {{8}, {12}, {16}, {20}, {24}, {26}, {28}, {30}, {32}};
inline constexpr Instance kMmaInstances[] = {{8}, {12}, {16}, {20}, {24}, {28}, {32}};

// Tile sizes, splits and stages, with everything that follows from them.
struct Tiling {
  bool uses_wgmma = true;     // otherwise mma.sync
  int accumulator_tiles = 0;  // of a consumer warpgroup
  int64_t output_tiles_per_prepared_tile = 1;
  int64_t filter_blocks = 1;  // blocks of 64 filters in a conv group
  int64_t splits = 1;         // of an output tile's K tiles
  int64_t k_tile_channels = kWgmmaK, k_tiles = 0;
  int64_t steps = 0, stage_steps = 0;  // of a K tile, and of a weight stage
  int64_t strips = 1, strip_columns = 0;
  int64_t pitch = 0, slice_rows = 0;                             // positions of a row, and rows of a slice
  int64_t row_stride_phases = 1, column_stride_phases = 1;       // that taps read
  std::vector<int64_t> stride_phase_rows, stride_phase_columns;  // first row and column of each
  std::vector<int64_t> step_offsets;
  // Vectors of one stride phase of a channel block, in an output tile and in a prepared tile.
  int64_t stride_phase_vectors = 0, prepared_stride_phase_vectors = 0;
  int64_t prepared_tiles = 0;  // prepared tiles of the whole batch
  int64_t round_tiles = 0;     // prepared tiles of a round
  int pixel_stages = 0, weight_stages = 0;
  SharedOffsets shared{};
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // nanoseconds, estimated

  int64_t tile_positions() const {
    return int64_t{accumulator_tiles} * kAccumulatorTileColumns * kConsumerWarpgroups;
  }
  int64_t stride_phases() const { return row_stride_phases * column_stride_phases; }
  int64_t channel_block_vectors() const { return stride_phase_vectors * stride_phases(); }
  int64_t pixel_stage_bytes() const {
    return k_tile_channels / kVectorChannels * channel_block_vectors() * kVectorBytes;
  }
  int64_t weight_stage_bytes() const { return stage_steps * kStepUnits * 16; }
  int64_t prepared_k_tile_bytes() const {
    return k_tile_channels / kVectorChannels * prepared_stride_phase_vectors * stride_phases() * kVectorBytes;
  }
  int64_t prepared_k_tiles(const ConvProblem& problem) const { return problem.group * k_tiles; }
  int64_t filter_rows(const ConvProblem& problem) const {  // all conv groups, padded to whole filter blocks
    return problem.group * filter_blocks * kWgmmaM;
  }
  int64_t prepared_weight_bytes(const ConvProblem& problem) const {  // all binade windows
    return filter_rows(problem) * kMaxWeightWindows * k_tiles * steps * kWgmmaK * 2;
  }
  int64_t work_tiles_per_prepared_tile(const ConvProblem& problem) const {
    return output_tiles_per_prepared_tile * work_tiles_per_output_tile(problem);
  }
  int64_t work_tiles_per_output_tile(const ConvProblem& problem) const {
    return problem.group * filter_blocks * splits;
  }
  int64_t work_tiles(const ConvProblem& problem) const {
    return prepared_tiles * work_tiles_per_prepared_tile(problem);
  }
  // Blocks of `prepare` that share the K tiles of a prepared tile and conv group, in a round with
  // `tile_group_pairs` pairs of those.
  int64_t k_tile_parts(const Device& device, int64_t tile_group_pairs) const {
    const int64_t blocks = int64_t{3} * device.multiprocessors * (kPrepareThreadsPerSm / kPrepareThreads);
    return std::clamp<int64_t>(ceil_divide(blocks, tile_group_pairs), 1, k_tiles);
  }

  // Names the tiling among those of a problem.
  std::string key() const {
    return joined("tiles ", accumulator_tiles, "x", output_tiles_per_prepared_tile, " strips ", strips,
                  " channels ", k_tile_channels, " splits ", splits);
  }
};

// The estimated time of a tiling in nanoseconds, with prepared weights.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Returns the tiling with the lowest estimate, or nothing if none fits into the device's shared memory. The
// problem must have an output and channels.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

// Returns the cheapest tiling of each combination of wgmma width, channels of a K tile and splits, in the
// order of their estimates.
std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device);

}  // namespace convswap::many_channels
