#pragma once

// The convolution of NHWC tensors by its definition, for kernels that compute one output element at a time.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"

namespace convswap {

// Sizes and epilogue, without the tensors. Three spatial axes, as in ConvProblem.
struct NhwcConv {
  long long y_elements;
  int in_channels, out_channels, channels_per_group, filters_per_group;
  int input[3], filter[3], stride[3], dilation[3], pad[3];
  FastDivisor output[3];
  EpilogueParams epilogue;
};

}  // namespace convswap
