#pragma once

// The tensors and the 32-bit sizes of a convolution, as kernels take them. Each family adds its own
// arguments.

namespace convswap {

// Contiguous tensors in global memory. The host, which does not depend on the element type, uses
// Tensors<void>.
template <typename Element>
struct Tensors {
  const Element* x;
  const Element* w;
  const Element* b;  // null without bias
  const Element* z;  // null without residual
  Element* y;
  bool weights_are_constant;  // no preceding kernel of the stream still writes w or b
};

// Sizes of a convolution, without those along a depth axis. With one spatial axis the height is 1. A plane is
// all elements of a channel: height times width, and times the depth if there is a depth axis.
// Fields that kernels read together are neighbours, so that one 8-byte load of constant memory brings both.
struct alignas(8) Geometry {
  int channels, filters;  // per group
  int in_channels, out_channels;
  int input_height, input_width;
  int output_height, output_width;  // of the convolution
  int y_height, y_width;            // after the epilogue's pool
  int filter_height, filter_width;
  int stride_height, stride_width;
  int dilation_height, dilation_width;
  int pad_height, pad_width;  // before the first row and column
  int input_plane, output_plane, y_plane;
  int batch;
};

}  // namespace convswap
