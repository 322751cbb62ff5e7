#include "onnx/inputs.h"

#include <algorithm>

namespace convswap {

ShapeKey::ShapeKey(const OrtApi& api, const OrtValue* tensor) {
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, api.GetTensorTypeAndShape(tensor, &raw));
  const ShapeInfo info(raw, {&api});
  size_t axes = 0;
  check(api, api.GetDimensionsCount(raw, &axes));
  axes_ = static_cast<int64_t>(axes);
  if (axes <= kMostAxes) check(api, api.GetDimensions(raw, extents_.data(), axes));
}

NodeInputs::NodeInputs(const OrtApi& api, const OrtKernelInfo* info) : api_(api) {
  check(api, api.KernelInfo_GetInputCount(info, &count_));
  for (size_t index = 0; index < std::min(count_, constants_.size()); ++index) {
    int is_constant = 0;
    const OrtValue* constant = nullptr;
    check(api, api.KernelInfoGetConstantInput_tensor(info, index, &is_constant, &constant));
    if (is_constant) constants_[index] = ShapeKey(api, constant);
  }
}

InputTensors NodeInputs::of(const OrtKernelContext* context) const {
  const InputTensors tensors{input(context, 0), input(context, 1), input(context, 2),
                             input(context, 3), input(context, 4), input(context, 5)};
  const char* const missing = tensors.x == nullptr   ? "input X is missing"
                              : tensors.w == nullptr ? "weights W is missing"
                                                     : nullptr;
  if (missing != nullptr) throw OnnxRuntimeError(ORT_INVALID_ARGUMENT, missing);
  return tensors;
}

NodeInputs::Keys NodeInputs::keys(const InputTensors& tensors) const {
  Keys keys;
  const std::array<const OrtValue*, kMost> all{tensors.x, tensors.w, tensors.b,
                                               tensors.z, tensors.d, tensors.db};
  for (size_t index = 0; index < all.size(); ++index) {
    if (all[index] == nullptr) continue;
    keys[index] = constants_[index] ? *constants_[index] : ShapeKey(api_, all[index]);
  }
  return keys;
}

const OrtValue* NodeInputs::input(const OrtKernelContext* context, size_t index) const {
  const OrtValue* value = nullptr;
  if (index < count_) check(api_, api_.KernelContext_GetInput(context, index, &value));
  return value;
}

}  // namespace convswap
