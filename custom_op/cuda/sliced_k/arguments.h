#pragma once

// What the plan of sliced_k and its kernel agree on, and what the kernel is told; sliced_k.cc explains the
// words.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"

namespace convswap::sliced_k {

constexpr int kWarp = 32;
constexpr int kStepDepth = 16;    // channels times taps of a step
constexpr int kTileFilters = 16;  // of a product of the tensor core: its rows
constexpr int kTilePixels = 8;    // and its columns

constexpr int kMostPixels = 4 * kTilePixels;  // of a block

// Floats from one row of a warp's sums in shared memory to the next, such that four rows of neighbouring
// pairs are in different banks.
constexpr int sums_pitch(int pixel_tiles) {
  return pixel_tiles == 1 ? kTilePixels : (pixel_tiles + 1) * kTilePixels;
}

// Steps that a warp has in registers, most of them under way: as many as fit beside the sums. Blocks of few
// warps have more registers for each thread; where tiles are large all of them, one block on a
// multiprocessor. To split numbers takes some registers more.
constexpr int steps_at_once(int filter_tiles, int pixel_tiles, int warps, bool splits) {
  const int products = filter_tiles * pixel_tiles, numbers = 4 * (2 * filter_tiles + pixel_tiles);
  const int room = (warps <= 8 && products >= 8 ? 160 - 4 * products : 72) - (splits ? 20 : 0);
  const int most = warps > 16 ? 2 : room / numbers;
  return most < 2 ? 2 : most > 4 ? 4 : most;
}

template <typename T>
struct Arguments : Tensors<T>, Geometry {
  EpilogueParams following;
  int depth, steps;           // of a filter: channels times taps, and how many steps they are
  unsigned pixels;            // of the output, through all images
  FastDivisor plane, width;   // of the output
  FastDivisor taps, columns;  // of a filter
  FastDivisor filter_blocks;  // of a group
  // Whether four numbers of a filter are one load, and a thread's pixels of a channel.
  bool loads_weights_together, loads_pixels_together;
  NaiveConv definition;  // for sums that are not finite; behind what is always read
};

}  // namespace convswap::sliced_k
