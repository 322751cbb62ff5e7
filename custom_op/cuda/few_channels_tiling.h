#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "conv/problem.h"
#include "plan/device.h"

namespace convswap {

inline constexpr int kFewChannelsMostTaps = 11;

// How the filter is cut into rows, and the rows paired, for the depth of the multiplication.
struct FilterRows {
  int phases;
  int taps;
  bool ragged;  // some rows have fewer taps
  int reach;    // columns of a phase that the last taps read beyond the pixel's own
  bool pairs_channels;
  int row_distance;  // input rows from the first of a pair to its second; 0 where channels are paired
  int planes;
  int pairs;

  explicit FilterRows(const ConvProblem& problem);
  int steps() const;  // of four pairs
};

// What a block of the kernel does.
struct FewChannelsTiling {
  int taps = 0;   // of the kernel, which may be more than the filter rows have
  int tiles = 0;  // of 16 filters in a warp's registers
  bool ragged = false;
  int warps = 0;
  int images = 1, rows = 1, quads = 1;
  int filter_blocks = 1, filter_splits = 1;
  int raw_rows = 0, raw_columns = 0, raw_chunks = 0, columns = 0, line_words = 0;
  int64_t raw_words = 0, plane_words = 0;
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();
};

// The tiling with the least estimated cost among those that fit into the device's shared memory; empty where
// none does. The problem must have an output, channels and one or two spatial axes.
std::optional<FewChannelsTiling> best_few_channels_tiling(const ConvProblem& problem, const Device& device);

// Quads of output columns in a row.
int few_channels_quads_per_row(const ConvProblem& problem);

}  // namespace convswap
