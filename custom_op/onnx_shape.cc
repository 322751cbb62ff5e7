#include <algorithm>
#include <atomic>
#include <string>

#include "conv/problem.h"
#include "onnx_op.h"

namespace convswap {
namespace {

constexpr int64_t kUnknown = -1;

struct InputInfo {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // the context's: not ours to release
  Shape shape;                                // empty where not even the rank is known

  InputInfo(const OrtApi& api, const OrtShapeInferContext* context, size_t index) {
    check(api, api.ShapeInferContext_GetInputTypeShape(context, index, &info));
    shape = shape_of(api, info);
  }
};

bool known(const Shape& shape, size_t axis) { return axis < shape.size() && shape[axis] >= 0; }

// The filter's extents, from the weights or else from kernel_shape; kUnknown where neither tells.
Shape filter_extents(const ConvSpec& spec, const Shape& weights, size_t spatial_rank) {
  Shape filter(spatial_rank, kUnknown);
  for (size_t i = 0; i < spatial_rank; ++i) {
    if (known(weights, i + 2)) {
      filter[i] = weights[i + 2];
    } else if (i < spec.kernel_shape.size()) {
      filter[i] = spec.kernel_shape[i];
    }
  }
  return filter;
}

// The output shape with kUnknown for what cannot be known yet. The shape arithmetic is make_problem's: an
// unknown extent is replaced by one that is valid, and what depends on it is forgotten afterwards.
Shape output_shape(const ConvSpec& spec, const Shape& x, const Shape& w) {
  const size_t spatial_rank = x.size() - 2;
  const Shape filter = filter_extents(spec, w, spatial_rank);
  Shape whole_w{spec.group, 1};
  for (const int64_t extent : filter) whole_w.push_back(std::max<int64_t>(extent, 1));
  // Before anything is multiplied: a model may state any number.
  check_spec(spec);
  check_weights(spec, whole_w);
  Shape whole_x{1, spec.group};
  for (size_t i = 0; i < spatial_rank; ++i) {
    const int64_t dilation = i < spec.dilations.size() ? spec.dilations[i] : 1;
    const int64_t stride = i < spec.strides.size() ? spec.strides[i] : 1;
    // A whole window of the pool.
    const int64_t outputs = i < 2 ? spec.epilogue.pool.kernel[i] : 1;
    whole_x.push_back(known(x, i + 2) ? x[i + 2]
                                      : (whole_w[i + 2] - 1) * dilation + (outputs - 1) * stride + 1);
  }
  Shape output = make_problem(spec, whole_x, whole_w, nullptr).result_shape();
  output[0] = x[0];
  output[1] = known(w, 0) ? w[0] : kUnknown;
  for (size_t i = 0; i < spatial_rank; ++i) {
    if (!known(x, i + 2) || filter[i] == kUnknown) output[i + 2] = kUnknown;
  }
  return output;
}

// A name for each unknown dimension: an unnamed one would be taken for a dimension of size -1. The batch
// keeps its name. Every other name is new, because ONNX Runtime takes equal names for equal sizes.
std::vector<std::string> dimension_names(const OrtApi& api, const InputInfo& x, const Shape& output) {
  static std::atomic<uint64_t> unknown_dimensions{0};
  std::vector<const char*> input_names(x.shape.size(), "");
  check(api, api.GetSymbolicDimensions(x.info, input_names.data(), input_names.size()));
  std::vector<std::string> names(output.size());
  for (size_t axis = 0; axis < output.size(); ++axis) {
    if (output[axis] != kUnknown) continue;
    const bool is_named_batch = axis == 0 && !input_names.empty() && *input_names[0] != '\0';
    names[axis] = is_named_batch ? input_names[0] : "convswap_" + std::to_string(unknown_dimensions++);
  }
  return names;
}

}  // namespace

void infer_conv_shape(const OrtApi& api, OrtShapeInferContext* context, const ConvSpec& spec) {
  const InputInfo x(api, context, 0);
  const InputInfo w(api, context, 1);
  Shape x_shape = x.shape;
  if (x_shape.empty()) x_shape.assign(w.shape.size(), kUnknown);
  // Without a rank there is nothing to say: an output without dimensions would be taken for a scalar.
  if (x_shape.size() < 3) return;

  const Shape shape = output_shape(spec, x_shape, w.shape);
  const std::vector<std::string> names = dimension_names(api, x, shape);
  std::vector<const char*> pointers;
  for (const std::string& name : names) pointers.push_back(name.c_str());

  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, api.CreateTensorTypeAndShapeInfo(&raw));
  const ShapeInfo output(raw, {&api});
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  check(api, api.GetTensorElementType(x.info, &type));
  check(api, api.SetTensorElementType(raw, type));
  check(api, api.SetDimensions(raw, shape.data(), shape.size()));
  check(api, api.SetSymbolicDimensions(raw, pointers.data(), pointers.size()));
  check(api, api.ShapeInferContext_SetOutputTypeShape(context, 0, raw));
}

}  // namespace convswap
