#pragma once

// What the kernel of `tiled` is given; see tiled.cc.

#include "conv/epilogue.h"
#include "cuda/primitives/fast_divisor.cuh"

namespace convswap::tiled {

constexpr int kMostThreads = 256;

// What a thread computes of 2 rows; a kernel for each.
struct OutputsOfThread {
  int filters, columns;
};
constexpr OutputsOfThread kOutputsOfThread[] = {{1, 2}, {4, 2}, {8, 2}, {8, 4}};

template <typename T>
struct Arguments {
  const T* x;
  const T* w;
  const T* b;  // null without
  const T* z;  // null without
  T* y;

  // The problem: channels and filters of a group, and of the tensors.
  int channels, filters, in_channels, out_channels;
  int height, width, out_height, out_width, y_height, y_width;
  int filter_height, filter_width, stride_height, stride_width, dilation_height, dilation_width;
  int pad_top, pad_left;
  Epilogue epilogue;

  // A block's tile: outputs of the convolution, filters, and the channels that are staged at a time.
  int rows, columns, filters_of_block, channels_at_a_time, splits;
  FastDivisor tiles_down, tiles_across, filter_blocks;
  // The threads that are side by side, those of the same filters, and those of a split with other filters.
  FastDivisor threads_across, threads_of_filter, filter_threads;
  // The part of a channel that a tile needs, and how far apart its rows and channels are staged.
  FastDivisor window_width, window_size;
  int window_pitch, window_plane;
  int weight_pitch;  // how far apart taps are staged
  FastDivisor filter_quads, rows_of_filter;
  // What a tile gives of y.
  FastDivisor y_columns, y_plane;
  int y_rows;
};

}  // namespace convswap::tiled
