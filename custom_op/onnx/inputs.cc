#include "onnx/inputs.h"

#include <algorithm>
#include <utility>

namespace convswap {
namespace {

size_t input_count(const OrtApi& api, const OrtKernelInfo* info) {
  size_t count = 0;
  check(api, api.KernelInfo_GetInputCount(info, &count));
  return std::min<size_t>(count, kInputs);
}

std::optional<Shape> declared_shape(const OrtApi& api, const OrtKernelInfo* info, size_t index) {
  if (const OrtValue* const constant = constant_input(api, info, index)) return shape_of(api, constant);
  OrtTypeInfo* raw = nullptr;
  if (OrtStatus* status = api.KernelInfo_GetInputTypeInfo(info, index, &raw); status != nullptr) {
    api.ReleaseStatus(status);  // the expected error: there is no type
    return std::nullopt;
  }
  const TypeInfo type(raw, {&api});
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;  // owned by `type`
  check(api, api.CastTypeInfoToTensorInfo(type.get(), &tensor));
  Shape shape = tensor == nullptr ? Shape{} : shape_of(api, tensor);
  // An unknown rank, or a scalar: ONNX Runtime reports both alike.
  if (shape.empty()) return std::nullopt;
  return shape;
}

}  // namespace

InputShapes shapes_of(const OrtApi& api, const InputTensors& tensors) {
  const auto shape_or_none = [&](Input input) {
    return tensors[input] == nullptr ? std::nullopt : std::optional(shape_of(api, tensors[input]));
  };
  return {shape_of(api, tensors[kX]), shape_of(api, tensors[kW]), shape_or_none(kB),
          shape_or_none(kZ),          shape_or_none(kD),          shape_or_none(kDb)};
}

PerInput<DeclaredInput> declared_inputs(const OrtApi& api, const OrtKernelInfo* info) {
  PerInput<DeclaredInput> inputs;
  for (size_t index = 0; index < input_count(api, info); ++index) {
    size_t bytes = 0;
    check(api, api.KernelInfo_GetInputName(info, index, nullptr, &bytes));
    inputs[index] = {bytes > 1, declared_shape(api, info, index)};
  }
  return inputs;
}

ShapeKey::ShapeKey(const OrtApi& api, const OrtValue* tensor) {
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, api.GetTensorTypeAndShape(tensor, &raw));
  const ShapeInfo info(raw, {&api});
  size_t axes = 0;
  check(api, api.GetDimensionsCount(raw, &axes));
  axes_ = static_cast<int64_t>(axes);
  if (axes <= kMaxAxes) check(api, api.GetDimensions(raw, extents_.data(), axes));
}

NodeInputs::NodeInputs(const OrtApi& api, const OrtKernelInfo* info)
    : api_(api), count_(input_count(api, info)) {
  for (size_t index = 0; index < count_; ++index) {
    if (const OrtValue* const constant = constant_input(api, info, index)) {
      constants_[index] = ShapeKey(api, constant);
    }
  }
}

InputTensors NodeInputs::tensors(const OrtKernelContext* context) const {
  InputTensors tensors{};
  for (size_t index = 0; index < count_; ++index) {
    check(api_, api_.KernelContext_GetInput(context, index, &tensors[index]));
  }
  const char* const missing = tensors[kX] == nullptr   ? "input X is missing"
                              : tensors[kW] == nullptr ? "weights W is missing"
                                                       : nullptr;
  if (missing != nullptr) throw OnnxRuntimeError(ORT_INVALID_ARGUMENT, missing);
  return tensors;
}

NodeInputs::Keys NodeInputs::keys(const InputTensors& tensors) const {
  Keys keys;
  for (size_t index = 0; index < kInputs; ++index) {
    if (tensors[index] == nullptr) continue;
    keys[index] = constants_[index] ? *constants_[index] : ShapeKey(api_, tensors[index]);
  }
  return keys;
}

bool NodeInputs::has_constants_only(const InputTensors& tensors) const {
  return std::ranges::all_of(std::array{kW, kB, kD, kDb}, [&](Input input) {
    return tensors[input] == nullptr || constants_[input].has_value();
  });
}

}  // namespace convswap
