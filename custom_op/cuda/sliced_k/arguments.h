#pragma once

// Constants that the plan and the kernel of sliced_k share, and the kernel's arguments. sliced_k.cc describes
// the algorithm.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"

namespace convswap::sliced_k {

constexpr int kWarpSize = 32;
constexpr int kStepDepth = 16;    // elements along the GEMM depth (channels times taps) in one step
constexpr int kTileFilters = 16;  // M of one mma
constexpr int kTilePixels = 8;    // N of one mma

constexpr int kMaxPixels = 4 * kTilePixels;  // largest tile of a block

// Row pitch, in floats, of a warp's accumulators in shared memory. Four rows of adjacent pairs fall into
// different banks.
constexpr int accumulator_pitch(int pixel_tiles) {
  return pixel_tiles == 1 ? kTilePixels : (pixel_tiles + 1) * kTilePixels;
}

// Pipeline stages that a warp holds in registers beside its accumulators; all stages but one are in flight.
// Blocks of few warps have more registers per thread. Large tiles take all registers, with one block per
// multiprocessor. Splitting float32 into two TF32 takes about 20 registers more.
constexpr int register_stages(int filter_tiles, int pixel_tiles, int warps, bool splits) {
  const int products = filter_tiles * pixel_tiles, numbers = 4 * (2 * filter_tiles + pixel_tiles);
  const int room = (warps <= 8 && products >= 8 ? 160 - 4 * products : 72) - (splits ? 20 : 0);
  const int most = warps > 16 ? 2 : room / numbers;
  return most < 2 ? 2 : most > 4 ? 4 : most;
}

template <typename T>
struct Arguments : Tensors<T>, Geometry {
  EpilogueParams epilogue;
  int depth, steps;           // GEMM depth (channels times taps), and its number of steps
  unsigned pixels;            // of the output, in all images
  FastDivisor plane, width;   // of the output
  FastDivisor taps, columns;  // of a filter
  FastDivisor filter_blocks;  // of a group
  // Loads four weights of a filter, or a thread's pixels of one channel, with one vector load.
  bool vectorizes_weight_loads, vectorizes_pixel_loads;
  NaiveConv naive_conv;  // recomputes accumulators that are not finite; last, because it is rarely read
};

}  // namespace convswap::sliced_k
