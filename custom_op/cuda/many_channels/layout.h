#pragma once

// What the tiling of `many_channels` and its kernels agree on; many_channels.cc explains the words.

#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::many_channels {

constexpr int kPlaceBytes = 16;                      // eight channels of a pixel
constexpr int kBundleChannels = 8;                   // of a place
constexpr int kRows = 64;                            // of a product: filters
constexpr int kDepth = 16;                           // of a product: two bundles
constexpr int kTileColumns = 8;                      // places
constexpr int kStepUnits = kRows * kDepth * 2 / 16;  // of 16 bytes, that the weights of a product take
constexpr int kMostSteps = 256;                      // of a chunk of channels
constexpr int kMostPhases = 16;                      // that taps read, of rows times columns
constexpr int kMostStepsOfGroup = 5;                 // whose weights come as one copy

// Two warpgroups multiply, each the half of a tile; two warps behind them have the copies made, one of
// pixels, the other of weights and of where results go. Both convert what lies below the windows of chunks.
constexpr int kConsumerWarpgroups = 2;
constexpr int kConsumers = 128 * kConsumerWarpgroups;
constexpr int kProducers = 64;
constexpr int kThreads = kConsumers + kProducers;
constexpr int kPixelWarp = kConsumers / 32, kWeightWarp = kPixelWarp + 1;
// A barrier of their own, behind those of the block's three warpgroups (warpgroup.cuh).
constexpr int kProducerBarrier = 4;
// Of the kernel that prepares weights and pixels, each block of which takes a filter or chunks of a tile.
constexpr int kPreparers = 512, kPreparersOfMultiprocessor = 3 * kPreparers;

constexpr int kLeastWeightStages = 4, kMostWeightStages = 8;
constexpr int kMostImageStages = 6;
// Of what consumers are told of a tile: of the one that they store, and of the next.
constexpr int kHeadStages = 2;
// Windows of binades (tensor_core_formats.cuh) that the weights of a filter may span, and binades that the
// values of a tile may: the sums must not leave float32 while they are scaled for one or the other.
constexpr int kMostWeightWindows = 2;
constexpr int kMostBinades = 80;
// Windows of a chunk below its first, which are converted and multiplied behind all chunks.
constexpr int kMostLowWindows = 2;

// Of the results of a warp, 16 rows of 32 columns pass through shared memory at a time. The distance of rows
// lets four of them lie in different banks.
constexpr int kRowsOfWarp = 16;
constexpr int kStagedColumns = 32;
constexpr int kStagedPitch = 40;
constexpr int kStagedFloats = kRowsOfWarp * kStagedPitch;
constexpr int kNoOutput = -1;
// The bits of a sum that a split could not compute: a NaN that no arithmetic gives.
constexpr unsigned kUndefinedSum = 0x7fe5ca1eu;
// Of the kernel that adds the sums of splits.
constexpr int kCombiners = 256;

// What a chunk of pixels is to those who multiply it.
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

// Of a prepared chunk of a tile's pixels, which binades its values lie in: the scale is of the window that
// begins at `top`, and what lies below it is not in what has been prepared.
struct alignas(8) PixelRange {
  int top, bottom;

  // Of a chunk with infinities or NaN, and of one that is all zeros, which any scale serves.
  static constexpr int kNotFinite = 1 << 10, kZeros = -(1 << 10);
};

// Where a pixel of a chunk's first channel lies in the input, and in which plane of it, for the first tap of
// the depth.
struct alignas(8) PixelSource {
  int element;  // in a channel of the tile's first image
  int plane;    // kNoPlane: it is padding within planes
};
// No plane of the input is as far from any output's as that of what is no pixel.
constexpr int kNoPlane = -(1 << 30);

// What consumers are told of a tile.
struct Head {
  long long image;          // its first
  int group, filter_block;  // of the group
  int first_row;            // of all rows of all blocks of filters
  int split;
};

// What the block keeps in shared memory beside images and weights.
struct BlockState {
  TransactionBarrier loaded[kMostImageStages];
  TransactionBarrier weights_loaded[kMostWeightStages];
  TransactionBarrier told[kHeadStages];
  ArrivalBarrier multiplied[kMostImageStages], weights_multiplied[kMostWeightStages];
  ArrivalBarrier stored[kHeadStages];
  ImageStage images[kMostImageStages];
  Head heads[kHeadStages];
  int low_stage;  // in which producers convert what lies below the windows of chunks
};

// The parts of shared memory.
struct SharedOffsets {
  Offset<unsigned char> images, weights;
  Offset<int> outputs;    // of kHeadStages times the columns
  Offset<float> results;  // of each consumer warp: kStagedFloats
  Offset<BlockState> state;
};

// What the kernel that prepares keeps there: of all threads what they have seen together, of a part of a tile
// where its pixels lie, as many as a bundle has places.
struct PreparedState {
  unsigned most, least_less_one;
  PixelSource sources[1];

  static constexpr long long bytes(long long places) {
    return static_cast<long long>(sizeof(PreparedState)) +
           places * static_cast<long long>(sizeof(PixelSource));
  }
};

}  // namespace convswap::many_channels
