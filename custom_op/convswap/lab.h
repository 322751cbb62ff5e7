#pragma once

// Declarations for kernels of `convswap lab`, which provides this header to NVRTC and to its check without a
// card. A file with the line `// interface: conv` computes any convolution and takes a convswap::Conv.

namespace convswap {

// Sizes of a convolution. The last index of each array is the fastest, and x is 0 outside the image:
//
//   y[n][m][p][q] = b[m] + sum over c, r, s of
//       x[n][c + first channel of m's group][p * stride_h - pad_top + r * dilation_h]
//                                           [q * stride_w - pad_left + s * dilation_w] * w[m][c][r][s]
struct Conv {
  int batch;                        // B
  int channels, height, width;      // C, H, W of x; w has channels / groups channels
  int filters;                      // M
  int filter_height, filter_width;  // R, S
  int out_height, out_width;        // H_out, W_out
  int stride_h, stride_w;
  int pad_top, pad_left;
  int dilation_h, dilation_w;
  int groups;  // G
};

// a / b rounded up; a must not be negative, and b must be positive.
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace convswap
