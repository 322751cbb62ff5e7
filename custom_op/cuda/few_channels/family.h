#pragma once

// Kernel instances and candidate tilings of few_channels.

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "cuda/few_channels/arguments.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::few_channels {

struct Instance {
  int bundle;             // filter rows in a bundle
  int taps;               // taps of a filter row
  int accumulator_tiles;  // of eight folded filters
  bool is_nhwc;           // y is NHWC

  // Template arguments of the kernel.
  std::string arguments() const {
    return joined(bundle, ", ", taps, ", ", accumulator_tiles, ", ", is_nhwc ? "true" : "false");
  }
};

// Other filter rows are padded with zero weights to the next length.
inline constexpr int kKernelTaps[] = {1, 2, 3, 4, 5, 7, 11};
inline constexpr int kMaxTaps = kKernelTaps[std::size(kKernelTaps) - 1];

// Limit of coordinates and tile indices, below which sums of two fit into the kernel's 32 bits.
inline constexpr int64_t kMaxIndex = 1 << 30;

inline constexpr int kMaxAccumulatorTiles = 4;

// True if there are kernel instances of so many taps and accumulator tiles. The registers of a thread limit
// them. Two tiles of NHWC fill a sector with the 16-bit filters of a pixel, four tiles fill two sectors.
constexpr bool has_instances(int taps, int accumulator_tiles, bool is_nhwc) {
  if (is_nhwc) return accumulator_tiles == 2 || (accumulator_tiles == 4 && taps <= 4);
  return accumulator_tiles <= (taps > 7 ? 2 : 3);
}

inline constexpr auto kInstances = [] {
  constexpr auto kForEach = [](auto add) {
    for (const bool is_nhwc : {false, true}) {
      for (const int bundle : {2, 4}) {
        for (const int taps : kKernelTaps) {
          for (int tiles = 1; tiles <= kMaxAccumulatorTiles; ++tiles) {
            if (has_instances(taps, tiles, is_nhwc)) add(Instance{bundle, taps, tiles, is_nhwc});
          }
        }
      }
    }
  };
  constexpr std::size_t kCount = [kForEach] {
    std::size_t count = 0;
    kForEach([&](const Instance&) { ++count; });
    return count;
  }();
  std::array<Instance, kCount> all{};
  std::size_t count = 0;
  kForEach([&](const Instance& instance) { all[count++] = instance; });
  return all;
}();

// Decomposition of the filter into filter rows, and of those into bundles, along K of the product.
struct FilterBundles {
  int64_t stride_phases;   // that taps read
  int64_t taps;            // of a filter row in one stride phase
  int64_t reach;           // columns of a stride phase from the first tap's to the last tap's
  int size;                // filter rows in a bundle: 2 or 4
  int64_t channels;        // of a bundle; it has size / channels filter rows of each
  int64_t row_step;        // distance of a bundle's filter rows of one channel
  int64_t channel_blocks;  // of `channels` channels, in an image
  int64_t count;           // bundles

  explicit FilterBundles(const ConvProblem& problem);
  int64_t steps() const;  // of four bundles
};

// Work of a block. Words have 4 bytes.
struct Tiling {
  int folds = 1;              // output rows of a folded row
  int taps = 0;               // taps of the kernel instance; at least those of the filter rows
  int accumulator_tiles = 0;  // of eight folded filters
  int warps = 0;
  bool halves_images = false;           // the tile's halves are different images instead of different rows
  int images = 1, rows = 1, quads = 1;  // of a half; quads per row
  int filter_blocks = 1;                // blocks of 8 * accumulator_tiles folded filters in a thread block
  int blocks_per_group = 1;             // thread blocks that divide a conv group's filters
  int64_t tile_count = 0;               // of all images
  int raw_rows = 0, raw_columns = 0;    // of the tile's input, padding included
  int runs_per_plane = 1;               // 1 if whole input planes are copied, else one run per row
  int run_elements = 0, zero_words = 0;
  int64_t part_words = 0;           // of the staged input
  int lines = 0;                    // of a staged channel block
  int columns = 0, line_words = 0;  // of the staged input
  int64_t raw_words = 0, channel_block_words = 0;
  SharedOffsets shared{};
  int64_t shared_bytes = 0;
  double cost = 0;  // nanoseconds, as the only pass

  int tile_images() const { return halves_images ? 2 * images : images; }
  int tile_rows() const { return halves_images ? rows : 2 * rows; }

  // Names the tiling among those of a problem.
  std::string key() const {
    return joined("folds ", folds, " tiles ", accumulator_tiles, " warps ", warps, " filters ", filter_blocks,
                  " tile ", tile_images(), "x", tile_rows(), "x", quads, halves_images ? " images" : "");
  }
};

// One kernel launch, over some of the channels of every conv group.
struct Pass {
  int64_t first_channel;
  int64_t channels;
  Tiling tiling;
};

// Nanoseconds of a pass of the problem.
double cost_of(const ConvProblem& problem, const Device& device, const Pass& pass);

// True if accumulation over all channels, with `folds` folded rows, is too long for precision ieee.
bool loses_accuracy(const ConvProblem& problem, int folds, const Device& device);

// The fewest launches that compute the problem, each with its cheapest tiling. Empty if even one channel's
// smallest tile exceeds the device's shared memory or loses accuracy. The problem must have an output,
// channels, one or two spatial axes and filter rows of at most kMaxTaps taps.
std::vector<Pass> passes_of(const ConvProblem& problem, const Device& device);

// All tilings of a single launch, in ascending order of cost; empty if the problem takes several launches.
std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device);

// The problem whose output rows are folded rows of `folds` rows each. Each row of a folded row has its own
// folded filter, which is the filter shifted by the stride. Folds fill N of the mma if there are few filters.
// The additional filter rows are free if K has room.
ConvProblem folded_problem(ConvProblem problem, int folds);

// The problem with `channels` channels in each conv group.
ConvProblem problem_with_channels(ConvProblem problem, int64_t channels);

// Quads of output columns in a row.
int64_t quads_per_output_row(const ConvProblem& problem);

// Thread blocks that divide the output tiles of one grid row, on a card that holds `slots` blocks at once.
// All numbers, and the number of blocks, are below 2^31.
int64_t grid_columns(int64_t tiles, int64_t rows, int64_t slots);

// Neighbouring outputs of one store. If the address of y is a multiple of the store's size, so are the
// addresses of all stores. NCHW: 1, 2 or 4 columns of a row. NHWC: 1 filter of a pixel, or the nhwc_vector()
// adjacent filters of a lane.
int store_width(const ConvProblem& problem, int accumulator_tiles);

inline bool is_nhwc(const ConvProblem& problem) { return problem.layouts.output == Layout::nhwc; }

}  // namespace convswap::few_channels
