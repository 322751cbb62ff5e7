#pragma once

#include "onnx/kernel.h"

namespace convswap {

// An op as ONNX Runtime sees it: a table of functions. There is one object per op, kind of device and element
// type.
struct ConvOp : public OrtCustomOp {
  explicit ConvOp(const OpVariant& op_variant);

  const OpVariant variant;
};

}  // namespace convswap
