#pragma once

// A convolution as kernels take it: the tensors and, in 32 bits, the sizes. What a kernel's arguments hold
// beside them is its own.

namespace convswap {

// Contiguous, in the card's memory. The host, to whom all elements are alike, has Tensors<void>.
template <typename Element>
struct Tensors {
  const Element* x;
  const Element* w;
  const Element* b;  // null without bias
  const Element* z;  // null without residual
  Element* y;
};

// Of data with two spatial axes; of one, the height is 1. A plane is the height times the width.
struct Geometry {
  int batch, in_channels, out_channels;
  int channels, filters;  // of a group
  int input_height, input_width, input_plane;
  int output_height, output_width, output_plane;  // of the convolution
  int y_height, y_width, y_plane;                 // behind the epilogue's pool
  int filter_height, filter_width;
  int stride_height, stride_width, dilation_height, dilation_width;
  int pad_height, pad_width;  // before the first row and column
};

}  // namespace convswap
