#pragma once

// What the kernel of `tiled` is given; see tiled.cc.

#include "conv/epilogue.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::tiled {

constexpr int kMostThreads = 256;

// Of data with a depth an output plane is an image by itself, and a channel is what one tap of the depth
// reads of one: `channels` are those of a group times the taps.
template <typename T>
struct Arguments : Tensors<T>, Geometry {
  Epilogue epilogue;

  bool has_depth;
  FastDivisor output_depth, depth_taps;
  int input_depth, stride_depth, dilation_depth, pad_depth;

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
  FastDivisor tile_y_columns, tile_y_plane;
  int tile_y_rows;
};

}  // namespace convswap::tiled
