#pragma once

// A convolution of quantised data, one output element at a time, from tensors in any layout at any address.

#include "conv/epilogue_math.h"
#include "conv/quantization.h"
#include "conv/small_floats.h"
#include "cuda/primitives/naive_quantised_conv.h"

namespace convswap {

// The int32 sum at a position of the convolution, with the bias.
template <typename X>
__device__ inline int naive_quantised_sum(const NaiveQuantisedConv& problem, long long n, int k, int o, int p,
                                          int q) {
  const NaiveConv& conv = problem.conv;
  const int channels = static_cast<int>(conv.channels_per_group);
  const long long first_channel = k / conv.filters_per_group * channels;
  const X* const image = static_cast<const X*>(problem.x) + n * problem.x_strides.image +
                         first_channel * problem.x_strides.channel;
  const int taps = static_cast<int>(conv.filter[0] * conv.filter[1] * conv.filter[2]);
  const Int8* const weights = problem.w + static_cast<long long>(k) * channels * taps;
  int sum = problem.b == nullptr ? 0 : problem.b[k];
  int tap = 0;
  for (int t = 0; t < conv.filter[0]; ++t) {
    const long long d = o * conv.stride[0] + t * conv.dilation[0] - conv.pad[0];
    for (int r = 0; r < conv.filter[1]; ++r) {
      const long long h = p * conv.stride[1] + r * conv.dilation[1] - conv.pad[1];
      for (int s = 0; s < conv.filter[2]; ++s, ++tap) {
        const long long v = q * conv.stride[2] + s * conv.dilation[2] - conv.pad[2];
        if (d < 0 || d >= conv.input[0] || h < 0 || h >= conv.input[1] || v < 0 || v >= conv.input[2]) {
          continue;
        }
        const X* const pixel =
            image + ((d * conv.input[1] + h) * conv.input[2] + v) * problem.x_strides.position;
        for (int c = 0; c < channels; ++c) {
          sum += (pixel[c * problem.x_strides.channel] - problem.quantization.x_zero_point) *
                 weights[static_cast<long long>(c) * taps + tap];
        }
      }
    }
  }
  return sum;
}

// The value at a position of the convolution, before the pool.
template <typename X>
__device__ inline float naive_quantised_value(const NaiveQuantisedConv& problem, long long n, int k, int o,
                                              int p, int q) {
  const NaiveConv& conv = problem.conv;
  const int sum = naive_quantised_sum<X>(problem, n, k, o, p, q);
  float value =
      requantize::number_of_sum<X>(problem.quantization, sum, problem.scale[k],
                                   problem.offset == nullptr ? 0.0f : problem.offset[k], problem.sum_values);
  if (problem.z != nullptr) {
    const long long place = (o * conv.output[1] + p) * conv.output[2] + q;
    const Strides& strides = problem.z_strides;
    const X* const residual = static_cast<const X*>(problem.z);
    value = requantize::plus_residual(
        problem.quantization, value,
        residual[n * strides.image + place * strides.position + k * strides.channel]);
  }
  return activate<float>(conv.epilogue.activation, conv.epilogue.alpha, conv.epilogue.beta, value);
}

// Computes and stores element `at` of y, counted in y's layout.
template <typename X>
__device__ inline void naive_quantised_output(const NaiveQuantisedConv& problem, long long at) {
  const NaiveConv& conv = problem.conv;
  const long long positions = conv.result[0] * conv.result[1] * conv.result[2];
  const bool is_nhwc = problem.y_strides.channel == 1;
  const long long inner = is_nhwc ? conv.out_channels : positions;
  const long long outer = at / inner, in_outer = at - outer * inner;
  const long long other = is_nhwc ? positions : conv.out_channels;
  const long long n = outer / other, in_image = outer - n * other;
  const int k = static_cast<int>(is_nhwc ? in_outer : in_image);
  const long long position = is_nhwc ? in_image : in_outer;
  const int q = static_cast<int>(position % conv.result[2]);
  const int p = static_cast<int>(position / conv.result[2] % conv.result[1]);
  const int o = static_cast<int>(position / conv.result[2] / conv.result[1]);
  const Pool& pool = conv.epilogue.pool;
  float value = 0;
  if (pool.kind == PoolKind::none) {
    value = naive_quantised_value<X>(problem, n, k, o, p, q);
  } else {
    value = pooled<float>(pool.kind, PoolWindow(pool, 0, p, conv.output[1]),
                          PoolWindow(pool, 1, q, conv.output[2]), [&](int64_t row, int64_t column) {
                            return naive_quantised_value<X>(problem, n, k, o, static_cast<int>(row),
                                                            static_cast<int>(column));
                          });
  }
  if (problem.y_bytes == 4) {
    static_cast<float*>(problem.y)[at] = value;
  } else if (problem.y_bytes == 2) {
    static_cast<Float16*>(problem.y)[at] = Float16(value);
  } else {
    static_cast<Int8*>(problem.y)[at] =
        static_cast<Int8>(requantize::result_code(problem.quantization, value, problem.y_min_code));
  }
}

}  // namespace convswap
