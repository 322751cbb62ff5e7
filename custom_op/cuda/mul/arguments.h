#pragma once

// Arguments of the kernel of Mul.

#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::mul {

constexpr int kThreads = 256;  // of a block
constexpr int kVectors = 4;    // that a thread loads at a time

template <typename T>
struct Arguments : Tensors<T> {  // x and y; w has the factors; b and z are null
  int images;
  long long image_elements;
  int channels;
  // A vector is 16 bytes of channels with `has_vectors`, else one element.
  bool has_vectors;
  unsigned image_vectors;
  FastDivisor position_vectors;
};

}  // namespace convswap::mul
