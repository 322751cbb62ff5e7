#pragma once

// What a kernel of your own may use: `convswap lab` has the text ready, for NVRTC and for a check without a
// card. A file that takes the whole op says `// interface: conv` and gets a convswap::Conv.

namespace convswap {

// Every size of a convolution. Of each array the last index is the fastest; outside of the image x is 0:
//
//   y[n][m][p][q] = b[m] + sum over c, r, s of
//       x[n][c + first channel of m's group][p * stride_h - pad_top + r * dilation_h]
//                                           [q * stride_w - pad_left + s * dilation_w] * w[m][c][r][s]
struct Conv {
  int batch;                        // B
  int channels, height, width;      // C, H, W: of x; w has channels / groups of them
  int filters;                      // M
  int filter_height, filter_width;  // R, S
  int out_height, out_width;        // H_out, W_out
  int stride_h, stride_w;
  int pad_top, pad_left;
  int dilation_h, dilation_w;
  int groups;  // G
};

// a / b, rounded up, of numbers that are not negative.
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace convswap
