#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "conv/problem.h"
#include "plan/device.h"

namespace convswap {

inline constexpr int kFewChannelsMostTaps = 11;

// How the filter is cut into rows, and the rows paired, for the depth of the multiplication.
struct FilterRows {
  int64_t phases;
  int64_t taps;
  bool ragged;    // some rows have fewer taps
  int64_t reach;  // columns of a phase that the last taps read beyond the pixel's own
  bool pairs_channels;
  int64_t row_distance;  // input rows from the first of a pair to its second; 0 where channels are paired
  int64_t planes;
  int64_t pairs;

  explicit FilterRows(const ConvProblem& problem);
  int64_t steps() const;  // of four pairs
};

// What a block of the kernel does. Words are of 4 bytes.
struct FewChannelsTiling {
  int taps = 0;   // of the kernel, which may be more than the filter rows have
  int tiles = 0;  // of 16 filters in a warp's registers
  bool ragged = false;
  int warps = 0;
  int images = 1, rows = 1, quads = 1;  // quads per row
  int filter_blocks = 1;                // of 16 * tiles filters
  int filter_splits = 1;                // blocks of the grid that share a group's filters
  int raw_rows = 0, raw_columns = 0;    // of the input, padding included
  int raw_chunks = 0;                   // of 16 bytes, in a staged input row
  int columns = 0, line_words = 0;      // of the paired input
  int64_t raw_words = 0, plane_words = 0;
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();
};

// One launch: some of the channels of every group.
struct FewChannelsPass {
  int64_t first_channel;
  int64_t channels;
  FewChannelsTiling tiling;
};

// The fewest launches that compute the problem, each with its cheapest tiling; empty where not even one
// channel's smallest tile fits into the device's shared memory. The problem must have an output, channels,
// one or two spatial axes and filter rows of at most kFewChannelsMostTaps taps.
std::vector<FewChannelsPass> few_channels_passes(const ConvProblem& problem, const Device& device);

// The problem with only so many channels in each group.
ConvProblem with_channels(ConvProblem problem, int64_t channels);

// Quads of output columns in a row.
int64_t few_channels_quads_per_row(const ConvProblem& problem);

// How many blocks share the tiles of one grid row, on a card that holds `slots` blocks at once.
int64_t few_channels_grid_columns(int64_t tiles, int64_t rows, int64_t slots);

}  // namespace convswap
