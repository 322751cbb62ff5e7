#pragma once

// Constants that the plan and the kernel of sliding_rows share, and the kernel's arguments. sliding_rows.cc
// describes the algorithm.

#include "conv/host_device.h"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::sliding_rows {

constexpr int kWarpSize = 32;
constexpr int kWarpsPerBlock = 4;

// Maximum number of output rows that one row of x contributes to.
CONVSWAP_HOST_DEVICE constexpr int max_output_rows_per_input_row(int taps, int stride) {
  return (taps + stride - 1) / stride;
}

// Constants of a lane's strip: filters of kTaps x kTaps, stride kStride on both axes, kPadLeft columns of
// padding before the first column, and kOutputs adjacent output columns per lane.
template <int kTaps, int kStride, int kPadLeft, int kOutputs>
struct StripShape {
  static constexpr int taps = kTaps, stride = kStride, left_halo = kPadLeft, outputs = kOutputs;
  // A lane loads a piece of each row of x, and shuffles the halo columns on either side from its neighbours.
  static constexpr int piece_columns = kOutputs * kStride;
  static constexpr int right_halo = kTaps - kStride > kPadLeft ? kTaps - kStride - kPadLeft : 0;
  static constexpr int window_columns = kPadLeft + piece_columns + right_halo;
  static constexpr int accumulators =
      max_output_rows_per_input_row(kTaps, kStride);     // output rows in progress
  static constexpr int period = accumulators * kStride;  // rows of x until accumulator slots repeat
};

// Number of neighbouring lanes whose pieces hold a halo of `columns` columns.
CONVSWAP_HOST_DEVICE constexpr int halo_lanes(int columns, int piece) {
  return (columns + piece - 1) / piece;
}

// Number of rows of x that a lane has in flight: 1, or a multiple of the period. A row of 16-bit elements is
// half as many bytes, so more rows are prefetched; many taps leave few registers for them.
CONVSWAP_HOST_DEVICE constexpr int prefetched_rows(int taps, int period, int element_bytes) {
  if (element_bytes == 4) return taps > 3 ? 1 : period;
  return taps > 3 ? period : 2 * period;
}
constexpr int kMaxPrefetchedRows = 8;

// Minimum blocks per multiprocessor for __launch_bounds__.
CONVSWAP_HOST_DEVICE constexpr int min_blocks_per_sm(int taps) { return taps > 5 ? 4 : taps > 3 ? 5 : 6; }

template <typename T>
struct Arguments : Tensors<T> {
  EpilogueParams epilogue;

  int input_height, input_width, output_height, output_width, pad_height;
  int planes;  // of the output: one per filter and image
  FastDivisor filters_per_image, filters_per_channel;
  bool vectorizes_loads;   // the instance's vector loads of x are aligned
  bool vectorizes_stores;  // a lane's outputs are one aligned vector inside the image

  // Adjacent lanes have adjacent pieces of a row. Short rows of several planes share a warp. A row with more
  // pieces than a warp has lanes is cut into segments, one warp each. Segments overlap by the halo: the lanes
  // there only pass columns to their neighbours.
  FastDivisor lanes;  // per row
  int warp_planes;
  FastDivisor segments;  // per row
  int segment_pieces;    // pieces between the beginnings of adjacent segments

  FastDivisor strips;  // per plane, one below the other
  int strip_rows;      // of the output
};

}  // namespace convswap::sliding_rows
