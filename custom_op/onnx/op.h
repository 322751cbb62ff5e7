#pragma once

#include "onnx/custom_op.h"
#include "onnx/kernel.h"

namespace convswap {

// A convolution op as ONNX Runtime sees it: a table of functions. There is one object per op, kind of device
// and element type.
struct ConvOp : public CustomOp {
  explicit ConvOp(const OpVariant& op_variant);

  const OpVariant variant;
};

}  // namespace convswap
