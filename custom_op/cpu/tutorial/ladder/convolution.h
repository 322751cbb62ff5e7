#pragma once

namespace convswap::ladder {

// The arguments of every rung of the ladder. All arrays are row-major:
//
//   y[n][k][p][q] = b[k] + sum over c, r, s of x[n][c][p + r][q + s] * w[k][c][r][s]
struct Convolution {
  const float* x;  // images: batch x channels x height x width
  const float* w;  // filters: filters x channels x filter_height x filter_width
  const float* b;  // a bias for each filter; zeros if the layer has none
  float* y;        // results: batch x filters x out_height x out_width
  float* scratch;  // an intermediate result, in rungs with two kernels
  int batch, channels, height, width;
  int filters, filter_height, filter_width;
  int out_height, out_width;
};

}  // namespace convswap::ladder
