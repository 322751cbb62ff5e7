#pragma once

// What the tiling of `many_channels` and its kernels agree on; many_channels.cc explains the words.

#include "cuda/primitives/arrival_barrier.h"
#include "cuda/primitives/shared_offset.h"
#include "cuda/primitives/transaction_barrier.h"

namespace convswap::many_channels {

constexpr int kPlaceBytes = 16;                      // eight channels of a pixel
constexpr int kBundleChannels = 8;                   // of a place
constexpr int kRows = 64;                            // of a product: filters
constexpr int kDepth = 16;                           // of a product: two bundles
constexpr int kTileColumns = 8;                      // places
constexpr int kStepUnits = kRows * kDepth * 2 / 16;  // of 16 bytes, that the weights of a product take
constexpr int kMostSteps = 256;                      // of a chunk of channels
constexpr int kMostPhases = 16;                      // that taps read, of rows times columns
constexpr int kMostStepsOfGroup = 9;                 // whose weights come as one copy, where they fit
constexpr int kFewStepsOfGroup = 5;                  // and where so many do not
constexpr int kGranuleBytes = 16;                    // whole numbers of which are copied

// Two warpgroups produce: they have pixels and weights copied and convert the pixels. Two consume. A
// converter takes five cycles and more for an instruction, so there are many.
constexpr int kConsumerWarpgroups = 2;
constexpr int kConsumers = 128 * kConsumerWarpgroups;
constexpr int kConverters = 256;
constexpr int kThreads = kConsumers + kConverters;
// Registers of a thread: that the kernel begins with, and by roles.
constexpr int kRegisters = 128, kRegistersOfProducers = 96, kRegistersOfConsumers = 160;
static_assert(kRegistersOfProducers * kConverters + kRegistersOfConsumers * kConsumers <=
              kRegisters * kThreads);
// What a kernel begins with bounds the registers of a product: sums of more tiles take two.
constexpr int kMostTilesOfProduct = 24;
// A barrier of its own, behind those of the block's four warpgroups (warpgroup_barrier.cuh).
constexpr int kConverterBarrier = 5;
// Of the kernel that prepares weights, each block of which takes a filter.
constexpr int kPreparers = 128;
constexpr int kPreparedState = 8;  // bytes of shared memory: a range

constexpr int kMostImageStages = 4, kMostWeightStages = 8;
// Of pixels as they are: chunks that are under way, and the one that is being converted.
constexpr int kLeastPixelStages = 2, kMostPixelStages = 3;
// Of tiles whose copies have been started: each chunk under way may be another's, and so the one that is
// begun.
constexpr int kTileSlots = kMostPixelStages + 1;
// Of what consumers are told of a tile before its products: of the tile that they store, and of the next.
constexpr int kHeadStages = 2;
// Windows of binades (tensor_core_formats.cuh) that the weights of a filter may span, and binades that the
// values of a tile may: the sums must not leave float32 while they are scaled for one or the other.
constexpr int kMostWeightWindows = 2;
constexpr int kMostBinades = 80;
// Windows of a chunk below its first, which are converted and multiplied behind all chunks.
constexpr int kMostLowWindows = 2;

// Of the results of a warp, 16 rows of 32 columns pass through shared memory at a time. The distance of rows
// lets four of them lie in different banks.
constexpr int kStagedColumns = 32;
constexpr int kStagedPitch = 40;
constexpr int kStagedFloats = 16 * kStagedPitch;

// What a converted chunk is to those who multiply it.
struct ImageStage {
  int exponent;  // of the scale of pixels and weights
  bool is_last;  // of its tile
  bool defines;  // the tile is to be computed as the definition says
};

// How a filter's weights were converted: for each window by the scale of its uppermost binade, less 29 for
// each window before.
struct FilterRange {
  int top;
  unsigned windows;  // ~0: they cannot be multiplied
};

// What of the input is neighbours and is copied together, a *run*: of a channel the rows of a slice that a
// tile reads, or a row for each phase where rows lie between that none reads or the tile has not the whole of
// them; or whole images of small planes, all channels of a chunk together.
enum class RunKind { slices, rows, images };
// Runs lie in shared memory as they do in global memory, counted from a multiple of a granule. Room that lets
// the granules of one keep off those of the next.
constexpr int kRunGap = 48;

// A run of a chunk's first channel, for the first tap of the depth.
struct alignas(16) StagedRun {
  int element;  // its first, in a channel of the tile's first image
  int at;       // where that lies in a stage
  int bytes;
  int plane;  // of the input
};

// Where a pixel of a chunk's first channel lies in a stage, and in which plane of the input.
struct alignas(8) PixelSource {
  int at, plane;
};

// What consumers are told of a tile.
struct Head {
  long long image;          // its first
  int group, filter_block;  // of the group
  int first_row;            // of all rows of all blocks of filters
};

// A chunk to be converted once more, for the window that begins at `top`.
struct LowChunk {
  int chunk, top;
};

// What the block keeps in shared memory beside images and weights.
struct BlockState {
  TransactionBarrier pixels_loaded[kMostPixelStages];
  TransactionBarrier weights_loaded[kMostWeightStages];
  ArrivalBarrier weights_multiplied[kMostWeightStages];
  ArrivalBarrier converted[kMostImageStages], multiplied[kMostImageStages];
  ArrivalBarrier stored[kHeadStages];
  ImageStage images[kMostImageStages];
  Head heads[kHeadStages];
  // Of each tile whose copies have been started: where its first image begins, in the group's first channel.
  const void* tile_images[kTileSlots];
  unsigned most, least_less_one;  // of a chunk that did not fit the scale
};

// The parts of shared memory.
struct SharedOffsets {
  Offset<unsigned char> pixels, images, weights;
  Offset<StagedRun> runs;       // kTileSlots times those of a tile
  Offset<PixelSource> sources;  // of the places of a bundle
  Offset<int> outputs;          // of kHeadStages times the columns: where their results lie in y
  Offset<float> results;        // of each consumer warp: kStagedFloats
  Offset<LowChunk> low_chunks;
  Offset<BlockState> state;
};

}  // namespace convswap::many_channels
