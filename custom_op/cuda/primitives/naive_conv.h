#pragma once

// A convolution as the ONNX operator defines it, for kernels that compute one output at a time: the algorithm
// `naive`, and any that has data in which its own arithmetic would lose what is infinite or no number.

#include "conv/epilogue.h"

namespace convswap {

// All but the tensors; three axes, as of a ConvProblem.
struct NaiveConv {
  long long in_channels, out_channels, channels_per_group, filters_per_group;
  long long input[3], filter[3], output[3], result[3], stride[3], dilation[3], pad[3];
  Epilogue epilogue;
};

}  // namespace convswap
