#pragma once

// Constants that the plan and the kernels of quantised share, and the kernels' arguments. quantised.cc
// describes the algorithm.

#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_quantised_conv.h"
#include "cuda/primitives/requantise.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::quantised {

constexpr int kThreads = 256;  // at most, of every kernel
constexpr int kPrepareThreads = 256;
constexpr int kPositions = 8;  // of a thread of `dense`
constexpr int kWordChannels = 4;
constexpr int kBandRows = 8;  // strips of neighbouring threads of the depthwise kernels, one below the other
constexpr int kColumnTaps = 3;  // height of the filters of `depthwise_columns`

// Rows of outputs of a strip of `depthwise_columns`.
constexpr int strip_rows(int stride) { return stride == 1 ? 2 : 1; }

// The axes of a convolution: depth, height, width.
struct Sizes {
  int input[3], filter[3], stride[3], dilation[3], pad[3];
};

struct Dense {
  // Tiles of the grid, from the fastest axis on. A filter block is the filters of a block, of one conv group.
  FastDivisor filter_blocks, column_tiles, row_tiles, output_depth;
  FastDivisor blocks_per_group;
  FastDivisor tile_columns;
  int tile_rows;
  FastDivisor filter_lanes;  // threads that share positions, each with its own filters
  int block_filters;
  int words, stage_words;  // words of channels of a conv group; at most, of those in shared memory
  FastDivisor staged_rows, staged_columns;  // of the input, for a tile
  FastDivisor staged_words, last_words;     // in a stage, and in the last one of a depth tap
  bool has_x_words;                         // x is NHWC, in whole and aligned words
  Offset<unsigned> x_words, w_words;
};

struct Depthwise {
  FastDivisor words, thread_words;  // words of channels of a position, and threads that share them
  FastDivisor strips;               // of a row
  int strip_rows;                   // of all images and depths
  FastDivisor output_depth, strip_rows_of_height;
  int output_height, output_width;
  bool has_columns;  // weights are those of `depthwise_columns`
};

// X is the type of the codes of x. The tensors of `conv` count; those of Tensors are x, w and the like again.
template <typename X>
struct Arguments : Tensors<X> {
  NaiveQuantisedConv conv;
  long long outputs;  // elements of y
  Requantisation requantisation;
  Sizes sizes;
  Dense dense;
  Depthwise depthwise;
  // Words of weights, and for each filter the zero point of x times its weights, negated. `dense`: (filter
  // blocks, depth taps, words of channels, taps, filters of a block), four channels a word. `depthwise`:
  // (taps, words of channels), a filter for each of four channels. `depthwise_columns`: (depth taps, columns
  // of the filter, channels of a word, words of channels), three rows of a filter a word.
  unsigned* prepared_weights;
  int* corrections;
  long long prepared_words;
  int prepared_filters;  // with those that fill the last block of a group
  int taps;              // of height and width
};

}  // namespace convswap::quantised
