#include "onnx/op.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conv/declared_shapes.h"
#include "conv/problem.h"
#include "onnx/attributes.h"
#include "onnx/session_options.h"

namespace convswap {
namespace {

std::string node_name(const OrtApi& api, const OrtKernelInfo* info) {
  size_t size = 0;
  check(api, api.KernelInfo_GetNodeName(info, nullptr, &size));
  std::string name(size, '\0');
  check(api, api.KernelInfo_GetNodeName(info, name.data(), &size));
  return name.c_str();
}

ONNXTensorElementDataType onnx_type(ElementType type) {
  switch (type) {
    case ElementType::float32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case ElementType::float64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
    case ElementType::float16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case ElementType::bfloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    case ElementType::int8:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
    case ElementType::uint8:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
    case ElementType::int32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

struct InputInfo {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // owned by the context
  std::optional<Shape> shape;                 // empty for an unknown rank

  InputInfo(const OrtApi& api, const OrtShapeInferContext* context, size_t index) {
    check(api, api.ShapeInferContext_GetInputTypeShape(context, index, &info));
    if (Shape declared = shape_of(api, info); !declared.empty()) shape = std::move(declared);
  }
};

// The output shape in its layout, with kUnknownDimension for dimensions that depend on an unknown one. It is
// computed with fitting values in place of the unknown dimensions.
Shape output_shape(const ConvSpec& spec, const std::optional<Shape>& declared,
                   const std::optional<Shape>& w) {
  const DeclaredShapes complete = DeclaredShapes{declared, w, {}}.filled(spec);
  const ConvProblem problem = make_problem(spec, *complete.x, *complete.w);
  Shape output = to_nchw(problem.result_shape(), spec.layouts.output);
  const std::optional<Shape> x =
      declared ? std::optional(to_nchw(*declared, spec.layouts.input)) : std::nullopt;
  const auto is_known_of = [](const std::optional<Shape>& shape, size_t axis) {
    return shape && is_known(*shape, axis);
  };
  if (!is_known_of(x, 0)) output[0] = kUnknownDimension;
  if (!is_known_of(w, 0)) output[1] = kUnknownDimension;
  for (size_t axis = 2; axis < output.size(); ++axis) {
    const bool has_filter = is_known_of(w, axis) || axis - 2 < spec.kernel_shape.size();
    if (!is_known_of(x, axis) || !has_filter) output[axis] = kUnknownDimension;
  }
  return from_nchw(std::move(output), spec.layouts.output);
}

// The NCHW output shape of the depthwise convolution in front, as far as its weights are known.
std::optional<Shape> depthwise_output(const ConvSpec& spec, const std::optional<Shape>& x,
                                      const std::optional<Shape>& weights) {
  if (weights && is_known(*weights, 0)) {
    return output_shape(depthwise_spec(spec, (*weights)[0]), x, weights);
  }
  if (!x) return std::nullopt;
  Shape output = to_nchw(*x, spec.layouts.input);
  for (size_t axis = 2; axis < output.size(); ++axis) output[axis] = kUnknownDimension;
  return output;
}

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

// Sets the output's type and, as far as it is known, its shape.
void infer_conv_shape(const OrtApi& api, OrtShapeInferContext* context, OpKind op, ConvSpec spec) {
  const InputInfo x(api, context, 0);
  const InputInfo w(api, context, 1);
  std::optional<Shape> image = x.shape;
  size_t inputs = 0;
  check(api, api.ShapeInferContext_GetInputCount(context, &inputs));
  const auto place_of = [op](Input input) {
    return static_cast<size_t>(std::ranges::find(inputs_of(op), input) - inputs_of(op).begin());
  };
  // An absent input has no type, and ONNX Runtime reports no shape.
  if (const size_t depthwise = place_of(kD); inputs > depthwise) {
    const InputInfo weights(api, context, depthwise);
    if (weights.shape || !spec.depthwise.is_empty()) {
      image = depthwise_output(spec, image, weights.shape);
      spec = spec_behind_depthwise(spec);
    }
  }
  // Without a rank no shape is set: ONNX Runtime takes an output without dimensions for a scalar.
  if (!image && !w.shape) return;

  const Shape shape = output_shape(spec, image, w.shape);
  const std::vector<std::string> names = dimension_names(api, x, shape);
  std::vector<const char*> pointers;
  for (const std::string& name : names) pointers.push_back(name.c_str());

  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, api.CreateTensorTypeAndShapeInfo(&raw));
  const ShapeInfo output(raw, {&api});
  // y of a quantised convolution has the type of its zero point.
  const size_t typed = op == OpKind::quant ? place_of(kYZeroPoint) : 0;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  check(api, api.GetTensorElementType(InputInfo(api, context, typed).info, &type));
  check(api, api.SetTensorElementType(raw, type));
  check(api, api.SetDimensions(raw, shape.data(), shape.size()));
  check(api, api.SetSymbolicDimensions(raw, pointers.data(), pointers.size()));
  check(api, api.ShapeInferContext_SetOutputTypeShape(context, 0, raw));
}

// The type of the codes of x; uint8 if it is unknown.
ElementType type_of_codes(const OrtApi& api, const OrtShapeInferContext* context) {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  check(api, api.GetTensorElementType(InputInfo(api, context, 0).info, &type));
  return type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 ? ElementType::int8 : ElementType::uint8;
}

OpKind kind_of(const OrtCustomOp* op) { return static_cast<const ConvOp*>(op)->variant.op; }
DeviceKind device_of(const OrtCustomOp* op) { return static_cast<const ConvOp*>(op)->variant.device; }
ONNXTensorElementDataType type_of_input(const OrtCustomOp* op, Input input) {
  const OpVariant& variant = static_cast<const ConvOp*>(op)->variant;
  if (variant.op != OpKind::quant) return onnx_type(variant.type);
  switch (input) {
    case kX:
    case kZ:
      return onnx_type(variant.type);
    case kW:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
    case kB:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case kYZeroPoint:
      return onnx_type(variant.y_type);
    default:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
}

OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) noexcept {
  std::string title;
  try {
    title = std::string("convswap ") + name_of(kind_of(op));
    const std::string node = node_name(*api, info);
    title += " node '" + node + "'";
    *kernel = new ConvKernel(static_cast<const ConvOp*>(op)->variant, info, title);
    record_kernel(node);
    return nullptr;
  } catch (...) {
    return status_of_current_exception(*api, title);
  }
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
  ConvKernel& conv = *static_cast<ConvKernel*>(kernel);
  try {
    conv.compute(context);
    return nullptr;
  } catch (...) {
    return status_of_current_exception(conv.api(), conv.title());
  }
}

// Always returns success: ONNX Runtime neither reads nor releases the status. The kernel's constructor finds
// the same error and reports it with the node's name.
OrtStatus* infer_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  try {
    OpVariant variant = static_cast<const ConvOp*>(op)->variant;
    const InferenceAttributes attributes(variant.api, context);
    // ONNX Runtime asks any variant of the op, and zero points are codes of the type of x.
    if (variant.op == OpKind::quant) variant.type = type_of_codes(variant.api, context);
    infer_conv_shape(variant.api, context, variant.op, read_node(variant, attributes));
  } catch (...) {
  }
  return nullptr;
}

}  // namespace

ConvOp::ConvOp(const OpVariant& op_variant) : OrtCustomOp{}, variant(op_variant) {
  version = kApiVersion;
  GetName = [](const OrtCustomOp* op) { return name_of(kind_of(op)); };
  GetExecutionProviderType = [](const OrtCustomOp* op) {
    return device_of(op) == DeviceKind::cuda ? "CUDAExecutionProvider" : "CPUExecutionProvider";
  };
  GetInputTypeCount = [](const OrtCustomOp* op) -> size_t { return inputs_of(kind_of(op)).size(); };
  GetInputType = [](const OrtCustomOp* op, size_t index) {
    return type_of_input(op, inputs_of(kind_of(op))[index]);
  };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t index) {
    return is_optional(inputs_of(kind_of(op))[index]) ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  };
  GetInputMemoryType = [](const OrtCustomOp* op, size_t index) {
    return inputs_of(kind_of(op))[index] == kYZeroPoint ? OrtMemTypeCPUInput : OrtMemTypeDefault;
  };
  GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  GetOutputType = [](const OrtCustomOp* op, size_t) {
    return onnx_type(static_cast<const ConvOp*>(op)->variant.y_type);
  };
  GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
  CreateKernelV2 = create_kernel;
  KernelComputeV2 = compute;
  KernelDestroy = [](void* kernel) { delete static_cast<ConvKernel*>(kernel); };
  InferOutputShapeFn = infer_shape;
}

}  // namespace convswap
