#pragma once

// Kernel instances of channels_last, and the tilings that it chooses among.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/problem.h"
#include "cuda/channels_last/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::channels_last {

struct Instance {
  int accumulator_tiles;  // of a consumer warpgroup; N of a wgmma is eight times as many
  bool shares_pixels;     // both warpgroups compute the same positions, each for 64 filters
  bool splits_k = false;  // the blocks of a cluster split the K chunks of a work tile
  int blocks = 1;         // that run on a multiprocessor at once
  int parts = 1;          // of a number; 2 for float32 in precision ieee

  // An integer wgmma has no N beyond 128 that is no multiple of 16.
  constexpr bool computes(ElementType type) const {
    return parts > 1 ? type == ElementType::float32 : !is_code(type) || accumulator_tiles % 2 == 0;
  }
  bool computes(const ConvProblem& problem) const {
    return computes(problem.type) && parts == parts_of(problem);
  }
  std::string arguments() const {
    return joined(accumulator_tiles, ", ", shares_pixels ? "true" : "false", ", ",
                  splits_k ? "true" : "false", ", ", blocks, ", ", parts);
  }
  int positions() const { return accumulator_tiles * kAccumulatorTileColumns; }
  int block_filters() const { return shares_pixels ? 2 * kWgmmaM : kWgmmaM; }
};

// Splits K where a grid is small; tiles are small there, too.
inline constexpr Instance kSplitInstance = {8, false, true, 2}, kSplitPartsInstance = {8, false, true, 1, 2};
// With two blocks on a multiprocessor a thread has 96 registers. 16 accumulator tiles fit for 16-bit results;
// codes spill up to 74 bytes of a thread, float32 up to 276.
inline constexpr Instance kPaired[] = {
    {14, false, false, 2}, {16, false, false, 2}, {14, true, false, 2}, {16, true, false, 2}};
// Numbers in two parts have two sets of accumulators.
inline constexpr Instance kOfParts[] = {{8, false, false, 1, 2},  {15, false, false, 1, 2},
                                        {16, false, false, 1, 2}, {8, true, false, 1, 2},
                                        {15, true, false, 1, 2},  {16, true, false, 1, 2}};
inline constexpr Instance kInstances[] = {
    {8, false},  {15, false}, {20, false},    {24, false},        {26, false}, {28, false}, {29, false},
    {30, false}, {32, false}, {8, true},      {15, true},         {16, true},  {20, true},  {24, true},
    {26, true},  {27, true},  {28, true},     {29, true},         {30, true},  {32, true},  kPaired[0],
    kPaired[1],  kPaired[2],  kPaired[3],     kOfParts[0],        kOfParts[1], kOfParts[2], kOfParts[3],
    kOfParts[4], kOfParts[5], kSplitInstance, kSplitPartsInstance};

struct Tiling {
  Instance instance{};
  int64_t images = 1, rows = 1, columns = 1;  // outputs of a tile
  int64_t pitch = 0, box_rows = 0;            // positions of a row; rows of a stride phase
  int64_t phase_bytes = 0;
  int64_t result_row_bytes = kRowBytes;
  std::vector<int64_t> phase_rows, phase_columns;  // first row and column of each stride phase
  std::vector<int64_t> tap_offsets;
  int64_t filter_blocks = 1, channel_chunks = 1;  // filter blocks of a conv group
  int64_t work_tiles = 0;
  int splits = 1;  // blocks that split the K chunks of a work tile
  int pixel_stages = 0, weight_stages = 0;
  bool keeps_weights = false;
  bool stages_in_place = false;
  int result_chunks = 1, staged_chunks = 1, staged_tiles = 1;  // of a consumer warpgroup; see arguments.h
  SharedOffsets shared{};
  int64_t shared_bytes = 0;
  double cost = 0;  // nanoseconds, estimated

  int64_t stride_phases() const { return static_cast<int64_t>(phase_rows.size()); }
  int64_t image_positions() const { return box_rows * pitch; }
  int64_t pixel_part_bytes() const { return phase_bytes * stride_phases(); }
  int64_t pixel_stage_bytes() const { return instance.parts * pixel_part_bytes(); }
  int64_t loaded_bytes() const { return images * image_positions() * kRowBytes * stride_phases(); }
  int64_t weight_part_bytes() const { return instance.block_filters() * kRowBytes; }
  int64_t weight_stage_bytes() const { return instance.parts * weight_part_bytes(); }
  int64_t outputs() const { return images * rows * columns; }
  int64_t result_chunk_bytes() const {
    return round_up(outputs() * result_row_bytes, int64_t{kSwizzleBytes});
  }
  int64_t staged_bytes() const { return staged_chunks * result_chunk_bytes(); }

  std::string key() const {
    return joined(instance.accumulator_tiles, ", ", instance.shares_pixels ? "true" : "false", " images ",
                  images, " rows ", rows, " columns ", columns,
                  splits > 1            ? joined(" splits ", splits)
                  : instance.blocks > 1 ? joined(" blocks ", instance.blocks)
                                        : "");
  }
};

// Stride phases that the taps of the filter read.
int64_t stride_phases(const ConvProblem& problem);
// The ranges of the taps of height (axis 1) or width that outputs have inside the input; none if there are
// too many.
std::optional<TapRanges> tap_ranges(const ConvProblem& problem, int axis);
// K chunks: for each depth tap all chunks of channels.
int64_t k_chunks(const ConvProblem& problem, const Tiling& tiling);
// Most K chunks of a work tile that one block multiplies.
int64_t chunks_of_block(const ConvProblem& problem, const Tiling& tiling);
// Wgmmas along K of a row of pixels: 4, or 2 or 1 if all channels take half or a quarter of a row.
int row_wgmmas(const ConvProblem& problem);
// Weight stages of one filter block: a tap of a K chunk each.
int64_t weight_units(const ConvProblem& problem, const Tiling& tiling);

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// All tilings that fit into the device's shared memory, in ascending order of estimated time.
std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device);

}  // namespace convswap::channels_last
