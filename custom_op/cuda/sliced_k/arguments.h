#pragma once

// What the kernel of sliced_k is told; see sliced_k.cc.

#include "cuda/epilogue/following.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"

namespace convswap::sliced_k {

template <typename T>
struct Arguments : Tensors<T>, Geometry {
  Following following;
  int depth, steps;           // of a filter: channels times taps, and how many steps they are
  unsigned pixels;            // of the output, through all images
  FastDivisor plane, width;   // of the output
  FastDivisor taps, columns;  // of a filter
  FastDivisor filter_blocks;  // of a group
  // Whether four numbers of a filter are one load, and a thread's pixels of a channel.
  bool loads_weights_together, loads_pixels_together;
  Definition definition;  // for sums that are not finite; behind what is always read
};

}  // namespace convswap::sliced_k
