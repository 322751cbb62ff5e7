#pragma once

// A convolution as it is defined, one output at a time: of the algorithm `naive`, and of any that has data in
// which its own arithmetic would lose what is infinite or no number.

#include "conv/epilogue.h"

namespace convswap {

template <typename T>
struct NaiveArguments {
  const T* x;
  const T* w;
  const T* b;  // null without bias
  const T* z;  // null without residual
  T* y;
  long long outputs;  // elements of y
  long long in_channels, out_channels, channels_per_group, filters_per_group;
  long long input[3], filter[3], output[3], result[3], stride[3], dilation[3], pad[3];
  Epilogue epilogue;
};

// The sum of one output, without its bias, over some of its group's channels. T is the element type, Sum what
// its products are summed in.
template <typename T, typename Sum>
__device__ inline Sum naive_sum(const NaiveArguments<T>& problem, long long n, long long k, long long o,
                                long long p, long long q, long long first_of_group, long long channels) {
  const long long size = problem.filter[0] * problem.filter[1] * problem.filter[2];
  const long long first_channel = k / problem.filters_per_group * problem.channels_per_group + first_of_group;
  const long long d0 = o * problem.stride[0] - problem.pad[0];
  const long long h0 = p * problem.stride[1] - problem.pad[1];
  const long long w0 = q * problem.stride[2] - problem.pad[2];
  const T* weight = problem.w + (k * problem.channels_per_group + first_of_group) * size;
  Sum sum = 0;
  for (long long c = 0; c < channels; ++c) {
    const T* image = problem.x + (n * problem.in_channels + first_channel + c) * problem.input[0] *
                                     problem.input[1] * problem.input[2];
    for (long long t = 0; t < problem.filter[0]; ++t) {
      const long long d = d0 + t * problem.dilation[0];
      for (long long r = 0; r < problem.filter[1]; ++r) {
        const long long h = h0 + r * problem.dilation[1];
        const bool row_inside = d >= 0 && d < problem.input[0] && h >= 0 && h < problem.input[1];
        for (long long s = 0; s < problem.filter[2]; ++s, ++weight) {
          const long long column = w0 + s * problem.dilation[2];
          if (row_inside && column >= 0 && column < problem.input[2]) {
            sum += static_cast<Sum>(image[(d * problem.input[1] + h) * problem.input[2] + column]) *
                   static_cast<Sum>(*weight);
          }
        }
      }
    }
  }
  return sum;
}

}  // namespace convswap
