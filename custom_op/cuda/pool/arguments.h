#pragma once

// Arguments of the pool kernel.

#include "conv/epilogue.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::pool {

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
  Pool pool;
};

}  // namespace convswap::pool
