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
  bool weights_are_constant;  // w and b: no kernel before in the stream still writes them
};

// Of data with two spatial axes; of one, the height is 1. A plane is the height times the width. What kernels
// read together lies in pairs that are one load of constant memory.
struct alignas(8) Geometry {
  int channels, filters;  // of a group
  int in_channels, out_channels;
  int input_height, input_width;
  int output_height, output_width;  // of the convolution
  int y_height, y_width;            // behind the epilogue's pool
  int filter_height, filter_width;
  int stride_height, stride_width;
  int dilation_height, dilation_width;
  int pad_height, pad_width;  // before the first row and column
  int input_plane, output_plane, y_plane;
  int batch;
};

}  // namespace convswap
