#pragma once

// The convolution that `kernel` computes in place of a node's of codes whose tensors TMA does not take: their
// channels or filters are no multiple of 16.
//
// Joined pixels: in a 1x1 convolution with stride 1, two or four neighbouring pixels count as one. x, y and
// the residual are the same memory, as one long row of pixels. The weights are block-diagonal: 0 from a pixel
// to another. Half or three quarters of the products are with these zeros. Numbers are not computed this way:
// an infinity or NaN times 0 would spread to the neighbours.

#include <cstdint>

#include "conv/problem.h"

namespace convswap::channels_last {

struct Derived {
  ConvProblem problem;        // the node's, or the one in its place
  int64_t joined_pixels = 1;  // pixels of the node that are one of the problem's
};

Derived derived_of(const ConvProblem& node);

}  // namespace convswap::channels_last
