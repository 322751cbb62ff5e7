#pragma once

// Arguments of the kernel of tiled. tiled.cc describes the algorithm.

#include "conv/epilogue.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::tiled {

constexpr int kMaxThreads = 256;

// With three spatial axes, each output plane is computed like an image, and the input plane that one tap
// along the depth reads counts as a channel: `channels` is the channels per group times the depth taps.
template <typename T>
struct Arguments : Tensors<T>, Geometry {
  Epilogue epilogue;

  bool has_depth;
  FastDivisor output_depth, depth_taps;
  int input_depth, stride_depth, dilation_depth, pad_depth;

  // Tile of a block. `splits` groups of threads share the filter rows of a stage.
  int rows, columns, block_filters, channels_per_stage, splits;
  FastDivisor tiles_down, tiles_across, filter_blocks;
  // Numbers of threads per row of the tile, of threads with the same filters and split, and of filter tiles
  // of a split.
  FastDivisor threads_across, threads_per_filter_tile, threads_across_filters;
  // The window is the tile's receptive field in one channel. The pitches in smem, in elements, are those of
  // its rows, of its channels, and of the weights of one tap.
  FastDivisor window_width, window_size;
  int window_pitch, window_plane;
  int weight_pitch;
  FastDivisor filter_quads;  // groups of four filters in a block
  FastDivisor filter_height_divisor;
  // Tile of y, after the pool.
  FastDivisor tile_y_columns, tile_y_plane;
  int tile_y_rows;
};

}  // namespace convswap::tiled
