#pragma once

#include "onnx/api.h"
#include "plan/device.h"

namespace convswap {

// The members that the tables of functions of all ops share: one output, version 1 of the domain, no variadic
// inputs.
struct CustomOp : public OrtCustomOp {
  CustomOp();
};

const char* provider_of(DeviceKind kind);

ONNXTensorElementDataType onnx_type(ElementType type);

}  // namespace convswap
