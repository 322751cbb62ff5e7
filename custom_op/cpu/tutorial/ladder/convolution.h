#pragma once

namespace convswap::ladder {

// What every rung of the ladder is given. Of each array the last index is the fastest:
//
//   y[n][k][p][q] = b[k] + sum over c, r, s of x[n][c][p + r][q + s] * w[k][c][r][s]
struct Convolution {
  const float* x;  // images: batch x channels x height x width
  const float* w;  // filters: filters x channels x filter_height x filter_width
  const float* b;  // a bias for each filter; zeros where there is none
  float* y;        // results: batch x filters x out_height x out_width
  float* scratch;  // what one kernel leaves for the next, where a rung has two
  int batch, channels, height, width;
  int filters, filter_height, filter_width;
  int out_height, out_width;
};

}  // namespace convswap::ladder
