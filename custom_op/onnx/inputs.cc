#include "onnx/inputs.h"

#include <algorithm>

namespace convswap {
namespace {

constexpr Input kConvInputs[] = {kX, kW, kB};
constexpr Input kFusedInputs[] = {kX, kW, kB, kZ, kD, kDb};
constexpr Input kQuantInputs[] = {kX, kW, kScale, kYZeroPoint, kB, kOffset, kZ, kSumValues};

// The inputs that a node names: trailing ones may be absent.
std::span<const Input> named_inputs(const OrtApi& api, const OrtKernelInfo* info, OpKind op) {
  size_t count = 0;
  check(api, api.KernelInfo_GetInputCount(info, &count));
  const std::span<const Input> all = inputs_of(op);
  return all.first(std::min(count, all.size()));
}

std::string missing_message(Input input) {
  switch (input) {
    case kX:
      return "input X is missing";
    case kW:
      return "weights W is missing";
    case kScale:
      return "input scale is missing";
    default:
      return "input y_zero_point is missing";
  }
}

// True for the input of a quantised node that stands for an absent residual in front of present inputs: a
// constant of shape (0), which `swap` writes.
bool is_placeholder(const OrtApi& api, const OrtKernelInfo* info, OpKind op, size_t index) {
  if (op != OpKind::quant || inputs_of(op)[index] != kZ) return false;
  const OrtValue* const constant = constant_input(api, info, index);
  return constant != nullptr && shape_of(api, constant) == Shape{0};
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

std::span<const Input> inputs_of(OpKind op) {
  if (op == OpKind::conv) return kConvInputs;
  if (op == OpKind::quant) return kQuantInputs;
  return kFusedInputs;
}

bool is_optional(Input input) {
  return input != kX && input != kW && input != kScale && input != kYZeroPoint;
}

InputShapes shapes_of(const OrtApi& api, const InputTensors& tensors) {
  const auto shape_or_none = [&](Input input) {
    return tensors[input] == nullptr ? std::nullopt : std::optional(shape_of(api, tensors[input]));
  };
  return {shape_of(api, tensors[kX]), shape_of(api, tensors[kW]), shape_or_none(kB),
          shape_or_none(kZ),          shape_or_none(kD),          shape_or_none(kDb),
          shape_or_none(kScale),      shape_or_none(kOffset),     shape_or_none(kSumValues)};
}

PerInput<DeclaredInput> declared_inputs(const OrtApi& api, const OrtKernelInfo* info, OpKind op) {
  PerInput<DeclaredInput> inputs;
  const std::span<const Input> named = named_inputs(api, info, op);
  for (size_t index = 0; index < named.size(); ++index) {
    if (is_placeholder(api, info, op, index)) continue;
    size_t bytes = 0;
    check(api, api.KernelInfo_GetInputName(info, index, nullptr, &bytes));
    inputs[named[index]] = {bytes > 1, declared_shape(api, info, index)};
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

NodeInputs::NodeInputs(const OrtApi& api, const OrtKernelInfo* info, OpKind op)
    : api_(api), inputs_(named_inputs(api, info, op)) {
  for (size_t index = 0; index < inputs_.size(); ++index) {
    if (const OrtValue* const constant = constant_input(api, info, index)) {
      constants_[inputs_[index]] = ShapeKey(api, constant);
    }
    is_placeholder_[inputs_[index]] = is_placeholder(api, info, op, index);
  }
}

InputTensors NodeInputs::tensors(const OrtKernelContext* context) const {
  InputTensors tensors{};
  for (size_t index = 0; index < inputs_.size(); ++index) {
    if (is_placeholder_[inputs_[index]]) continue;
    const OrtValue*& tensor = tensors[inputs_[index]];
    check(api_, api_.KernelContext_GetInput(context, index, &tensor));
    if (tensor == nullptr && !is_optional(inputs_[index])) {
      throw OnnxRuntimeError(ORT_INVALID_ARGUMENT, missing_message(inputs_[index]));
    }
  }
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
  return std::ranges::all_of(std::array{kW, kB, kD, kDb, kScale, kOffset, kSumValues}, [&](Input input) {
    return tensors[input] == nullptr || constants_[input].has_value();
  });
}

}  // namespace convswap
