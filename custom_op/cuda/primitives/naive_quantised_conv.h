#pragma once

// The arguments of naive_quantised_conv.cuh.

#include "conv/quantization.h"
#include "cuda/primitives/naive_conv.h"

namespace convswap {

// Elements from an image, a channel and a position of a tensor to the next.
struct Strides {
  long long image, channel, position;
};

struct NaiveQuantisedConv {
  NaiveConv conv;
  Quantization quantization;
  Strides x_strides, z_strides, y_strides;
  int y_bytes;     // of an element: 1 for codes, 2 for float16, 4 for float32
  int y_min_code;  // the lowest code of y

  const void* x;
  const Int8* w;
  const int* b;  // null without bias
  const float* scale;
  const float* offset;      // null without offset
  const float* sum_values;  // kCodeCount of them, or null
  const void* z;            // null without residual
  void* y;
};

}  // namespace convswap
