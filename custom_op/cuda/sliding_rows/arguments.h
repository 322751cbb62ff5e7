#pragma once

// What the plan of sliding_rows and its kernel agree on, and what the kernel is told; sliding_rows.cc
// explains the words.

#include "conv/host_device.h"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::sliding_rows {

constexpr int kWarp = 32;
constexpr int kBlockWarps = 4;

// Output rows that a row of x is part of.
CONVSWAP_HOST_DEVICE constexpr int sums_of_row(int taps, int stride) { return (taps + stride - 1) / stride; }

// Filters of kTaps x kTaps that go kStride columns and rows further for each output, with kLeft columns of
// padding before the first. A lane computes kOutputs neighbouring columns.
template <int kTaps, int kStride, int kLeft, int kOutputs>
struct Slide {
  static constexpr int taps = kTaps, stride = kStride, left = kLeft, outputs = kOutputs;
  static constexpr int piece = kOutputs * kStride;  // columns of x that a lane has of its own
  static constexpr int right =
      kTaps - kStride > kLeft ? kTaps - kStride - kLeft : 0;  // and needs behind them
  static constexpr int needed = kLeft + piece + right;
  static constexpr int accumulators = sums_of_row(kTaps, kStride);
  static constexpr int period = accumulators * kStride;  // rows of x until their places come again
};

// How many lanes away the columns are that a piece needs beyond one of its ends.
CONVSWAP_HOST_DEVICE constexpr int lanes_beyond(int columns, int piece) {
  return (columns + piece - 1) / piece;
}

// Rows of x that are asked for before their use: 1, or whole periods. Of 16 bits a row is half as many bytes
// under way, and many taps leave few registers.
CONVSWAP_HOST_DEVICE constexpr int rows_ahead(int taps, int period, int element_bytes) {
  if (element_bytes == 4) return taps > 3 ? 1 : period;
  return taps > 3 ? period : 2 * period;
}
constexpr int kMostAhead = 8;

// Blocks that a multiprocessor holds at once, for which the compiler leaves enough registers.
CONVSWAP_HOST_DEVICE constexpr int blocks_at_once(int taps) { return taps > 5 ? 4 : taps > 3 ? 5 : 6; }

template <typename T>
struct Arguments : Tensors<T> {
  EpilogueParams following;

  int input_height, input_width, output_height, output_width, pad_height;
  int planes;                             // of the output, one for each filter of each image
  FastDivisor image_filters, multiplier;  // filters of an image, of a channel
  bool loads_together;                    // columns that the instance loads together are aligned
  bool stores_together;                   // so are the outputs of a lane, and all of them are in the image

  // A lane has a piece of a row. The pieces of a row are side by side in a warp, as many planes as there is
  // room for. Of a row with more pieces than a warp has lanes each segment has a warp, and the ends of
  // segments overlap: their lanes are there for their neighbours.
  FastDivisor lanes;  // of a row
  int warp_planes;
  FastDivisor segments;
  int segment_pieces;  // from the first of a segment to that of the next

  FastDivisor strips;  // of a plane, one below the other
  int strip_rows;      // of the output
};

}  // namespace convswap::sliding_rows
