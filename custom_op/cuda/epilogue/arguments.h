#pragma once

// Arguments of the epilogue stage's kernels.

#include "conv/epilogue.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::epilogue {

template <typename T>
struct Arguments : Tensors<T> {  // x: the convolution's output; z: the residual; w and b are null
  long long elements;            // of y

  // For pooling. In NCHW a plane is a channel of an image, and a position of a plane has one element. In NHWC
  // a plane is an image, and a position has the elements of all channels. A vector is the adjacent elements
  // of a position that a thread computes: one, or 16 bytes.
  long long vectors;             // of y
  int x_plane_elements;          // of a plane of the convolution's output
  int height, width;             // of the convolution's output, in positions
  int position_elements;         // of a position
  FastDivisor y_plane_vectors;   // of a plane of y
  FastDivisor position_vectors;  // of a position
  FastDivisor y_width;           // positions of a row of y
  // Work units; a block computes one at a time. A unit is a group of whole planes, or a part of one plane if
  // planes are large.
  unsigned units;
  int planes_per_group, vectors_per_part;
  FastDivisor parts;
  Epilogue epilogue;
};

}  // namespace convswap::epilogue
