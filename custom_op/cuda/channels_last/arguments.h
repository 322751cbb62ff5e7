#pragma once

// Arguments and shared-memory layout of the channels_last kernels, shared by the plan (host) and the kernels.
// channels_last.cc explains the algorithm and its terms.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/naive_quantised_conv.h"
#include "cuda/primitives/nhwc_conv.h"
#include "cuda/primitives/requantise.h"
#include "cuda/primitives/shared_offset.h"
#include "cuda/primitives/tensor_map.h"

namespace convswap::channels_last {

constexpr int kRowBytes = 128;             // a row in shared memory: the span of the swizzle
constexpr int kSwizzleBytes = 1024;        // the swizzle repeats after eight rows
constexpr int kWgmmaM = 64;                // M of a wgmma: filters
constexpr int kWgmmaBytes = 32;            // bytes along K of a wgmma
constexpr unsigned kIgnoredBits = 0x1fff;  // of a float32 as operand of a wgmma
constexpr int kAccumulatorTileColumns = 8;
constexpr int kFilterBlockBytes = kWgmmaM * kRowBytes;  // weights of 64 filters, for one tap and chunk
constexpr int kMaxTaps = 128;                           // of height and width
constexpr int kMaxStridePhases = 16;
constexpr int kMaxTapRanges = 16, kMaxBorderOutputs = 64;  // of an axis

constexpr int kConsumerWarpgroups = 2;
constexpr int kConsumerThreads = 128 * kConsumerWarpgroups;
constexpr int kProducerThreads = 64;
constexpr int kSplitterThreads = 64;  // of kernels of numbers in two parts
constexpr int kPixelWarp = kConsumerThreads / 32, kWeightWarp = kPixelWarp + 1;
// Threads of a block of `kernel`, for numbers in so many parts.
constexpr int block_threads(int parts) {
  return kConsumerThreads + kProducerThreads + (parts > 1 ? kSplitterThreads : 0);
}
constexpr int kPrepareThreads = 256, kUnalignedThreads = 256, kWindowThreads = 256;
constexpr int kWordCodes = 4, kUnitCodes = 16;

constexpr int kMaxPixelStages = 8;
constexpr int kMaxWeightStages = 24;
constexpr int kMaxStagedTiles = 2;
constexpr int kMaxSplits = 8;                            // blocks of a cluster
constexpr int kPartialSumBytes = 128 * 4 * sizeof(int);  // of an accumulator tile
constexpr short kNoOutput = -1;

// Codes, of which a wgmma makes int32 sums.
template <typename Element>
constexpr bool kIsCode = sizeof(Element) == 1;

// Bytes of a row of a result chunk, and result chunks of a warpgroup.
template <typename Element>
constexpr int kResultRowBytes = kIsCode<Element> ? kWgmmaM : kRowBytes;
template <typename Element>
constexpr int kResultChunks = kWgmmaM * static_cast<int>(sizeof(Element)) / kResultRowBytes<Element>;

// Taps of an axis, from `first` to before `end`.
struct TapRange {
  unsigned char first, end;

  bool operator==(const TapRange&) const = default;
};

// The ranges that the outputs of an axis have inside the input, all taps first, and the number of the range
// of each output at a border: of those before `first_inside`, then of those from `end_inside` on.
struct TapRanges {
  int count;
  int first_inside, end_inside, outputs;
  TapRange ranges[kMaxTapRanges];
  unsigned char at_border[kMaxBorderOutputs];
};

struct BlockState {
  TmaMbarrier pixels_full[kMaxPixelStages];
  TmaMbarrier weights_full[kMaxWeightStages];
  TmaMbarrier residual_full[kConsumerWarpgroups][kMaxStagedTiles];
  TmaMbarrier partial_sums_full;
  Mbarrier pixels_empty[kMaxPixelStages], weights_empty[kMaxWeightStages];
  Mbarrier pixels_split[kMaxPixelStages];  // of numbers in two parts: both are there
  // Warpgroups that take turns: mainloop_turn[i] lets warpgroup i begin its main loop.
  Mbarrier mainloop_turn[kConsumerWarpgroups];
};

// Windows of x, see derived.h. A unit is kUnitCodes of a window.
struct Windows {
  FastDivisor channel_columns;  // codes of a channel in a window
  FastDivisor window_units, rows;
  int row_units;  // of all windows of a row; 0 without windows
  int height, width, dilation_width, pad_height, pad_width;
  int stride_width, pixel_columns;      // columns of x from window to window, and between joined pixels of y
  int channel_stride, position_stride;  // of x
  bool has_rows_of_codes;               // the codes of neighbouring taps are neighbours in x
  unsigned char* codes;
};

struct SharedOffsets {
  Offset<unsigned char> pixels, weights;
  Offset<unsigned char> results;       // the staged tiles of each consumer warpgroup; see stages_in_place
  Offset<unsigned char> partial_sums;  // of the block's accumulator tiles, from each other block
  Offset<unsigned char> discard;       // a row for codes and 16-bit results at positions without an output
  Offset<short> result_rows;           // row of a result chunk, or kNoOutput, for each position of a tile
  Offset<short> range_pairs;           // of codes, for each position of the tiles of both warpgroups
  Offset<unsigned char> code_table;    // of codes: a code of y for each code of a sum
  Offset<BlockState> state;
};

template <typename Element>
struct Arguments : Tensors<Element> {
  TensorMap x_map, y_map, residual_map;
  unsigned char* prepared_weights;

  int work_tiles;
  int splits;                 // blocks of a cluster, which split the K chunks of a work tile
  FastDivisor filter_blocks;  // of all conv groups; a block is the filters of a work tile
  FastDivisor filter_blocks_per_group;
  FastDivisor column_tiles, row_tiles, output_depth;
  int tile_images, tile_rows, tile_columns;  // outputs of a tile
  int image_positions, pitch;                // positions from image to image, and from row to row, of a tile
  int block_filters, filters_per_group, channels_per_group;
  FastDivisor tile_rows_divisor, tile_columns_divisor;
  int y_images, y_rows, y_columns, y_channels;  // extents of y, for stores without TMA

  // Of the node, whose filter f % node_filters is filter f: of the weights, the bias, the scale, the offset.
  FastDivisor node_filters;  // of all conv groups
  int node_channels;         // of a conv group
  Windows windows;

  int depth_taps, channel_chunks;  // K chunks: for each depth tap all chunks of channels
  int chunk_channels;
  int row_wgmmas;  // along K of a row; fewer than 4 for a single chunk that does not fill rows
  int taps;        // of height and width
  int stride_depth, stride_height, stride_width;
  int dilation_depth, pad_depth, pad_height, pad_width;

  int stride_phases;
  short phase_rows[kMaxStridePhases], phase_columns[kMaxStridePhases];
  unsigned tap_offsets[kMaxTaps];  // bytes from an output's position to the tap's pixel in a pixel stage

  int pixel_stages, weight_stages;
  int phase_bytes, pixel_stage_bytes, loaded_bytes;  // of a stride phase; of a stage; by TMA for a stage
  int weight_stage_bytes;
  // Of numbers in two parts: bytes of a part of a stage, and weight stages whose products are summed apart.
  int pixel_part_bytes, weight_part_bytes, added_units;
  // A warpgroup begins its main loop after the other one has ended its own. Otherwise it could mistake an
  // older phase of a stage, whose load for the other warpgroup is on its way, for its own. That is not needed
  // if a stage always serves the same warpgroup: if the stages hold the loads of an even number of tiles.
  bool takes_turns;
  bool keeps_weights;  // all weights stay in shared memory: a stage for each K chunk and tap
  // A warpgroup stages all of its result chunks at once, or one after the other.
  int staged_chunks, result_chunk_bytes;
  // A warpgroup that stages tiles in two places computes one while the other is stored, or its residual
  // comes.
  int staged_tiles;
  int staged_bytes;  // of a tile
  // Results replace the pixels that they were computed from, instead of having memory of their own.
  bool stages_in_place;
  bool has_activation;
  SharedOffsets shared;

  EpilogueParams epilogue_params;

  // Of codes.
  NaiveQuantisedConv conv;
  StepLimits limits;
  CodeResults code_results;

  // Of codes whose zero point is not 0: the ranges of taps that outputs have inside the input, along rows and
  // columns, the full range first. `padding_sums` (pairs of ranges, filters) has the zero point times the
  // weights on padding, and for the full ranges, the first pair, times all weights.
  int* padding_sums;  // null for zero point 0
  TapRanges rows_inside, columns_inside;

  int filter_taps;  // of a channel of a filter of the node, for `prepare`

  NhwcConv unaligned;
};

}  // namespace convswap::channels_last
