#pragma once

// The convolution of naive_conv.h, computed one output element at a time.

#include "conv/epilogue_math.h"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"

namespace convswap {

// The accumulator type for products of T.
template <typename T>
struct AccumulatorOf {
  using Type = float;
};
template <>
struct AccumulatorOf<double> {
  using Type = double;
};

// The sum of one output element, without bias, over `channels` of its group's channels from
// `first_channel_of_group` on. T is the element type, Sum the accumulator type.
template <typename T, typename Sum>
__device__ inline Sum naive_conv_sum(const Tensors<T>& tensors, const NaiveConv& problem, long long n,
                                     long long k, long long o, long long p, long long q,
                                     long long first_channel_of_group, long long channels) {
  const long long size = problem.filter[0] * problem.filter[1] * problem.filter[2];
  const long long first_channel =
      k / problem.filters_per_group * problem.channels_per_group + first_channel_of_group;
  const long long d0 = o * problem.stride[0] - problem.pad[0];
  const long long h0 = p * problem.stride[1] - problem.pad[1];
  const long long w0 = q * problem.stride[2] - problem.pad[2];
  const T* weight = tensors.w + (k * problem.channels_per_group + first_channel_of_group) * size;
  Sum sum = 0;
  for (long long c = 0; c < channels; ++c) {
    const T* image = tensors.x + (n * problem.in_channels + first_channel + c) * problem.input[0] *
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

// One output element of the convolution with bias, residual and activation, without the pool.
template <typename T, typename Sum>
__device__ inline Sum naive_conv_value(const Tensors<T>& tensors, const NaiveConv& problem, long long n,
                                       long long k, long long o, long long p, long long q) {
  Sum value = naive_conv_sum<T, Sum>(tensors, problem, n, k, o, p, q, 0, problem.channels_per_group);
  if (tensors.b != nullptr) value += static_cast<Sum>(tensors.b[k]);
  if (tensors.z != nullptr) {
    const long long plane = (n * problem.out_channels + k) * problem.output[0] + o;
    value += static_cast<Sum>(tensors.z[(plane * problem.output[1] + p) * problem.output[2] + q]);
  }
  const Epilogue& epilogue = problem.epilogue;
  return activate<Sum>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
}

// One element of y.
template <typename T, typename Sum>
__device__ inline Sum naive_conv_output(const Tensors<T>& tensors, const NaiveConv& problem, long long n,
                                        long long k, long long o, long long p, long long q) {
  const Pool& pool = problem.epilogue.pool;
  if (pool.kind == PoolKind::none) return naive_conv_value<T, Sum>(tensors, problem, n, k, o, p, q);
  return pooled<Sum>(pool.kind, PoolWindow(pool, 0, p, problem.output[1]),
                     PoolWindow(pool, 1, q, problem.output[2]), [&](int64_t row, int64_t column) {
                       return naive_conv_value<T, Sum>(tensors, problem, n, k, o, row, column);
                     });
}

}  // namespace convswap
