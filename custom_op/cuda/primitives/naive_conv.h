#pragma once

// The convolution by the ONNX operator's definition, for kernels that compute one output element at a time.
// Users are the algorithm `naive`, and each algorithm whose own arithmetic would lose infinities or NaNs in
// the data.

#include "conv/epilogue.h"

namespace convswap {

// Sizes and epilogue, without the tensors. Three spatial axes, as in ConvProblem.
struct NaiveConv {
  long long in_channels, out_channels, channels_per_group, filters_per_group;
  long long input[3], filter[3], output[3], result[3], stride[3], dilation[3], pad[3];
  Epilogue epilogue;
};

}  // namespace convswap
