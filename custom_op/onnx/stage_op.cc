// The ops LayoutPool, MaxPool or AveragePool of an NHWC image, and LayerNormalization and Mul, ONNX's
// operators of these names.

#include "onnx/stage_op.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "conv/error.h"
#include "cuda/runtime/kernel_store.h"
#include "onnx/attributes.h"
#include "onnx/context.h"
#include "onnx/inputs.h"
#include "onnx/memory.h"
#include "onnx/shape_cache.h"
#include "onnx/shape_inference.h"
#include "plan/background.h"
#include "plan/op_stage.h"

namespace convswap {
namespace {

// What LayoutPool does differently from other ops. `kInputs` of the inputs of Conv are those of the op, of
// which the first `kRequiredInputs` are required.
struct LayoutPool {
  using Spec = PoolSpec;
  using Problem = PoolProblem;
  static constexpr char kName[] = "LayoutPool";
  static constexpr size_t kInputs = 1, kRequiredInputs = 1;
  static constexpr auto& read_spec = read_pool_spec;
  static constexpr auto& make_problem = make_pool_problem;
  static constexpr auto& stage = pool_stage;

  // Returns the shape of y for shapes of a run or declared ones. Throws InvalidArgument if they do not fit.
  static Shape result_shape(const Spec& spec, const Shape& x, const std::optional<Shape>&,
                            const std::optional<Shape>&) {
    return pool_result_shape(spec, x);
  }

  // The shapes to compile kernels for if x is declared with this shape.
  static std::vector<Shape> shapes_to_plan(const Shape& x) {
    std::vector<Shape> shapes;
    for (const int64_t batch : batches_to_plan(x)) {
      shapes.push_back(x);
      shapes.back()[0] = batch;
    }
    return shapes;
  }
};

// What LayerNormalization does differently.
struct LayerNorm {
  using Spec = LayerNormSpec;
  using Problem = LayerNormProblem;
  static constexpr char kName[] = "LayerNormalization";
  static constexpr size_t kInputs = 3, kRequiredInputs = 2;
  static constexpr auto& read_spec = read_layer_norm_spec;
  static constexpr auto& make_problem = make_layer_norm_problem;
  static constexpr auto& stage = layer_norm_stage;

  static Shape result_shape(const Spec& spec, const Shape& x, const std::optional<Shape>& scale,
                            const std::optional<Shape>& bias) {
    check_layer_norm_shapes(spec, x, scale, bias);
    return x;
  }

  // The kernel depends on the length of the rows only.
  static std::vector<Shape> shapes_to_plan(const Shape& x) {
    return x.back() < 0 ? std::vector<Shape>{} : std::vector<Shape>{{1, x.back()}};
  }
};

// What Mul does differently.
struct Mul {
  using Spec = MulSpec;
  using Problem = MulProblem;
  static constexpr char kName[] = "Mul";
  static constexpr size_t kInputs = 2, kRequiredInputs = 2;
  static constexpr auto& read_spec = read_mul_spec;
  static constexpr auto& make_problem = make_mul_problem;
  static constexpr auto& stage = mul_stage;

  static Shape result_shape(const Spec&, const Shape& x, const std::optional<Shape>& factors,
                            const std::optional<Shape>&) {
    check_mul_shapes(x, factors);
    return x;
  }

  // The kernel depends on the channels only.
  static std::vector<Shape> shapes_to_plan(const Shape& x) {
    return x.back() < 0 ? std::vector<Shape>{} : std::vector<Shape>{{1, 1, x.back()}};
  }
};

// The plan of a node for the shapes of a run, reused by every run with the same shapes.
struct CachedPlan {
  NodeInputs::Keys keys;
  Shape x;
  int device_index;
  Shape result;                      // shape of y
  std::shared_ptr<const Plan> plan;  // null if y has no elements
};

// One node of one session. Serves concurrent runs.
template <typename Op>
class StageKernel {
 public:
  // Checks the node's declared shapes and, for a card, starts to compile its kernels in the background.
  // `title` names the node in messages. Throws.
  StageKernel(const StageVariant& variant, const OrtKernelInfo* info, std::string title)
      : variant_(variant),
        title_(std::move(title)),
        spec_(Op::read_spec(KernelAttributes(variant_.api, info), variant_.type)),
        inputs_(variant_.api, info, OpKind::conv) {
    if (variant_.device == DeviceKind::cpu)
      aligned_constants_.emplace(variant_.api, info, bytes_per_element(variant_.type));
    const auto declared = declared_inputs(variant_.api, info, OpKind::conv);
    const std::optional<Shape>& x = declared[kX].shape;
    if (!x) return;
    Op::result_shape(spec_, *x, declared[kW].shape, declared[kB].shape);  // throws if a shape does not fit
    if (variant_.device == DeviceKind::cuda) compile_ahead(*x);
  }

  const std::string& title() const { return title_; }
  const OrtApi& api() const { return variant_.api; }

  void compute(OrtKernelContext* context) {
    const OrtApi& api = variant_.api;
    const InputTensors inputs = inputs_.tensors(context);
    const std::shared_ptr<const CachedPlan> run = cached_plan(context, inputs);
    OrtValue* y = nullptr;
    check(api, api.KernelContext_GetOutput(context, 0, run->result.data(), run->result.size(), &y));
    if (variant_.device == DeviceKind::cuda) log_warning(api, context, take_kernel_store_warning());
    if (run->plan == nullptr) return;

    Execution execution = execution_of(api, context, variant_.device);
    execution.weights_are_constant = inputs_.has_constants_only(inputs);
    const int64_t bytes = bytes_per_element(variant_.type);
    if (aligned_constants_) {
      AlignedTensors aligned(api, *aligned_constants_, static_cast<size_t>(bytes));
      const auto address_of = [&](const OrtValue* tensor) { return aligned.input(tensor); };
      run->plan->run(conv_tensors(inputs, aligned.output(y), address_of), execution);
      aligned.finish();
    } else {
      const auto address_of = [&](const OrtValue* tensor) { return aligned_data(api, tensor, bytes); };
      run->plan->run(conv_tensors(inputs, address_of(y), address_of), execution);
    }
  }

 private:
  // Returns the cached plan for the shapes of the inputs, and makes it if there is none.
  std::shared_ptr<const CachedPlan> cached_plan(const OrtKernelContext* context, const InputTensors& inputs) {
    const OrtApi& api = variant_.api;
    const NodeInputs::Keys keys = inputs_.keys(inputs);
    const int index = device_index(api, inputs[kX], variant_.device);
    const auto matches = [&](const CachedPlan& known) {
      return known.device_index == index && known.keys == keys &&
             (keys[kX].has_extents() || known.x == shape_of(api, inputs[kX]));
    };
    const auto shape_or_none = [&](Input input) {
      return inputs[input] == nullptr ? std::nullopt : std::optional(shape_of(api, inputs[input]));
    };
    if (std::shared_ptr<const CachedPlan> known = shape_cache_.find(matches)) {
      // Keys without extents do not tell whether the other inputs still fit x.
      if (!keys[kX].has_extents()) Op::result_shape(spec_, known->x, shape_or_none(kW), shape_or_none(kB));
      return known;
    }

    const Shape x = shape_of(api, inputs[kX]);
    Shape result = Op::result_shape(spec_, x, shape_or_none(kW), shape_or_none(kB));
    const typename Op::Problem problem = Op::make_problem(spec_, x);
    auto planned = std::make_shared<CachedPlan>(CachedPlan{keys, x, index, std::move(result), nullptr});
    if (problem.result_elements() > 0) {
      const Device& device = variant_.device == DeviceKind::cpu
                                 ? cpu_device()
                                 : cuda_device(index, variant_.origin, lends_scratch(variant_.base));
      const Offer offer = offer_of(problem, device);
      if (offer.kernels != nullptr) {
        if (const std::string reason = why_no_kernels(device, offer); !reason.empty())
          throw std::runtime_error(reason);
        log_compiling(api, context, device, offer);
      }
      planned->plan = offer.make();
    }
    shape_cache_.add(planned);
    return planned;
  }

  // The device's plan for a problem as an offer. `device` and the stage outlive it.
  static Offer offer_of(const typename Op::Problem& problem, const Device& device) {
    const auto& stage = Op::stage(device.kind);
    Offer offer{{}, std::nullopt, [&stage, problem, &device] { return stage.make(problem, device); }};
    if (device.kind == DeviceKind::cuda) {
      offer.kernels = [&stage, problem, &device] { return stage.kernels(problem, device); };
    }
    return offer;
  }

  // Compiles the kernels for the declared shape in the background or, with an unknown batch, those for common
  // batches.
  void compile_ahead(const Shape& x) const {
    const std::optional<int> index = device_of_session(variant_.api, nullptr);
    if (!index) return;
    const std::vector<Shape> shapes = Op::shapes_to_plan(x);
    for (const Shape& shape : shapes) {
      const typename Op::Problem problem = Op::make_problem(spec_, shape);
      if (problem.result_elements() == 0) continue;
      in_background(
          shapes.size() == 1 ? Priority::high : Priority::low,
          [problem, origin = variant_.origin, lends = lends_scratch(variant_.base), index = *index] {
            const Device& device = cuda_device(index, origin, lends);
            Op::stage(DeviceKind::cuda).make(problem, device);
          });
    }
  }

  const StageVariant variant_;
  const std::string title_;
  const typename Op::Spec spec_;
  const NodeInputs inputs_;
  ShapeCache<CachedPlan> shape_cache_;
  std::optional<AlignedConstants> aligned_constants_;  // on the CPU
};

const StageVariant& variant_of(const OrtCustomOp* op) { return static_cast<const StageOp*>(op)->variant; }

template <typename Op>
OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) noexcept {
  std::string title;
  try {
    title = std::string("convswap ") + Op::kName;
    title += " node '" + node_name(*api, info) + "'";
    *kernel = new StageKernel<Op>(variant_of(op), info, title);
    return nullptr;
  } catch (...) {
    return status_of_current_exception(*api, title);
  }
}

template <typename Op>
OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
  StageKernel<Op>& node = *static_cast<StageKernel<Op>*>(kernel);
  try {
    node.compute(context);
    return nullptr;
  } catch (...) {
    return status_of_current_exception(node.api(), node.title());
  }
}

// Always returns success, like the shape inference of the convolutions.
template <typename Op>
OrtStatus* infer_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  try {
    const OrtApi& api = variant_of(op).api;
    const InputInfo x(api, context, 0);
    // Without a rank no shape is set: ONNX Runtime takes an output without dimensions for a scalar.
    if (!x.shape) return nullptr;
    const InferenceAttributes attributes(api, context);
    const typename Op::Spec spec = Op::read_spec(attributes, ElementType::float32);
    set_output_shape(api, context, x, x, Op::result_shape(spec, *x.shape, std::nullopt, std::nullopt));
  } catch (...) {
  }
  return nullptr;
}

template <typename Op>
StageOp make_op(const StageVariant& variant) {
  StageOp op(variant);
  op.GetName = [](const OrtCustomOp*) { return Op::kName; };
  op.GetExecutionProviderType = [](const OrtCustomOp* self) { return provider_of(variant_of(self).device); };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return Op::kInputs; };
  op.GetInputType = [](const OrtCustomOp* self, size_t) { return onnx_type(variant_of(self).type); };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t index) {
    return index < Op::kRequiredInputs ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  };
  op.GetOutputType = [](const OrtCustomOp* self, size_t) { return onnx_type(variant_of(self).type); };
  op.CreateKernelV2 = create_kernel<Op>;
  op.KernelComputeV2 = compute<Op>;
  op.KernelDestroy = [](void* kernel) { delete static_cast<StageKernel<Op>*>(kernel); };
  op.InferOutputShapeFn = infer_shape<Op>;
  return op;
}

}  // namespace

StageOp layout_pool_op(const StageVariant& variant) { return make_op<LayoutPool>(variant); }
StageOp layer_norm_op(const StageVariant& variant) { return make_op<LayerNorm>(variant); }
StageOp mul_op(const StageVariant& variant) { return make_op<Mul>(variant); }

}  // namespace convswap
