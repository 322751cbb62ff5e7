#pragma once

// The convolution that `kernel` computes in place of a node's of codes whose tensors TMA does not take, since
// their channels or filters are no multiple of 16 or x is NCHW, or whose filters are less than a wgmma has.
//
// Joined pixels: in a 1x1 convolution with stride 1, two or four neighbouring pixels count as one. x, y and
// the residual are the same memory, as one long row of pixels. The weights are block-diagonal: 0 from a pixel
// to another. Half or three quarters of the products are with these zeros. Numbers are not computed this way:
// an infinity or NaN times 0 would spread to the neighbours.
//
// Windows: `write_windows` gathers, for each padded row of x and each output column, the codes that the taps
// of a filter row read there (im2col along the width). A window is one pixel in NHWC, and its codes are the
// channels: for each channel of the node the filter's columns, rounded up to words of four. The convolution
// has the filter's rows, and no padding: `write_windows` has written the zero point. Pixels of y may be
// joined; a window has the columns of all of them then, and weights that are the filter's, shifted.

#include <cstdint>

#include "conv/problem.h"

namespace convswap::channels_last {

struct Derived {
  ConvProblem problem;         // the node's, or the one in its place
  int64_t joined_pixels = 1;   // pixels of the node's y that are one of the problem's
  int64_t window_columns = 0;  // codes of a channel of the node in a window; 0 without windows

  bool has_windows() const { return window_columns > 0; }
};

Derived derived_of(const ConvProblem& node);

}  // namespace convswap::channels_last
