#pragma once

// Arguments of the pool kernel.

#include "conv/epilogue.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::pool {

// In place of a number of outputs: a block computes the only output of an image.
constexpr int kWholeImage = 0;
// Shared memory of such a block for each thread.
constexpr int kPartialBytes = 32;

template <typename T>
struct Arguments : Tensors<T> {  // x and y; w, b and z are null
  int batch;
  int height, width, channels;  // of x
  int y_height, y_width;
  int kernel_height, kernel_width;
  int stride_height, stride_width;
  int pad_height, pad_width;  // before the first row and column
  // A vector is the adjacent channels that a thread pools: one, or 16 bytes with `has_vectors`. An item is
  // what a thread computes at a time: a vector of a run of neighbouring outputs.
  bool has_vectors;
  int image_items;
  FastDivisor position_vectors;  // vectors of a position
  FastDivisor row_runs;          // runs of a row of y
  int plane_lanes;               // neighbouring vectors that a block pools over the whole image
  Pool pool;
};

}  // namespace convswap::pool
