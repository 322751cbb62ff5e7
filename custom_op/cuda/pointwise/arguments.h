#pragma once

// Constants that the plan and the kernel of pointwise share, and the kernel's arguments. pointwise.cc
// describes the algorithm.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::pointwise {

constexpr int kTilePixels = 64;       // of a tile; M of one wgmma
constexpr int kTileFilters = 8;       // N of one wgmma is a multiple of this
constexpr int kWgmmaDepthBytes = 32;  // K of one wgmma: channels of a pixel or filter
constexpr int kVectorBytes = 16;      // adjacent channels of a filter: a row of a core matrix
constexpr int kStageStepBytes = kTilePixels * kWgmmaDepthBytes;  // of a stage: one wgmma's pixels

template <typename Element>
struct Arguments : Tensors<Element> {
  int channels, filters;  // per group
  int in_channels, out_channels;
  int input_plane;
  // Output pixels are numbered through rows, planes and images.
  FastDivisor output_plane, output_area, output_width;
  unsigned pixels;
  int depth_step, row_step, column_step;  // in the input, per output pixel
  bool is_dense;                          // steps are one pixel: input and output offsets agree
  // Loads (stores) two adjacent pixels of a channel with one instruction.
  bool loads_pairs, stores_pairs;
  int tiles;   // of pixels
  int chunks;  // of the channels
  FastDivisor filter_blocks_per_group;
  EpilogueParams epilogue;
};

}  // namespace convswap::pointwise
