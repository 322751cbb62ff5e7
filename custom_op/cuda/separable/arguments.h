#pragma once

// What the kernel of separable is told; see separable.cc.

#include "cuda/epilogue/following.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::separable {

template <typename T>
struct Arguments : Tensors<T> {
  const T* d;   // the filters of the depthwise convolution
  const T* db;  // null without bias
  Following between, behind;

  int depth;    // channels
  int filters;  // of the convolution behind
  int input_height, input_width, output_height, output_width;
  FastDivisor tiles, tiles_across;  // of an image
  bool loads_together;              // four columns of x are aligned
  bool loads_weights_together;      // so are four weights of w, of which a filter has a multiple
  bool stores_together;             // and two columns of y
};

}  // namespace convswap::separable
