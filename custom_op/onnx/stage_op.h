#pragma once

// The ops that are no convolutions, each computed by an OpStage.

#include "onnx/custom_op.h"

namespace convswap {

// An op for one kind of device and element type, in one ONNX Runtime.
struct StageVariant {
  const OrtApiBase& base;
  const OrtApi& api;
  DeviceKind device;
  ElementType type;
  const KernelOrigin* origin;  // of a card's kernels; may be null
};

// An op as ONNX Runtime sees it: a table of functions.
struct StageOp : public CustomOp {
  StageVariant variant;

  explicit StageOp(const StageVariant& op_variant) : variant(op_variant) {}
};

StageOp layout_pool_op(const StageVariant& variant);
StageOp layer_norm_op(const StageVariant& variant);
StageOp mul_op(const StageVariant& variant);

}  // namespace convswap
