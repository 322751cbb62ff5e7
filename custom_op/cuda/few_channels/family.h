#pragma once

// The kernel instances of few_channels, and the tilings that it chooses among.

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "conv/problem.h"
#include "cuda/few_channels/arguments.h"
#include "cuda/host/text.h"
#include "plan/device.h"

namespace convswap::few_channels {

struct Instance {
  int bundle;  // filter rows that are bundled
  int taps;    // of a filter row
  int tiles;   // of eight filters in a warp's registers

  // As the kernel's template takes them.
  std::string arguments() const { return joined(bundle, ", ", taps, ", ", tiles); }
};

// Other filter rows take the next longer one, with weights of zero.
inline constexpr int kKernelTaps[] = {1, 2, 3, 4, 5, 7, 11};
inline constexpr int kMostTaps = kKernelTaps[std::size(kKernelTaps) - 1];

// More would not fit into a thread's registers.
constexpr int most_tiles(int taps) { return taps > 7 ? 2 : 3; }

inline constexpr auto kInstances = [] {
  constexpr std::size_t kCount = [] {
    std::size_t count = 0;
    for (const int taps : kKernelTaps) count += 2 * static_cast<std::size_t>(most_tiles(taps));
    return count;
  }();
  std::array<Instance, kCount> all{};
  std::size_t count = 0;
  for (const int bundle : {2, 4}) {
    for (const int taps : kKernelTaps) {
      for (int tiles = 1; tiles <= most_tiles(taps); ++tiles) all[count++] = {bundle, taps, tiles};
    }
  }
  return all;
}();

// How the filter is cut into rows, and the rows bundled, for the depth of the multiplication.
struct FilterBundles {
  int64_t phases;
  int64_t taps;
  int64_t reach;     // columns of a phase that the last taps read beyond the pixel's own
  int size;          // filter rows in a bundle: 2 or 4
  int64_t channels;  // of a bundle; its other rows are further rows of the same channels
  int64_t row_step;  // filter rows from one to the next of these
  int64_t planes;    // per image
  int64_t count;     // of bundles

  explicit FilterBundles(const ConvProblem& problem);
  int64_t steps() const;  // of four bundles
};

// What a block of the kernel does. Words are of 4 bytes.
struct Tiling {
  int folds = 1;  // output rows that the multiplication takes for filters of one
  int taps = 0;   // of the kernel, which may be more than the filter rows have
  int tiles = 0;  // of 8 filters in a warp's registers
  int warps = 0;
  bool halves_images = false;           // the tile's halves are different images, not different rows
  int images = 1, rows = 1, quads = 1;  // of a half; quads per row
  int filter_blocks = 1;                // of 8 * tiles filters
  int filter_splits = 1;                // blocks of the grid that share a group's filters
  int64_t tile_count = 0;               // of all images
  int raw_rows = 0, raw_columns = 0;    // of the tile's input, padding included
  int runs_per_plane = 1;               // whole planes are copied at once, or row by row
  int run_elements = 0, zero_words = 0;
  int64_t part_words = 0;           // of the staged input
  int lines = 0;                    // of a staged plane
  int columns = 0, line_words = 0;  // of the staged input
  int64_t raw_words = 0, plane_words = 0;
  SharedOffsets shared{};
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // what tilings are compared by
  double estimate = 0;                                    // nanoseconds, beside other algorithms

  int tile_images() const { return halves_images ? 2 * images : images; }
  int tile_rows() const { return halves_images ? rows : 2 * rows; }
};

// One launch: some of the channels of every group.
struct Pass {
  int64_t first_channel;
  int64_t channels;
  Tiling tiling;
};

// Whether sums over all channels, of rows folded so many times, are too long for precision ieee.
bool loses_accuracy(const ConvProblem& problem, int folds, const Device& device);

// The fewest launches that compute the problem, each with its cheapest tiling; empty where not even one
// channel's smallest tile fits into the device's shared memory or its sums lose accuracy. The problem must
// have an output, channels, one or two spatial axes and filter rows of at most kMostTaps taps.
std::vector<Pass> passes_of(const ConvProblem& problem, const Device& device);

// The problem with so many neighbouring output rows folded into one, each a filter of its own: the filter
// shifted by the stride. A filter row more costs nothing where the depth has room for it, and few filters
// fill the tensor core's columns.
ConvProblem folded_problem(ConvProblem problem, int folds);

// The problem with only so many channels in each group.
ConvProblem problem_with_channels(ConvProblem problem, int64_t channels);

// Quads of output columns in a row.
int64_t quads_per_output_row(const ConvProblem& problem);

// How many blocks share the tiles of one grid row, on a card that holds `slots` blocks at once.
int64_t grid_columns(int64_t tiles, int64_t rows, int64_t slots);

// Neighbouring outputs that always lie in one row and are aligned in y where y itself is: 1, 2 or 4.
int store_width(const ConvProblem& problem);

}  // namespace convswap::few_channels
