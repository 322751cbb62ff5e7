#include "onnx/shape_inference.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "conv/declared_shapes.h"

namespace convswap {
namespace {

// Names each unknown dimension: ONNX Runtime takes an unnamed one for a dimension of size -1. The batch keeps
// its name. Every other name is new, because ONNX Runtime takes equal names for equal sizes.
std::vector<std::string> dimension_names(const OrtApi& api, const InputInfo& x, const Shape& output) {
  static std::atomic<uint64_t> unknown_dimensions{0};
  std::vector<const char*> input_names(x.shape ? x.shape->size() : 0, "");
  check(api, api.GetSymbolicDimensions(x.info, input_names.data(), input_names.size()));
  std::vector<std::string> names(output.size());
  for (size_t axis = 0; axis < output.size(); ++axis) {
    if (output[axis] != kUnknownDimension) continue;
    const bool is_named_batch = axis == 0 && !input_names.empty() && *input_names[0] != '\0';
    names[axis] = is_named_batch ? input_names[0] : "convswap_" + std::to_string(unknown_dimensions++);
  }
  return names;
}

}  // namespace

InputInfo::InputInfo(const OrtApi& api, const OrtShapeInferContext* context, size_t index) {
  check(api, api.ShapeInferContext_GetInputTypeShape(context, index, &info));
  if (Shape declared = shape_of(api, info); !declared.empty()) shape = std::move(declared);
}

void set_output_shape(const OrtApi& api, OrtShapeInferContext* context, const InputInfo& x,
                      const InputInfo& typed, const Shape& shape) {
  const std::vector<std::string> names = dimension_names(api, x, shape);
  std::vector<const char*> pointers;
  for (const std::string& name : names) pointers.push_back(name.c_str());

  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, api.CreateTensorTypeAndShapeInfo(&raw));
  const ShapeInfo output(raw, {&api});
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  check(api, api.GetTensorElementType(typed.info, &type));
  check(api, api.SetTensorElementType(raw, type));
  check(api, api.SetDimensions(raw, shape.data(), shape.size()));
  check(api, api.SetSymbolicDimensions(raw, pointers.data(), pointers.size()));
  check(api, api.ShapeInferContext_SetOutputTypeShape(context, 0, raw));
}

}  // namespace convswap
