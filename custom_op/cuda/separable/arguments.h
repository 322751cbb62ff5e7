#pragma once

// Constants that the plan and the kernel of separable share, and the kernel's arguments. separable.cc
// describes the algorithm.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::separable {

constexpr int kWarpSize = 32;
constexpr int kTaps = 3;           // of a depthwise filter along either axis
constexpr int kStepChannels = 16;  // channels whose depthwise outputs a block holds at a time
constexpr int kColumns = 4;        // columns of depthwise outputs per thread
constexpr int kTileFilters = 16;   // M of one mma
constexpr int kTilePixels = 8;     // N of one mma

// Output tile of a block. A thread computes kRows rows of kColumns depthwise outputs for one channel of a
// step; kDown x kAcross threads share a channel.
template <int kStride_, int kRows_, int kDown, int kAcross_>
struct TileShape {
  static constexpr int kStride = kStride_, kRows = kRows_, kAcross = kAcross_;
  static constexpr int kThreadsPerChannel = kDown * kAcross;
  static constexpr int kThreads = kStepChannels * kThreadsPerChannel, kWarps = kThreads / kWarpSize;
  static constexpr int kTileRows = kDown * kRows, kTileColumns = kAcross * kColumns;
  static constexpr int kPixels = kTileRows * kTileColumns;
  // Number of mma tiles, of kTilePixels pixels each, that a warp computes.
  static constexpr int kTiles = (kPixels + kTilePixels * kWarps - 1) / (kTilePixels * kWarps);
  // Channel pitch of the depthwise outputs in smem, in floats. Eight adjacent pixels of four channels fall
  // into different banks.
  static constexpr int kPitch = (kTiles * kTilePixels * kWarps + 31) / 32 * 32 + 8;
  static constexpr int kStepFloats = kStepChannels * kPitch;
  // Receptive field of a thread's outputs.
  static constexpr int kInputRows = (kRows - 1) * kStride + kTaps;
  static constexpr int kInputColumns = (kColumns - 1) * kStride + kTaps;
  static_assert(kThreads % kWarpSize == 0);
};

// Minimum blocks per multiprocessor for __launch_bounds__: three if a thread's pixels and accumulators leave
// enough registers.
constexpr int min_blocks_per_sm(int stride, int rows, int filter_tiles) {
  const int input_rows = (rows - 1) * stride + kTaps;
  return input_rows * (kColumns * stride + 2) + 8 * filter_tiles <= 36 ? 3 : 2;
}

template <typename T>
struct Arguments : Tensors<T> {
  const T* d;   // depthwise filters
  const T* db;  // depthwise bias, or null
  EpilogueParams depthwise_epilogue, pointwise_epilogue;

  int k_size;   // channels: K of the 1x1 convolution
  int filters;  // of the 1x1 convolution
  int input_height, input_width, output_height, output_width;
  FastDivisor tiles, tiles_across;  // of an image
  bool vectorizes_pixel_loads;      // four columns of x are one aligned vector
  bool vectorizes_weight_loads;     // the same for four weights of w; k_size is a multiple of 4
  bool vectorizes_stores;           // the same for two columns of y
};

}  // namespace convswap::separable
