#pragma once

// The convolution of nhwc_conv.h, computed one output element at a time. Its tensors may be at any addresses.

#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/nhwc_conv.h"

namespace convswap {

// The sum of element `at` of y, bias included.
template <typename Element>
__device__ inline float nhwc_sum(const Tensors<Element>& tensors, const NhwcConv& conv, long long at) {
  int image = static_cast<int>(at / conv.out_channels);
  const int filter = static_cast<int>(at - static_cast<long long>(image) * conv.out_channels);
  int first[3];  // pixel of the first tap
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    first[axis] = div_mod(image, conv.output[axis]) * conv.stride[axis] - conv.pad[axis];
  }
  const int first_channel = filter / conv.filters_per_group * conv.channels_per_group;
  const int taps = conv.filter[0] * conv.filter[1] * conv.filter[2];
  const Element* const weights = tensors.w + static_cast<long long>(filter) * conv.channels_per_group * taps;
  float sum = tensors.b == nullptr ? 0.0f : static_cast<float>(tensors.b[filter]);
  int tap = 0;
  for (int t = 0; t < conv.filter[0]; ++t) {
    for (int r = 0; r < conv.filter[1]; ++r) {
      for (int s = 0; s < conv.filter[2]; ++s, ++tap) {
        const int d = first[0] + t * conv.dilation[0], h = first[1] + r * conv.dilation[1],
                  v = first[2] + s * conv.dilation[2];
        if (!is_inside(d, conv.input[0]) || !is_inside(h, conv.input[1]) || !is_inside(v, conv.input[2])) {
          continue;
        }
        const long long row = (static_cast<long long>(image) * conv.input[0] + d) * conv.input[1] + h;
        const Element* const pixel = tensors.x + (row * conv.input[2] + v) * conv.in_channels + first_channel;
        for (int c = 0; c < conv.channels_per_group; ++c) {
          sum += static_cast<float>(pixel[c]) *
                 static_cast<float>(weights[static_cast<long long>(c) * taps + tap]);
        }
      }
    }
  }
  return sum;
}

// Computes element `at` of y.
template <typename Element>
__device__ inline void compute_nhwc_output(const Tensors<Element>& tensors, const NhwcConv& conv,
                                           long long at) {
  float result[] = {nhwc_sum(tensors, conv, at)};
  if (tensors.z != nullptr) result[0] += static_cast<float>(tensors.z[at]);
  apply_activation(conv.epilogue, result);
  tensors.y[at] = static_cast<Element>(result[0]);
}

}  // namespace convswap
