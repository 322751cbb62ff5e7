// The op LayoutPool: MaxPool or AveragePool of an NHWC image.

#include "onnx/pool_op.h"

#include <stdexcept>
#include <utility>

#include "conv/error.h"
#include "cuda/runtime/kernel_store.h"
#include "onnx/attributes.h"
#include "onnx/context.h"
#include "onnx/shape_inference.h"
#include "plan/background.h"
#include "plan/pool_stage.h"

namespace convswap {
namespace {

constexpr char kPoolOpName[] = "LayoutPool";

const PoolVariant& variant_of(const OrtCustomOp* op) { return static_cast<const PoolOp*>(op)->variant; }

OrtStatus* create_pool_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                              void** kernel) noexcept {
  std::string title;
  try {
    title = std::string("convswap ") + kPoolOpName;
    title += " node '" + node_name(*api, info) + "'";
    *kernel = new PoolKernel(variant_of(op), info, title);
    return nullptr;
  } catch (...) {
    return status_of_current_exception(*api, title);
  }
}

OrtStatus* compute_pool(void* kernel, OrtKernelContext* context) noexcept {
  PoolKernel& pool = *static_cast<PoolKernel*>(kernel);
  try {
    pool.compute(context);
    return nullptr;
  } catch (...) {
    return status_of_current_exception(pool.api(), pool.title());
  }
}

// Always returns success, like the shape inference of the convolutions.
OrtStatus* infer_pool_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  try {
    const OrtApi& api = variant_of(op).api;
    const InputInfo x(api, context, 0);
    // Without a rank no shape is set: ONNX Runtime takes an output without dimensions for a scalar.
    if (!x.shape) return nullptr;
    const InferenceAttributes attributes(api, context);
    set_output_shape(api, context, x, x,
                     pool_result_shape(read_pool_spec(attributes, ElementType::float32), *x.shape));
  } catch (...) {
  }
  return nullptr;
}

// The device's plan for a problem as an offer. `device` and the stage outlive it.
Offer offer_of_pool(const PoolProblem& problem, const Device& device) {
  const PoolStage& stage = pool_stage(device.kind);
  Offer offer{{}, std::nullopt, [&stage, problem, &device] { return stage.make(problem, device); }};
  if (device.kind == DeviceKind::cuda) {
    offer.kernels = [&stage, problem, &device] { return stage.kernels(problem, device); };
  }
  return offer;
}

}  // namespace

PoolKernel::PoolKernel(const PoolVariant& variant, const OrtKernelInfo* info, std::string title)
    : variant_(variant),
      title_(std::move(title)),
      spec_(read_pool_spec(KernelAttributes(variant_.api, info), variant_.type)) {
  if (variant_.device == DeviceKind::cpu)
    aligned_constants_.emplace(variant_.api, info, bytes_per_element(variant_.type));
  const std::optional<Shape> x = declared_inputs(variant_.api, info, OpKind::conv)[kX].shape;
  if (!x) return;
  pool_result_shape(spec_, *x);  // throws if the shape does not fit
  if (variant_.device == DeviceKind::cuda) compile_ahead(*x);
}

void PoolKernel::compute(OrtKernelContext* context) {
  const OrtApi& api = variant_.api;
  const OrtValue* x = nullptr;
  check(api, api.KernelContext_GetInput(context, 0, &x));
  if (x == nullptr) throw OnnxRuntimeError(ORT_INVALID_ARGUMENT, "input X is missing");
  const std::shared_ptr<const CachedPool> run = cached_pool(context, x);
  OrtValue* y = nullptr;
  check(api, api.KernelContext_GetOutput(context, 0, run->result.data(), run->result.size(), &y));
  if (variant_.device == DeviceKind::cuda) log_warning(api, context, take_kernel_store_warning());
  if (run->plan == nullptr) return;

  const Execution execution = execution_of(api, context, variant_.device);
  const int64_t bytes = bytes_per_element(variant_.type);
  if (aligned_constants_) {
    AlignedTensors aligned(api, *aligned_constants_, static_cast<size_t>(bytes));
    run->plan->run({.x = aligned.input(x), .y = aligned.output(y)}, execution);
    aligned.finish();
  } else {
    run->plan->run({.x = aligned_data(api, x, bytes), .y = aligned_data(api, y, bytes)}, execution);
  }
}

// Returns the cached plan for the shape of x, and makes it if there is none.
std::shared_ptr<const CachedPool> PoolKernel::cached_pool(const OrtKernelContext* context,
                                                          const OrtValue* x) {
  const ShapeKey key(variant_.api, x);
  const int index = device_index(variant_.api, x, variant_.device);
  const auto matches = [&](const CachedPool& pool) { return pool.device_index == index && pool.key == key; };
  if (std::shared_ptr<const CachedPool> known = shape_cache_.find(matches)) return known;

  const PoolProblem problem = make_pool_problem(spec_, shape_of(variant_.api, x));
  auto pool = std::make_shared<CachedPool>(CachedPool{key, index, problem.result_shape(), nullptr});
  if (problem.result_elements() > 0) {
    const Device& device = variant_.device == DeviceKind::cpu
                               ? cpu_device()
                               : cuda_device(index, variant_.origin, lends_scratch(variant_.base));
    const Offer offer = offer_of_pool(problem, device);
    if (offer.kernels != nullptr) {
      if (const std::string reason = why_no_kernels(device, offer); !reason.empty())
        throw std::runtime_error(reason);
      log_compiling(variant_.api, context, device, offer);
    }
    pool->plan = offer.make();
  }
  shape_cache_.add(pool);
  return pool;
}

// Compiles the kernels for the declared shape in the background or, with an unknown batch, those for common
// batches.
void PoolKernel::compile_ahead(const Shape& x) const {
  const std::optional<int> index = device_of_session(variant_.api, nullptr);
  if (!index) return;
  for (const int64_t batch : batches_to_plan(x)) {
    Shape shape = x;
    shape[0] = batch;
    const PoolProblem problem = make_pool_problem(spec_, shape);
    if (problem.result_elements() == 0) continue;
    in_background(x[0] == batch ? Priority::high : Priority::low,
                  [problem, origin = variant_.origin, lends = lends_scratch(variant_.base), index = *index] {
                    const Device& device = cuda_device(index, origin, lends);
                    pool_stage(DeviceKind::cuda).make(problem, device);
                  });
  }
}

PoolOp::PoolOp(const PoolVariant& pool_variant) : variant(pool_variant) {
  GetName = [](const OrtCustomOp*) { return kPoolOpName; };
  GetExecutionProviderType = [](const OrtCustomOp* op) { return provider_of(variant_of(op).device); };
  GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  GetInputType = [](const OrtCustomOp* op, size_t) { return onnx_type(variant_of(op).type); };
  GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  GetOutputType = [](const OrtCustomOp* op, size_t) { return onnx_type(variant_of(op).type); };
  CreateKernelV2 = create_pool_kernel;
  KernelComputeV2 = compute_pool;
  KernelDestroy = [](void* kernel) { delete static_cast<PoolKernel*>(kernel); };
  InferOutputShapeFn = infer_pool_shape;
}

}  // namespace convswap
