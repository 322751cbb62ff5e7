#pragma once

// Constants that the plan and the kernels of channels_last_depthwise share, and the kernels' arguments.
// channels_last_depthwise.cc describes the algorithm.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::channels_last_depthwise {

constexpr int kMaxThreads = 256, kPrepareThreads = 256;
constexpr int kWordBytes = 4, kVectorBytes = 16;
constexpr int kStripColumns = 4;  // adjacent outputs of a row that a thread computes together

// `sliding`: words of channels of a tile, rows of x in shared memory for a run, and pieces of a row that a
// thread of a run copies at most. A tile has an even number of strips.
constexpr int kGroupWords = 16, kGroupBytes = kGroupWords * kWordBytes;
constexpr int kSlidingStages = 6;
constexpr int copies_per_row(int stride) { return stride + 1; }

// Blocks of `sliding` whose registers fit into a multiprocessor at least, for filters of `size` x `size`
// taps. The taps and the sums of all rows of y in progress are in registers.
constexpr int min_sliding_blocks(int size) { return size == 3 ? 2 : 1; }

template <typename T>
struct Arguments : Tensors<T> {
  T* prepared_weights;  // (taps, weight_pitch)
  int weight_pitch;     // filters, rounded up to whole vectors
  int taps;             // of a filter, along all axes
  EpilogueParams epilogue;
  bool has_activation;

  int output_height, output_width, filters;
  FastDivisor output_depth;
  FastDivisor filters_per_channel;
  int input_depth, input_height, input_width, channels;
  int filter_depth, filter_height, filter_width;
  int stride_depth, stride_height, stride_width;
  int dilation_depth, dilation_height, dilation_width;
  int pad_depth, pad_height, pad_width;

  // A block's tile: vectors of channels, strips of columns, and runs of rows. A thread computes the rows of a
  // run one after the other.
  FastDivisor tile_vectors, tile_strips;
  int tile_runs;
  FastDivisor vector_tiles, strip_tiles;  // tiles along the vectors of a position, and along a row
  FastDivisor plane_runs;                 // runs of an image's depth
  int run_rows, runs;                     // rows of a run; runs of all images and depths

  Offset<unsigned char> stages;  // of `sliding`, in shared memory: a ring of rows for each run of the tile
  int stage_bytes;               // of a row of x: the pixels of the tile's strips
};

}  // namespace convswap::channels_last_depthwise
