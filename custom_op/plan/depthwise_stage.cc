#include "plan/depthwise_stage.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conv/arithmetic.h"
#include "plan/planner.h"

namespace convswap {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return static_cast<std::size_t>(round_up(static_cast<int64_t>(bytes), static_cast<int64_t>(kAlignment)));
}

class DepthwiseFirstPlan final : public Plan {
 public:
  DepthwiseFirstPlan(std::unique_ptr<Plan> depthwise, std::unique_ptr<Plan> convolution,
                     std::size_t between_bytes)
      : depthwise_(std::move(depthwise)),
        convolution_(std::move(convolution)),
        between_bytes_(between_bytes) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    char* const of_convolution = static_cast<char*>(execution.scratch);
    char* const of_depthwise = of_convolution + aligned(convolution_->scratch_bytes());
    char* const between = of_depthwise + aligned(depthwise_->scratch_bytes());
    Execution first = execution;
    first.scratch = of_depthwise;
    first.prepared_weights = nullptr;
    depthwise_->run({tensors.x, tensors.d, tensors.db, between}, first);
    convolution_->run({between, tensors.w, tensors.b, tensors.y, tensors.z}, execution);
  }

  // The convolution's own, the depthwise convolution's own, and what is between them.
  std::size_t scratch_bytes() const override {
    return aligned(convolution_->scratch_bytes()) + aligned(depthwise_->scratch_bytes()) + between_bytes_;
  }

  PreparedForm prepared_form() const override { return convolution_->prepared_form(); }
  void prepare(const void* weights, void* prepared, void* stream) const override {
    convolution_->prepare(weights, prepared, stream);
  }

  std::vector<KernelFacts> kernels() const override {
    std::vector<KernelFacts> both = depthwise_->kernels();
    const std::vector<KernelFacts> after = convolution_->kernels();
    both.insert(both.end(), after.begin(), after.end());
    return both;
  }

  std::string describe() const override {
    return depthwise_->describe() + "; then " + convolution_->describe();
  }

 private:
  std::unique_ptr<Plan> depthwise_, convolution_;
  std::size_t between_bytes_;
};

Offer offer_of_first(const Algorithm& algorithm, const ConvProblem& before, const Device& device) {
  if (device.kind == DeviceKind::cpu) return offer_of(algorithm, before, device);
  if (std::string reason = why_none(before, device); !reason.empty())
    return Offer::refusal(std::move(reason));
  return choose(before, device, kAuto).offer;
}

}  // namespace

Offer with_depthwise(const Algorithm& algorithm, Offer convolution, const ConvProblem& problem,
                     const Device& device) {
  const ConvProblem& before = problem.before.front();
  Offer first = offer_of_first(algorithm, before, device);
  if (first.is_refusal()) {
    return Offer::refusal("the depthwise convolution in front: " + first.why_not);
  }
  if (device.kind == DeviceKind::cuda && !device.lends_scratch) {
    return Offer::refusal(
        "it needs scratch memory, which takes ONNX Runtime 1.18 or newer: install a newer onnxruntime-gpu");
  }
  Offer both;
  if (first.milliseconds && convolution.milliseconds) {
    both.milliseconds = *first.milliseconds + *convolution.milliseconds;
  }
  both.needs_scratch = device.kind == DeviceKind::cuda;
  const auto between = static_cast<std::size_t>(before.result_elements() * size_of(before.type));
  both.make = [make_first = std::move(first.make), make_rest = std::move(convolution.make), between] {
    return std::make_unique<DepthwiseFirstPlan>(make_first(), make_rest(), between);
  };
  if (first.kernels != nullptr || convolution.kernels != nullptr) {
    both.kernels = [of_first = std::move(first.kernels), of_rest = std::move(convolution.kernels)] {
      std::vector<std::string> names;
      for (const auto& of : {of_first, of_rest}) {
        if (of == nullptr) continue;
        for (std::string& name : of()) names.push_back(std::move(name));
      }
      return names;
    };
  }
  return both;
}

}  // namespace convswap
