// The whole op, correct but slow: stride, padding, dilation, groups and bias, one thread per output.
//
// `conv` has every size; "convswap/lab.h" lists its members and has the formula.
//
//   convswap lab run @NAME@        compile, check and time it
//   convswap lab watch @NAME@      again on each save

#include "convswap/lab.h"

// interface: conv
// The launch: expressions of integers, + - * / %, ceil_div(a, b), min(a, b), max(a, b) and the sizes
// B M C H W R S G H_out W_out. Grid and block have up to three numbers; shared is in bytes.
// launch: grid(ceil_div(B * M * H_out * W_out, 256)) block(256) shared(0)

__global__ void forward(float* y, const float* x, const float* w, const float* b, convswap::Conv conv) {
  const int outputs = conv.batch * conv.filters * conv.out_height * conv.out_width;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  // The last block may have more threads than outputs.
  if (i >= outputs) return;
  const int q = i % conv.out_width;
  const int p = i / conv.out_width % conv.out_height;
  const int m = i / (conv.out_width * conv.out_height) % conv.filters;
  const int n = i / (conv.out_width * conv.out_height * conv.filters);
  const int channels = conv.channels / conv.groups;
  const int first_channel = m / (conv.filters / conv.groups) * channels;

  // b is null if there is no bias.
  float sum = b == nullptr ? 0.0f : b[m];
  for (int c = 0; c < channels; ++c) {
    for (int r = 0; r < conv.filter_height; ++r) {
      const int row = p * conv.stride_h - conv.pad_top + r * conv.dilation_h;
      if (row < 0 || row >= conv.height) continue;
      for (int s = 0; s < conv.filter_width; ++s) {
        const int column = q * conv.stride_w - conv.pad_left + s * conv.dilation_w;
        if (column < 0 || column >= conv.width) continue;
        const int pixel = ((n * conv.channels + first_channel + c) * conv.height + row) * conv.width + column;
        const int tap = ((m * channels + c) * conv.filter_height + r) * conv.filter_width + s;
        sum += x[pixel] * w[tap];
      }
    }
  }
  y[i] = sum;
}
