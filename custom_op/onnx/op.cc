#include "onnx/op.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "conv/declared_shapes.h"
#include "conv/problem.h"
#include "onnx/attributes.h"
#include "onnx/context.h"
#include "onnx/session_options.h"
#include "onnx/shape_inference.h"

namespace convswap {
namespace {

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

  // y of a quantised convolution has the type of its zero point.
  const InputInfo typed(api, context, op == OpKind::quant ? place_of(kYZeroPoint) : 0);
  set_output_shape(api, context, x, typed, output_shape(spec, image, w.shape));
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

// Before shape inference, ONNX Runtime up to 1.23 reads the type of every input, and ends the process at one
// without a name.
constexpr uint32_t kAbsentInputsSince = 24;

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

ConvOp::ConvOp(const OpVariant& op_variant) : variant(op_variant) {
  GetName = [](const OrtCustomOp* op) { return name_of(kind_of(op)); };
  GetExecutionProviderType = [](const OrtCustomOp* op) { return provider_of(device_of(op)); };
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
  GetOutputType = [](const OrtCustomOp* op, size_t) {
    return onnx_type(static_cast<const ConvOp*>(op)->variant.y_type);
  };
  CreateKernelV2 = create_kernel;
  KernelComputeV2 = compute;
  KernelDestroy = [](void* kernel) { delete static_cast<ConvKernel*>(kernel); };
  // The other ops may have an absent input before present ones, as a residual without a bias.
  if (op_variant.op == OpKind::conv || is_at_least(op_variant.base, kAbsentInputsSince)) {
    InferOutputShapeFn = infer_shape;
  }
}

}  // namespace convswap
