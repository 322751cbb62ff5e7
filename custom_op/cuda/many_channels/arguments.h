#pragma once

// What the plan of many_channels and its kernel agree on, and what the kernel is told; many_channels.cc
// explains the words.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/naive_conv.h"
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
  TmaMbarrier loaded[kMostImageStages];
  TmaMbarrier weights_loaded[kMostWeightStages];
  TmaMbarrier told[kHeadStages];
  Mbarrier multiplied[kMostImageStages], weights_multiplied[kMostWeightStages];
  Mbarrier stored[kHeadStages];
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

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  // Prepared by the first kernel for the second: of a band's tiles, groups and chunks the pixels, of all
  // rows, also of those without a filter, the weights.
  unsigned char* prepared_pixels;
  PixelRange* pixel_ranges;
  // Of splits the sums of each, of all of y, for the third kernel.
  float* partial_sums;
  long long results;      // elements of y
  int* prepared_outputs;  // of the columns of a tile: where their results lie in a plane of its first image
  unsigned char* prepared_weights;
  FilterRange* filter_ranges;

  int first_tile;     // of the band
  int weight_blocks;  // of the first kernel, which prepare weights; the others take chunks of tiles
  int shares;         // that the chunks of a tile and a group make for the first kernel
  int groups;
  int parts;                   // of a prepared tile: so many tiles of blocks
  int chunks, chunk_channels;  // of the channels of a group, once for each tap of the depth
  int steps;                   // of a chunk
  int group_steps;             // whose weights come as one copy, the last of a chunk perhaps of fewer
  int columns;                 // of a tile
  int strip_columns;           // of the output, that a strip has
  FastDivisor slices;          // of an image: strips times output planes
  FastDivisor output_depth;    // output planes
  FastDivisor pitch, rows;     // places from row to row, and rows from slice to slice
  FastDivisor depth_taps;      // a chunk is of some channels and one of these
  int input_depth, stride_depth, dilation_depth, pad_depth;
  FastDivisor bundle_places;                   // in all phases
  FastDivisor span;                            // places of a phase of a bundle
  FastDivisor prepared_places, prepared_span;  // the same of a prepared tile
  FastDivisor column_phases;                   // of those of rows, each
  int works_of_block;                          // at least; so many blocks have one more
  int longer_blocks;
  FastDivisor works_of_tile;    // parts times groups times blocks of filters
  FastDivisor works_of_part;    // groups times blocks of filters times splits
  FastDivisor splits;           // of the chunks of a tile, each a work of its own
  FastDivisor blocks_of_group;  // of filters

  unsigned channel_bytes;  // from channel to channel of the input
  int image_stages, weight_stages;
  int image_stage_bytes, weight_stage_bytes;
  int prepared_bytes;                       // of a chunk of a prepared tile
  int pieces, piece_bytes, piece_distance;  // of what of it a block copies, and how far apart they lie
  SharedOffsets shared;
  // The first row and column of the padded input that a phase has.
  int phase_rows[kMostPhases], phase_columns[kMostPhases];
  // How far a step's first bundle lies from the place of an output. Steps go over the taps of two bundles,
  // then of the next two.
  unsigned short step_places[kMostSteps];

  EpilogueParams following;
  NaiveConv definition;  // for data with infinities or NaN; behind what is always read
};

}  // namespace convswap::many_channels
