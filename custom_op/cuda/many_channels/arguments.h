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
constexpr int kWgmmaM = 64;                             // M of a wgmma: filters
constexpr int kWgmmaK = 16;                             // K of a wgmma: two channel blocks
constexpr int kTileColumns = 8;                         // N is a multiple of eight positions
constexpr int kStepUnits = kWgmmaM * kWgmmaK * 2 / 16;  // 16-byte units of the weights of one wgmma
constexpr int kMaxSteps = 256;                          // wgmmas of a chunk of channels
constexpr int kMaxPhases = 16;                          // row phases times column phases that taps read
constexpr int kMaxStepsPerStage = 5;                    // steps whose weights one TMA load brings

// Two consumer warpgroups issue wgmmas, each for half of the tile's columns. Two producer warps issue TMA
// loads: one loads pixels, the other loads weights and output offsets. Both producer warps convert values
// below the chunks' binade windows.
constexpr int kConsumerWarpgroups = 2;
constexpr int kConsumerThreads = 128 * kConsumerWarpgroups;
constexpr int kProducerThreads = 64;
constexpr int kThreads = kConsumerThreads + kProducerThreads;
constexpr int kPixelWarp = kConsumerThreads / 32, kWeightWarp = kPixelWarp + 1;
// Named barrier of the producers, after those of the block's three warpgroups (warpgroup.cuh).
constexpr int kProducerBarrier = 4;
// Threads of the kernel `prepare`. A block prepares the weights of one filter, or chunks of a tile's pixels.
constexpr int kPrepareThreads = 512, kPrepareThreadsPerSm = 3 * kPrepareThreads;

constexpr int kMinWeightStages = 4, kMaxWeightStages = 8;
constexpr int kMaxImageStages = 6;
// Two stages: the tile whose results are being stored, and the next tile.
constexpr int kTileInfoStages = 2;
// Limits on the binade windows (tensor_core_formats.cuh) of a filter's weights and on the binades of a tile's
// values. Beyond them the accumulators could leave the float32 range while they are rescaled.
constexpr int kMaxWeightWindows = 2;
constexpr int kMaxBinades = 80;
// Binade windows of a chunk below its first. They are converted and multiplied after all chunks.
constexpr int kMaxLowWindows = 2;

// A warp's results pass through shared memory in parts of 16 rows and 32 columns. The pitch places four
// consecutive rows in different banks.
constexpr int kWarpRows = 16;
constexpr int kStagedColumns = 32;
constexpr int kStagedPitch = 40;
constexpr int kStagedFloats = kWarpRows * kStagedPitch;
constexpr int kNoOutput = -1;
// Bits that mark a sum that a split could not compute: a NaN payload that no arithmetic produces.
constexpr unsigned kInvalidSumBits = 0x7fe5ca1eu;
// Threads of a block of the kernel `combine`, which adds the sums of the splits.
constexpr int kCombineThreads = 256;

// Description of an image stage for the consumers.
struct ImageStageInfo {
  int exponent;         // of the pixels' scale plus the weight window's; the filter's is applied per row
  bool is_last;         // last chunk of its tile
  bool use_naive_conv;  // compute the tile with naive_conv_value instead of wgmma
};

// Scale of a filter's converted weights. The scale of window i is that of binade top - 29 i.
struct FilterRange {
  int top;
  unsigned windows;  // binade windows; ~0: wgmma cannot compute the filter
};

// Binades of a prepared chunk of a tile's pixels. The chunk is scaled for the window that begins at `top`;
// values below that window are zeros in the prepared chunk.
struct alignas(8) PixelRange {
  int top, bottom;

  // Values of `top` for a chunk with infinities or NaN, and for a chunk of zeros, which any scale serves.
  static constexpr int kNotFinite = 1 << 10, kAllZeros = -(1 << 10);
};

// Source of a vector: the pixel's offset in the input at the chunk's first channel, for the first depth tap.
struct alignas(8) PixelSource {
  int element;  // offset from the chunk's first channel in the tile's first image
  int plane;    // input plane; kNoPlane: padding within a plane
};
// Plane index of padding. No depth tap can move it into the input.
constexpr int kNoPlane = -(1 << 30);

// Description of a tile for the consumers' epilogue.
struct TileInfo {
  long long image;          // first image of the tile
  int group, filter_block;  // filter_block: within the group
  int first_row;            // index of the first filter row, counted over the filter blocks of all groups
  int split;
};

// mbarriers and stage descriptions in shared memory. `full` mbarriers signal that a stage is loaded, `empty`
// mbarriers that it has been read; `tile_ready` and `tile_done` are the same for tile descriptions.
struct BlockState {
  TmaMbarrier image_full[kMaxImageStages];
  TmaMbarrier weights_full[kMaxWeightStages];
  TmaMbarrier tile_ready[kTileInfoStages];
  Mbarrier image_empty[kMaxImageStages], weights_empty[kMaxWeightStages];
  Mbarrier tile_done[kTileInfoStages];
  ImageStageInfo image_info[kMaxImageStages];
  TileInfo tile_info[kTileInfoStages];
  int low_stage;  // stage into which producers convert a low window
};

// Offsets of the parts of shared memory.
struct SharedOffsets {
  Offset<unsigned char> images, weights;
  Offset<int> output_offsets;  // kTileInfoStages times the columns
  Offset<float> staging;       // kStagedFloats for each consumer warp
  Offset<BlockState> state;
};

// Shared memory of the kernel `prepare`: the block's reduced value range (ValueRange), then the sources of a
// prepared tile's vectors in one channel block.
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
  // Workspace, written by `prepare` and read by `kernel`. Pixels: for each tile of the band, group and chunk.
  // Weights: for all filter rows, including rows that pad the last filter block.
  unsigned char* prepared_pixels;
  PixelRange* pixel_ranges;
  // Sums of each split, each with the shape of y. Read by `combine`.
  float* split_accumulators;
  long long y_elements;
  // Offset of the result of each column of a tile, from plane 0 of the tile's first image.
  int* output_offsets;
  unsigned char* prepared_weights;
  FilterRange* filter_ranges;

  int first_tile;             // first prepared tile of the band
  int weight_blocks;          // first blocks of `prepare`, which prepare weights; the others prepare pixels
  int blocks_per_tile_group;  // blocks of `prepare` that share the chunks of a tile and group
  int groups;
  int subtiles;                   // tiles of `kernel` in a prepared tile
  int chunks, chunk_channels;     // chunks of a group, over all depth taps
  int steps;                      // wgmmas of a chunk
  int stage_steps;                // steps of a weight stage; the last stage of a chunk may have fewer
  int columns;                    // positions of a tile
  int strip_columns;              // output columns of a strip
  FastDivisor slices;             // slices of an image: strips times output planes
  FastDivisor output_depth;       // output planes
  FastDivisor pitch, slice_rows;  // positions of a row, and rows of a slice
  FastDivisor depth_taps;         // a chunk belongs to one depth tap
  int input_depth, stride_depth, dilation_depth, pad_depth;
  FastDivisor channel_block_vectors;  // vectors of a channel block, over all phases
  FastDivisor phase_vectors;          // vectors of one phase of a channel block
  FastDivisor prepared_channel_block_vectors, prepared_phase_vectors;  // the same for a prepared tile
  FastDivisor column_phases;                                           // column phases of a row phase
  int work_tiles_per_block;                                            // the first blocks may have one more
  int blocks_with_extra_tile;
  FastDivisor work_tiles_per_prepared_tile;  // subtiles times groups times filter blocks times splits
  FastDivisor work_tiles_per_subtile;        // groups times filter blocks times splits
  FastDivisor splits;                        // splits of a tile's chunks, each a work tile
  FastDivisor filter_blocks_per_group;

  unsigned channel_stride_bytes;  // distance of the input's channels
  int image_stages, weight_stages;
  int image_stage_bytes, weight_stage_bytes;
  int prepared_chunk_bytes;
  // TMA loads of an image stage, their size, and the distance of their sources.
  int copies, copy_bytes, copy_stride;
  SharedOffsets shared;
  // First row and column of each phase in the padded input.
  int phase_rows[kMaxPhases], phase_columns[kMaxPhases];
  // Offset of a step's first channel block from an output's position, in vectors. Steps go over the taps of
  // two channel blocks, then over the taps of the next two.
  unsigned short step_offsets[kMaxSteps];

  EpilogueParams epilogue_params;
  NaiveConv naive_conv;  // last, because only tiles that wgmma cannot compute need it
};

}  // namespace convswap::many_channels
