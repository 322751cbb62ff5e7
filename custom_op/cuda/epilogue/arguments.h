#pragma once

// Arguments of the epilogue stage's kernels.

#include "conv/epilogue.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::epilogue {

template <typename T>
struct Arguments : Tensors<T> {  // x: the convolution's output; z: the residual; w and b are null
  long long elements;            // of y
  int x_plane, height, width;    // of the convolution's output
  FastDivisor y_plane, y_width;
  // Work units of the pooling kernel; a block computes one at a time. A unit is a group of whole planes, or a
  // part of one plane if planes are large.
  unsigned units;
  int planes_per_group, elements_per_part;
  FastDivisor parts;
  Epilogue epilogue;
};

}  // namespace convswap::epilogue
