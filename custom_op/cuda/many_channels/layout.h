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
constexpr int kMostStepsOfGroup = 9;                 // whose weights come as one copy

// Three warps produce converted images, one starts copies of weights, and two warpgroups consume.
constexpr int kConverters = 96;
// A converter has so many places of two bundles on their way through its registers.
constexpr int kPlacesAtOnce = 3;
constexpr int kBatchPlaces = kPlacesAtOnce * kConverters;  // of all converters
constexpr int kConsumerWarpgroups = 2;
constexpr int kConsumers = 128 * kConsumerWarpgroups;
constexpr int kThreads = kConverters + 32 + kConsumers;
// Registers of a thread: that the kernel begins with, and by roles.
constexpr int kRegisters = 168, kRegistersOfProducers = 152, kRegistersOfConsumers = 176;
static_assert(kRegistersOfProducers * (kThreads - kConsumers) + kRegistersOfConsumers * kConsumers <=
              kRegisters * kThreads);
// A barrier of its own, behind those of the block's three warpgroups (warpgroup_barrier.cuh).
constexpr int kConverterBarrier = 4;
// Of the kernel that prepares weights, each block of which takes a filter.
constexpr int kPreparers = 128;
constexpr int kPreparedState = 8;  // bytes of shared memory: a range

constexpr int kMostImageStages = 4, kMostWeightStages = 8;
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

// Where a pixel lies in a channel, and in which plane of it.
struct alignas(8) PixelSource {
  int pixel, plane;
};

// A chunk to be converted once more, for the window that begins at `top`.
struct LowChunk {
  int chunk, top;
};

// What the block keeps in shared memory beside images and weights.
struct BlockState {
  TransactionBarrier weights_loaded[kMostWeightStages];
  ArrivalBarrier weights_multiplied[kMostWeightStages];
  ArrivalBarrier converted[kMostImageStages], multiplied[kMostImageStages];
  // Which chunks of a tile come once more: whoever copies weights must know.
  ArrivalBarrier decided[2], taken[2];
  ImageStage images[kMostImageStages];
  int low_chunks[2];              // how many
  unsigned most, least_less_one;  // of a chunk that did not fit the scale
};

// The parts of shared memory.
struct SharedOffsets {
  Offset<unsigned char> images, weights;
  Offset<PixelSource> sources;  // of the places of a bundle
  Offset<int> outputs;          // of each consumer warpgroup's columns: where their results lie in y
  Offset<float> results;        // of each consumer warp: kStagedFloats
  Offset<LowChunk> low_chunks;
  Offset<BlockState> state;
};

}  // namespace convswap::many_channels
