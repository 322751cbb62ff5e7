#pragma once

// Constants that the plan and the kernel of depthwise share, and the kernel's arguments. depthwise.cc
// describes the algorithm.

#include "conv/host_device.h"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::depthwise {

constexpr int kMaxThreads = 256;

// Most adjacent columns of x that one vector load takes.
constexpr int kMaxVectorColumns = 4;

// A block's smem holds the offsets of the window's planes in x (8 bytes each), the window, the filters and
// the biases. Returns the size of the first part in 4-byte words, rounded up to 16 bytes.
CONVSWAP_HOST_DEVICE constexpr int plane_offset_words(int window_planes) {
  return (2 * window_planes + 3) / 4 * 4;
}

template <typename T>
struct Arguments : Tensors<T>, Geometry {
  EpilogueParams epilogue;

  // An output plane is one depth slice of one filter's output for one image. Its receptive field spans
  // `filter_depth` planes of x.
  int planes;
  FastDivisor output_depth, filters_per_image, filters_per_channel;  // of all groups, of one group
  int filter_depth, input_depth, stride_depth, dilation_depth, pad_depth;
  FastDivisor depth_taps, taps;  // of a filter: along the depth, along all axes
  bool is_contiguous;  // output plane i reads plane i of x only, whose rows are aligned for vector loads

  // A block's tile of the output.
  int block_planes;
  int tile_rows, tile_columns;
  FastDivisor tiles_across, tiles_down;

  // The window is the receptive field of the tile, as float32, with zeros for padding. A line is one row of
  // one of its planes. A line is loaded `vector_columns` columns at a time, so it begins at a multiple of
  // them. If is_contiguous, a thread loads the same columns of every `line_step`-th line.
  int vector_columns;
  FastDivisor window_rows, window_columns, window_loads;  // per plane, per row, vector loads per row
  int alignment_columns;  // columns that a line has before the receptive field, for alignment
  int line_step;
  int row_step, window_step, x_step;  // from a thread's line to its next: in rows, in elements
  int window_plane_gap, x_plane_gap;  // added to window_step and x_step on the way to another plane
  int window_pitch, window_plane, window_words;  // in floats: of a row, of a plane, of the window

  // A strip is `strip_outputs` outputs that one thread computes one after the other: down a column, or along
  // a row with `column_step` columns from one to the next. Steps of 0 columns mean down.
  FastDivisor strips_across, strip_planes;  // per row of the tile, block_planes
  int strips, strip_outputs, column_step;
};

}  // namespace convswap::depthwise
