#pragma once

// What the kernels of the epilogue stage are told.

#include "conv/epilogue.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::epilogue {

template <typename T>
struct Arguments : Tensors<T> {    // x: the convolution's output; z: the residual; w and b are not there
  long long elements;              // of y
  int plane_input, height, width;  // of the convolution's output
  FastDivisor y_plane, y_width;
  // What a block pools at a time: a part of so many planes.
  unsigned units;
  int planes_at_once, elements_of_part;
  FastDivisor parts;
  Epilogue epilogue;
};

}  // namespace convswap::epilogue
