#pragma once

// What the kernel of sliding_rows and its planner both know of how a filter slides.

#include "conv/anywhere.h"

namespace convswap::sliding_rows {

constexpr int kWarp = 32;
constexpr int kBlockWarps = 4;

// Output rows that a row of x is part of.
CONVSWAP_ANYWHERE constexpr int sums_of_row(int taps, int stride) { return (taps + stride - 1) / stride; }

// Filters of kTaps x kTaps that go kStride columns and rows further for each output, with kLeft columns of
// padding before the first. A lane computes kOutputs neighbouring columns.
template <int kTaps, int kStride, int kLeft, int kOutputs>
struct Slide {
  static constexpr int taps = kTaps, stride = kStride, left = kLeft, outputs = kOutputs;
  static constexpr int piece = kOutputs * kStride;  // columns of x that a lane has of its own
  static constexpr int right =
      kTaps - kStride > kLeft ? kTaps - kStride - kLeft : 0;  // and needs behind them
  static constexpr int needed = kLeft + piece + right;
  static constexpr int sums = sums_of_row(kTaps, kStride);
  static constexpr int period = sums * kStride;  // rows of x until their places come again
};

// How many lanes away the columns are that a piece needs beyond one of its ends.
CONVSWAP_ANYWHERE constexpr int lanes_beyond(int columns, int piece) { return (columns + piece - 1) / piece; }

// Rows of x that are asked for before their use: 1, or whole periods. Of 16 bits a row is half as many bytes
// under way, and many taps leave few registers.
CONVSWAP_ANYWHERE constexpr int rows_ahead(int taps, int period, int element_bytes) {
  if (element_bytes == 4) return taps > 3 ? 1 : period;
  return taps > 3 ? period : 2 * period;
}
constexpr int kMostAhead = 8;

// Blocks that a multiprocessor holds at once, for which the compiler leaves enough registers.
CONVSWAP_ANYWHERE constexpr int blocks_at_once(int taps) { return taps > 5 ? 4 : taps > 3 ? 5 : 6; }

}  // namespace convswap::sliding_rows
