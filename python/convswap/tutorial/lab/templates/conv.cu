// The whole op, correct and slow: stride, padding, dilation, groups and bias, a thread for each output.
//
// `conv` has every size; "convswap/lab.h" says what they are called, and what is computed.
//
//   convswap lab run @NAME@        compile, check and time it
//   convswap lab watch @NAME@      again on each save

#include "convswap/lab.h"

// interface: conv
// How the kernel is started: whole numbers, + - * / %, ceil_div(a, b), min(a, b), max(a, b) of the sizes
// B M C H W R S G H_out W_out; grid and block have up to three numbers, shared is in bytes.
// launch: grid(ceil_div(B * M * H_out * W_out, 256)) block(256) shared(0)

__global__ void forward(float* y, const float* x, const float* w, const float* b, convswap::Conv conv) {
  const int outputs = conv.batch * conv.filters * conv.out_height * conv.out_width;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  // The last block has threads for which there is nothing left.
  if (i >= outputs) return;
  const int q = i % conv.out_width;
  const int p = i / conv.out_width % conv.out_height;
  const int m = i / (conv.out_width * conv.out_height) % conv.filters;
  const int n = i / (conv.out_width * conv.out_height * conv.filters);
  const int channels = conv.channels / conv.groups;
  const int first_channel = m / (conv.filters / conv.groups) * channels;

  // b is null where there is no bias.
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
