#pragma once

// What the plan of separable and its kernel agree on, and what the kernel is told; separable.cc explains the
// words.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::separable {

constexpr int kWarp = 32;
constexpr int kTaps = 3;           // of a filter of the depthwise convolution, along either axis
constexpr int kStepChannels = 16;  // of which a block has the depthwise results at a time
constexpr int kColumns = 4;        // that a thread computes
constexpr int kTileFilters = 16;   // of a product of the tensor core: its rows
constexpr int kTilePixels = 8;     // and its columns

// A block's tile of the output, and what a thread computes of it for one channel of a step: kRows rows of
// kColumns columns. kDown x kAcross threads have a channel.
template <int kOwnStride, int kOwnRows, int kDown, int kOwnAcross>
struct Shape {
  static constexpr int kStride = kOwnStride, kRows = kOwnRows, kAcross = kOwnAcross;
  static constexpr int kOfChannel = kDown * kAcross;
  static constexpr int kThreads = kStepChannels * kOfChannel, kWarps = kThreads / kWarp;
  static constexpr int kTileRows = kDown * kRows, kTileColumns = kAcross * kColumns;
  static constexpr int kPixels = kTileRows * kTileColumns;
  // Tiles of pixels of a warp.
  static constexpr int kTiles = (kPixels + kTilePixels * kWarps - 1) / (kTilePixels * kWarps);
  // Floats from one channel's results to the next: four rows of eight neighbours are in different banks.
  static constexpr int kPitch = (kTiles * kTilePixels * kWarps + 31) / 32 * 32 + 8;
  static constexpr int kStepFloats = kStepChannels * kPitch;
  // What the results depend on.
  static constexpr int kInputRows = (kRows - 1) * kStride + kTaps;
  static constexpr int kInputColumns = (kColumns - 1) * kStride + kTaps;
  static_assert(kThreads % kWarp == 0);
};

// Blocks of a multiprocessor for which registers are kept: three where what a thread has of x and of the sums
// leaves room.
constexpr int blocks_at_once(int stride, int rows, int filter_tiles) {
  const int input_rows = (rows - 1) * stride + kTaps;
  return input_rows * (kColumns * stride + 2) + 8 * filter_tiles <= 36 ? 3 : 2;
}

template <typename T>
struct Arguments : Tensors<T> {
  const T* d;   // the filters of the depthwise convolution
  const T* db;  // null without bias
  EpilogueParams between, behind;

  int depth;    // channels
  int filters;  // of the convolution behind
  int input_height, input_width, output_height, output_width;
  FastDivisor tiles, tiles_across;  // of an image
  bool loads_together;              // four columns of x are aligned
  bool loads_weights_together;      // so are four weights of w, of which a filter has a multiple
  bool stores_together;             // and two columns of y
};

}  // namespace convswap::separable
