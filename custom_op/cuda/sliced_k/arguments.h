#pragma once

// Constants that the plan and the kernel of sliced_k share, and the kernel's arguments. sliced_k.cc describes
// the algorithm.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"

namespace convswap::sliced_k {

constexpr int kWarpSize = 32;
constexpr int kStepK = 16;        // elements along K of the GEMM (channels times taps) in one step
constexpr int kTileFilters = 16;  // M of one mma
constexpr int kTilePixels = 8;    // N of one mma

constexpr int kMaxPixels = 4 * kTilePixels;  // largest tile of a block

// Row pitch, in floats, of a warp's accumulators in shared memory. The float2 stores of a half-warp cover 4
// rows x 8 floats; with this pitch (8 mod 16 floats) they use all 32 banks once.
constexpr int accumulator_pitch(int pixel_tiles) {
  return pixel_tiles == 1 ? kTilePixels : (pixel_tiles + 1) * kTilePixels;
}

// Pipeline stages that a warp holds in registers beside its accumulators; all stages but one are in flight.
// The register budgets are estimates per thread: blocks of at most 8 warps and at least 8 mma tiles get 160
// registers for stages and accumulators together, others 72 for the stages. Splitting float32 into two TF32
// takes about 20 registers. 16-bit weights take half as many registers, but are counted like float.
constexpr int register_stages(int filter_tiles, int pixel_tiles, int warps, bool splits_operands) {
  const int products = filter_tiles * pixel_tiles;
  const int registers_per_stage = 4 * (2 * filter_tiles + pixel_tiles);
  const int register_budget =
      (warps <= 8 && products >= 8 ? 160 - 4 * products : 72) - (splits_operands ? 20 : 0);
  const int max_stages = warps > 16 ? 2 : register_budget / registers_per_stage;
  return max_stages < 2 ? 2 : max_stages > 4 ? 4 : max_stages;
}

template <typename T>
struct Arguments : Tensors<T>, Geometry {
  EpilogueParams epilogue;
  int k_size, steps;  // K of the GEMM (channels times taps), and its number of steps
  unsigned pixels;    // of the output, in all images
  FastDivisor output_plane_divisor, output_width_divisor;
  FastDivisor taps_divisor, filter_width_divisor;
  FastDivisor filter_blocks;  // of a group
  // Loads four weights of a filter, or a thread's pixels of one channel, with one vector load.
  bool vectorizes_weight_loads, vectorizes_pixel_loads;
  // Recomputes sums that are not finite if operands are split. Last, because it is rarely read.
  NaiveConv naive_conv;
};

}  // namespace convswap::sliced_k
