#include "onnx/kernel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "conv/declared_shapes.h"
#include "conv/error.h"
#include "cuda/runtime/kernel_store.h"
#include "onnx/context.h"
#include "plan/background.h"
#include "plan/prepared.h"

namespace convswap {
namespace {

// The number in a quantised node's zero point of y, a constant in host memory; 0 for a y without codes.
// Throws InvalidArgument if the zero point of codes is not constant, or a constant is not 0 where y has none.
int zero_point_of_y(const OpVariant& variant, const OrtKernelInfo* info) {
  const auto index = std::ranges::find(inputs_of(variant.op), kYZeroPoint) - inputs_of(variant.op).begin();
  const OrtValue* const constant = constant_input(variant.api, info, static_cast<size_t>(index));
  // On the CPU, ONNX Runtime computes a node of float16 in float32 where its neighbours have only that, and
  // puts a Cast behind the constant. Without codes the number is 0 in any case.
  if (constant == nullptr && !is_code(variant.y_type)) return 0;
  if (constant == nullptr || shape_of(variant.api, constant) != Shape{}) {
    throw InvalidArgument("input y_zero_point: expected a constant scalar");
  }
  const void* const data = data_of(variant.api, constant);
  if (variant.y_type == ElementType::int8) return *static_cast<const Int8*>(data);
  if (variant.y_type == ElementType::uint8) return *static_cast<const UInt8*>(data);
  const std::vector<std::byte> zero(static_cast<size_t>(bytes_per_element(variant.y_type)));
  if (std::memcmp(data, zero.data(), zero.size()) != 0) {
    throw InvalidArgument("input y_zero_point: expected 0, because y has numbers of " +
                          std::string(name_of(variant.y_type)) + " and no codes");
  }
  return 0;
}

// Reads a node's spec from its attributes, and of a quantised node from its inputs too.
ConvSpec spec_of_node(const OpVariant& variant, const OrtKernelInfo* info) {
  ConvSpec spec = read_node(variant, KernelAttributes(variant.api, info));
  if (spec.quantization) {
    if (!is_code(spec.y_type) && spec.quantization->y_factor != 1) {
      throw InvalidArgument("attribute y_scale: expected none, because y has numbers of " +
                            std::string(name_of(spec.y_type)) + " and no codes");
    }
    spec.quantization->y_zero_point = zero_point_of_y(variant, info);
    const PerInput<DeclaredInput> inputs = declared_inputs(variant.api, info, variant.op);
    spec.quantization->has_offset = inputs[kOffset].is_present;
    check_sum_values(*spec.quantization, inputs[kSumValues].is_present);
  }
  return spec;
}

// Makes the plan of a node for these input shapes. A residual's shape is replaced by the one that the other
// inputs imply.
void make_plan(PlanCache& plans, const ConvSpec& spec, InputShapes shapes, const Device& device) {
  if (shapes.residual) {
    shapes.residual.reset();
    shapes.residual = make_problem(spec, shapes).output_shape(spec.layouts.residual);
  }
  const ConvProblem problem = make_problem(spec, shapes);
  if (problem.result_elements() > 0) plans.get(problem, device);
}

}  // namespace

ConvSpec read_node(const OpVariant& variant, const Attributes& attributes) {
  const std::optional<std::string> word = attributes.text("precision");
  ConvSpec spec =
      read_spec(variant.op, attributes, variant.type, word ? parse_precision(*word) : variant.precision);
  spec.y_type = variant.y_type;
  return spec;
}

ConvKernel::ConvKernel(const OpVariant& variant, const OrtKernelInfo* info, std::string title)
    : variant_(variant),
      title_(std::move(title)),
      lends_scratch_(lends_scratch(variant_.base)),
      spec_(spec_of_node(variant_, info)),
      plans_(std::make_shared<PlanCache>(
          KernelAttributes(variant_.api, info).text("algorithm").value_or(std::string(kAuto)),
          TuningHints(KernelAttributes(variant_.api, info).text("tuned").value_or("")))),
      is_tuned_(plans_->algorithm() == kTuned),
      inputs_(variant_.api, info, variant_.op),
      prepared_weights_(variant_.api) {
  // For a card ONNX Runtime copies constants to aligned memory.
  // Algorithms for codes take any address on the CPU.
  if (variant_.device == DeviceKind::cpu && variant_.op != OpKind::quant)
    aligned_constants_.emplace(variant_.api, info, bytes_per_element(variant_.type));
  check_spec(spec_);
  check_algorithm_name(plans_->algorithm(), variant_.device);
  const PerInput<DeclaredInput> inputs = declared_inputs(variant_.api, info, variant_.op);
  check_shapes(inputs);
  if (variant_.device == DeviceKind::cuda) plan_ahead(info, inputs);
}

void ConvKernel::compute(OrtKernelContext* context) {
  const InputTensors tensors = inputs_.tensors(context);
  const std::shared_ptr<const CachedRun> run = cached_run(context, tensors);
  const OrtApi& api = variant_.api;
  OrtValue* y = nullptr;
  check(api, api.KernelContext_GetOutput(context, 0, run->result.data(), run->result.size(), &y));
  if (is_tuned_) log_warning(api, context, take_tuning_warning());
  if (variant_.device == DeviceKind::cuda) log_warning(api, context, take_kernel_store_warning());
  if (run->plan == nullptr) return;

  Execution execution = execution_of(api, context, variant_.device);
  execution.prepared_weights = prepared(*run, context, tensors[kW], execution.stream);
  const bool is_prepared = execution.prepared_weights != nullptr;
  const Scratch scratch(variant_.base, api, context, tensors[kX],
                        is_prepared ? run->scratch_bytes : run->scratch_bytes_with_weights, variant_.device);
  execution.scratch = scratch.pointer();
  if (aligned_constants_) {
    AlignedTensors aligned(api, *aligned_constants_, bytes_per_element(spec_.type));
    const auto input = [&](const OrtValue* tensor) { return aligned.input(tensor); };
    run->plan->run(conv_tensors(tensors, aligned.output(y), input), execution);
    aligned.finish();
    return;
  }
  if (variant_.device == DeviceKind::cpu) {
    const auto input = [&](const OrtValue* tensor) { return data_of(api, tensor); };
    run->plan->run(conv_tensors(tensors, data_of(api, y), input), execution);
    return;
  }
  // Of a quantised node, y and constants may have more bytes than codes.
  const int64_t bytes = std::max(bytes_per_element(spec_.type), bytes_per_element(variant_.y_type));
  const auto on_device = [&](const OrtValue* tensor) { return aligned_data(api, tensor, bytes); };
  const ConvTensors on_card = conv_tensors(tensors, on_device(y), on_device);
  execution.weights_are_constant = inputs_.has_constants_only(tensors);
  if (is_prepared) {
    run->plan->run(on_card, execution);
  } else {
    prepare_and_run(*run->plan, on_card, execution);
  }
}

// Returns the cached run for these input shapes, and makes it if there is none.
std::shared_ptr<const CachedRun> ConvKernel::cached_run(const OrtKernelContext* context,
                                                        const InputTensors& tensors) {
  const NodeInputs::Keys keys = inputs_.keys(tensors);
  const int index = device_index(variant_.api, tensors[kX], variant_.device);
  const auto matches = [&](const CachedRun& run) { return run.matches(keys, index); };
  if (std::shared_ptr<const CachedRun> known = shape_cache_.find(matches)) return known;

  const ConvProblem problem = make_problem(spec_, shapes_of(variant_.api, tensors));
  const Device& device =
      variant_.device == DeviceKind::cpu ? cpu_device() : cuda_device(index, variant_.origin, lends_scratch_);
  auto run = std::make_shared<CachedRun>(keys, device, problem.result_shape());
  if (problem.result_elements() > 0) {
    run->plan = plans_->get(problem, device,
                            [&](const Offer& offer) { log_compiling(variant_.api, context, device, offer); });
    run->scratch_bytes = run->plan->scratch_bytes();
    run->scratch_bytes_with_weights = scratch_bytes_with_weights(*run->plan);
    run->takes_prepared_weights = variant_.device == DeviceKind::cuda && inputs_.has_constant_weights() &&
                                  run->plan->prepared_form().bytes > 0;
  }
  shape_cache_.add(run);
  return run;
}

// Checks the declared shapes.
void ConvKernel::check_shapes(const PerInput<DeclaredInput>& inputs) const {
  if (inputs[kD].is_present) {
    check_declared_shapes(spec_behind_depthwise(spec_),
                          {depthwise_result(inputs), inputs[kW].shape, inputs[kB].shape});
  } else {
    check_declared_shapes(spec_, {inputs[kX].shape, inputs[kW].shape, inputs[kB].shape});
  }
}

// Returns the NCHW shape behind the depthwise convolution in front, as far as the model declares it.
std::optional<Shape> ConvKernel::depthwise_result(const PerInput<DeclaredInput>& inputs) const {
  const auto is_known_completely = [](const std::optional<Shape>& shape) {
    return shape && std::find(shape->begin(), shape->end(), kUnknownDimension) == shape->end();
  };
  const std::optional<Shape>&x = inputs[kX].shape, &weights = inputs[kD].shape;
  if (weights && is_known(*weights, 0) && (*weights)[0] > 0) {
    const ConvSpec depthwise = depthwise_spec(spec_, (*weights)[0]);
    try {
      check_declared_shapes(depthwise, {x, weights, inputs[kDb].shape});
      if (is_known_completely(x) && is_known_completely(weights))
        return make_problem(depthwise, *x, *weights).result_shape();
    } catch (const InvalidArgument& error) {
      throw InvalidArgument("the depthwise convolution in front: " + std::string(error.what()));
    }
  }
  if (!x) return std::nullopt;
  Shape result = to_nchw(*x, spec_.layouts.input);
  std::fill(result.begin() + std::min<ptrdiff_t>(2, std::ssize(result)), result.end(), kUnknownDimension);
  return result;
}

// Returns the weights in the plan's prepared form; null if each run prepares them, or has no such form.
const void* ConvKernel::prepared(const CachedRun& run, const OrtKernelContext* context,
                                 const OrtValue* weights, void* stream) {
  if (!run.takes_prepared_weights) return nullptr;
  if (const void* const known = run.prepared_weights; known != nullptr) return known;
  const void* const data = aligned_data(variant_.api, weights, bytes_per_element(spec_.type));
  return run.prepared_weights =
             prepared_weights_.get(*run.plan, run.device.index, context, weights, data, stream);
}

// Makes plans and compiles their kernels in the background before the first run, for the declared shapes or,
// with an unknown batch, for common batches.
void ConvKernel::plan_ahead(const OrtKernelInfo* info, const PerInput<DeclaredInput>& inputs) const {
  const std::optional<int> index = device_of_session(variant_.api, constant_input(variant_.api, info, kW));
  const std::optional<Shape>&x = inputs[kX].shape, &w = inputs[kW].shape;
  const bool has_unknown_rank = std::ranges::any_of(
      inputs, [](const DeclaredInput& input) { return input.is_present && !input.shape; });
  if (!index || !x || !w || has_unknown_rank) return;
  for (const int64_t batch : batches_to_plan(*x)) {
    InputShapes shapes{*x,
                       *w,
                       inputs[kB].shape,
                       inputs[kZ].shape,
                       inputs[kD].shape,
                       inputs[kDb].shape,
                       inputs[kScale].shape,
                       inputs[kOffset].shape,
                       inputs[kSumValues].shape};
    const bool is_guess = (*x)[0] != batch;
    shapes.x[0] = batch;
    const auto work = [node_plans = std::weak_ptr(plans_), spec = spec_, shapes = std::move(shapes),
                       origin = variant_.origin, lends = lends_scratch_, index = *index] {
      const std::shared_ptr<PlanCache> plans = node_plans.lock();
      if (plans == nullptr) return;  // the session has been closed
      make_plan(*plans, spec, shapes, cuda_device(index, origin, lends));
    };
    in_background(is_guess ? Priority::low : Priority::high, work);
  }
}

}  // namespace convswap
