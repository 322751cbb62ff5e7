#pragma once

// Arguments and shared-memory layout of the channels_last_mma kernels, shared by the plan (host) and the
// kernels. channels_last_mma.cc explains the algorithm and its terms.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_quantised_conv.h"
#include "cuda/primitives/nhwc_conv.h"
#include "cuda/primitives/requantise.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::channels_last_mma {

constexpr int kPieceBytes = 16;  // of a load, a store, and a row of a matrix of ldmatrix
constexpr int kRowBytes = 128;   // of a position or filter in a K chunk
constexpr int kRowPieces = kRowBytes / kPieceBytes;
constexpr int kMmaBytes = 32;  // bytes along K of an mma
constexpr int kMmaPositions = 16, kMmaFilters = 8;
constexpr int kPrepareThreads = 256, kUnalignedThreads = 256;
constexpr int kMaxStages = 5;
// Rows behind those of the prepared weights, which the last tile may load: the filters of the largest tile.
constexpr int kPaddingRows = 128;

// Codes, of which an mma makes int32 sums.
template <typename Element>
constexpr bool kIsCode = sizeof(Element) == 1;
constexpr int kWordFilters = 4;  // neighbouring filters of a thread, whose codes are a word

// The pixel of a position at the filter's first tap: its offset in x, in pieces, and its coordinates, which
// may lie in the padding. Offsets wrap around at 2^32; those of pixels in the image are right.
struct alignas(16) FirstPixel {
  unsigned offset;
  int depth, row, column;
};

struct SharedOffsets {
  Offset<unsigned char> stages;  // a stage: rows of pixels, then rows of weights; later the results
  Offset<FirstPixel> pixels;     // of each position of the tile
  Offset<float> bias;            // of each filter of the tile
  // Of codes. For each filter of the tile the bias with the correction, the scale and the offset; a code of y
  // for each code of a sum.
  Offset<int> initial_sums;
  Offset<float> scales, offsets;
  Offset<unsigned char> code_table;
};

template <typename Element>
struct Arguments : Tensors<Element> {
  unsigned char* prepared_weights;  // (group, K chunk, filter, kRowBytes), and kPaddingRows rows
  EpilogueParams epilogue;
  bool has_activation;
  int stages;
  SharedOffsets shared;

  FastDivisor filter_blocks;  // of all conv groups; a block is the filters of a tile
  FastDivisor filter_blocks_per_group;
  int filters_per_group, out_channels;

  int chunks;        // K chunks of a tile
  int taps;          // of a filter
  int group_pieces;  // channels of a conv group
  int whole_spans;   // spans of kRowPieces pieces
  int tail_pieces;   // pieces of the last span, which is shorter; 0 if there is none
  // Taps and pieces of a K chunk of the last span: tail_taps * tail_pieces + tail_rest = kRowPieces.
  int tail_taps, tail_rest;
  int pixel_pieces;  // channels of all conv groups
  FastDivisor filter_height, filter_width;

  int positions;  // of y
  FastDivisor output_depth, output_height, output_width;
  int input_depth, input_height, input_width;
  int stride_depth, stride_height, stride_width;
  int dilation_depth, dilation_height, dilation_width;
  int pad_depth, pad_height, pad_width;

  // Of codes. `zero_point_piece` has the zero point of x, which is loaded for padding. `corrections` has for
  // each filter the zero point times its weights, negated. Both are prepared with the weights.
  NaiveQuantisedConv conv;
  Requantisation requantisation;
  CodeResults code_results;
  unsigned char* zero_point_piece;
  int* corrections;

  NhwcConv unaligned;
};

}  // namespace convswap::channels_last_mma
