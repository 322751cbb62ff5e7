#pragma once

// Arguments and shared-memory layout of the many_channels kernels, shared by the plan (host) and the kernels.
// many_channels.cc explains the algorithm and its terms.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::many_channels {

constexpr int kVectorBytes = 16;                        // eight channels of a pixel
constexpr int kVectorChannels = 8;                      // channels in a vector
constexpr int kWgmmaM = 64;                             // M of a step and of a wgmma: filters
constexpr int kWgmmaK = 16;                             // K of a step and of a wgmma: two channel blocks
constexpr int kAccumulatorTileColumns = 8;              // positions of an accumulator tile (wgmma.cuh)
constexpr int kStepUnits = kWgmmaM * kWgmmaK * 2 / 16;  // 16-byte units of the weights of one step
constexpr int kMaxSteps = 256;                          // steps of a K tile
constexpr int kMaxStridePhases = 16;                    // row times column stride phases that taps read
constexpr int kMaxStepsPerStage = 5;                    // steps of a weight stage
// With mma.sync, the warps wait for stages rather than for single steps: a stage has all taps of a 3x3
// filter. If the stages do not fit into shared memory, they have kMaxStepsPerStage.
constexpr int kMaxMmaStepsPerStage = 9;

// Two consumer warpgroups multiply, each for half of the output tile's positions. Of two producer warps, one
// loads pixels, the other weights and output offsets. Both convert values below the K tiles' binade windows.
constexpr int kConsumerWarpgroups = 2;
constexpr int kConsumerThreads = 128 * kConsumerWarpgroups;
constexpr int kProducerThreads = 64;
constexpr int kThreads = kConsumerThreads + kProducerThreads;
constexpr int kPixelWarp = kConsumerThreads / 32, kWeightWarp = kPixelWarp + 1;
// Named barrier of the producers. 0 is __syncthreads, and warpgroup.cuh reserves 1 to 3.
constexpr int kProducerBarrier = 4;
// Threads of the kernel `prepare`. A block prepares the weights of one filter, or K tiles of pixels.
constexpr int kPrepareThreads = 512, kPrepareThreadsPerSm = 3 * kPrepareThreads;

constexpr int kMinWeightStages = 4, kMaxWeightStages = 8;
constexpr int kMinMmaWeightStages = 2;  // mma.sync keeps no stage in flight
constexpr int kMaxPixelStages = 6;
// Two stages: the work tile whose results are being stored, and the next work tile.
constexpr int kTileInfoStages = 2;
// Limits on the binade windows (tensor_core_formats.cuh) of a filter's weights and on the binades of a
// prepared tile's pixels, over the K tiles of a split. If the weights take two windows, pixels have kBinades
// less. Beyond the limits the accumulators could leave the float32 range while they are rescaled.
constexpr int kMaxWeightWindows = 2;
constexpr int kMaxBinades = 80;
// Binade windows of a K tile below its first. They are converted and multiplied after all K tiles.
constexpr int kMaxLowWindows = 2;

// A warp's results pass through shared memory in parts of 16 filters (rows) and 32 positions. The pitch
// places four consecutive rows in different banks.
constexpr int kWarpRows = 16;
constexpr int kStagedPositions = 32;
constexpr int kStagedPitch = 40;
constexpr int kStagedFloats = kWarpRows * kStagedPitch;
constexpr int kNoOutput = -1;
// Bits that mark a sum that a split could not compute: a NaN payload that no arithmetic produces.
constexpr unsigned kInvalidSumBits = 0x7fe5ca1eu;
// Threads of a block of the kernel `combine`, which adds the sums of split-K.
constexpr int kCombineThreads = 256;

// Description of a pixel stage for the consumers.
struct PixelStageInfo {
  // The accumulators hold the sum times 2^exponent times the filter's scale; the epilogue undoes both. The
  // exponent is the pixels' scale exponent plus kBinades times the weight window.
  int exponent;
  bool is_last;         // last pixel stage of its work tile
  bool use_naive_conv;  // drop the products and compute the work tile with naive_conv_value
};

// Scale of a filter's converted weights. The scale of window i is that of binade top - 29 i.
struct FilterRange {
  int top;
  unsigned windows;  // binade windows; ~0: wgmma cannot compute the filter
};

// Binades that cover the pixels of a prepared K tile. The K tile is scaled for the window whose highest
// binade is `top`; values below that window are zeros in the prepared K tile. `bottom` is the lowest binade
// of that window, or of the pixels if they reach below it.
struct alignas(8) PixelRange {
  int top, bottom;

  // Values of `top` for a K tile with infinities or NaN, and for one of zeros, to which any scale applies.
  static constexpr int kNotFinite = 1 << 10, kAllZeros = -(1 << 10);
};

// Source of a vector in the input, for the first depth tap.
struct alignas(8) PixelSource {
  int element;  // offset from the K tile's first channel in the tile's first image
  int depth;    // negative or beyond the input's depth: padding; kNoDepth: padding of height or width
};
// Depth index of padding. No depth tap can move it into the input.
constexpr int kNoDepth = -(1 << 30);

// Description of a work tile for the consumers' epilogue.
struct TileInfo {
  long long image;               // first image of the output tile
  int conv_group, filter_block;  // filter_block: within the conv group
  int first_row;                 // first filter row, counted over the filter blocks of all conv groups
  int split;
};

// mbarriers and stage descriptions in shared memory. `full` mbarriers signal that a stage is loaded, `empty`
// mbarriers that all consumers have read it. `tile_ready` and `tile_done` signal the same of a TileInfo and
// its output offsets.
struct BlockState {
  TmaMbarrier pixels_full[kMaxPixelStages];
  TmaMbarrier weights_full[kMaxWeightStages];
  TmaMbarrier tile_ready[kTileInfoStages];
  Mbarrier pixels_empty[kMaxPixelStages], weights_empty[kMaxWeightStages];
  Mbarrier tile_done[kTileInfoStages];
  PixelStageInfo pixel_stage_info[kMaxPixelStages];
  TileInfo tile_info[kTileInfoStages];
  int low_stage;  // pixel stage into which producers convert a low window
};

// Offsets of the parts of shared memory.
struct SharedOffsets {
  Offset<unsigned char> pixels, weights;
  Offset<int> output_offsets;  // kTileInfoStages times tile_positions
  Offset<float> staging;       // kStagedFloats for each consumer warp
  Offset<BlockState> state;
};

// Shared memory of the kernel `prepare`: the block's reduced value range (ValueRange), then the sources of
// the vectors of one channel block of a prepared tile.
struct PrepareState {
  unsigned max_bits, min_bits_less_one;
  PixelSource sources[1];

  static constexpr long long bytes(long long vectors) {
    return static_cast<long long>(sizeof(PrepareState)) +
           vectors * static_cast<long long>(sizeof(PixelSource));
  }
};

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  // Workspace, written by `prepare` and read by `kernel`. Pixels: for each prepared tile of the round, conv
  // group and K tile. Weights: for all filter rows, including rows that pad the last filter block.
  unsigned char* prepared_pixels;
  PixelRange* pixel_ranges;
  // Sums of each split, each with the shape of y. Written by `kernel` and read by `combine`.
  float* split_accumulators;
  long long y_elements;
  // Offset of the result at each position of an output tile, from output channel 0 of the tile's first image.
  int* output_offsets;
  unsigned char* prepared_weights;
  FilterRange* filter_ranges;

  int first_prepared_tile;        // of the round
  bool prepares_weights;          // `prepare` prepares weights; otherwise pixels
  int blocks_per_tile_and_group;  // blocks of `prepare` for the pixels of a prepared tile and conv group
  int conv_groups;
  int output_tiles_per_prepared_tile;
  int k_tiles, k_tile_channels;   // K tiles of a conv group, over all depth taps
  int steps;                      // of a K tile
  int stage_steps;                // steps of a weight stage; the last stage of a K tile may have fewer
  int tile_positions;             // positions of an output tile, over both consumer warpgroups
  int strip_columns;              // output columns of a strip
  FastDivisor slices;             // slices of an image: strips times the output's depth
  FastDivisor output_depth;       // of an image
  FastDivisor pitch, slice_rows;  // positions of a row, and rows of a slice
  FastDivisor depth_taps;         // a K tile belongs to one depth tap
  int input_depth, stride_depth, dilation_depth, pad_depth;
  FastDivisor channel_block_vectors;  // vectors of a channel block of an output tile, over all stride phases
  FastDivisor stride_phase_vectors;   // vectors of one stride phase of such a channel block
  FastDivisor prepared_channel_block_vectors, prepared_stride_phase_vectors;  // the same for a prepared tile
  FastDivisor column_stride_phases;                                           // for each stride phase of rows
  int work_tiles_per_block;  // the first blocks_with_extra_tile blocks have one more
  int blocks_with_extra_tile;
  // For each output tile: conv groups * filter blocks * splits.
  FastDivisor work_tiles_per_prepared_tile, work_tiles_per_output_tile;
  FastDivisor splits;  // of an output tile's K tiles; each split is a work tile
  FastDivisor filter_blocks_per_group;

  unsigned channel_stride_bytes;  // distance of the input's channels
  int pixel_stages, weight_stages;
  int pixel_stage_bytes, weight_stage_bytes;
  int prepared_k_tile_bytes;
  // Contiguous parts of a pixel stage, which are TMA loads, their size, and the distance of their sources.
  int tma_loads, tma_load_bytes, tma_load_stride;
  SharedOffsets shared;
  // First row and column of each stride phase in the padded input.
  int stride_phase_rows[kMaxStridePhases], stride_phase_columns[kMaxStridePhases];
  // Offset, in vectors, from an output's position to the pixels of a step in the first of its two channel
  // blocks. Steps go over the taps of two channel blocks, then over the taps of the next two.
  unsigned short step_offsets[kMaxSteps];

  EpilogueParams epilogue_params;
  NaiveConv naive_conv;  // last, because only tiles that wgmma cannot compute need it
};

}  // namespace convswap::many_channels
