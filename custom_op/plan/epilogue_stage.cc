#include "plan/epilogue_stage.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "plan/layout_stage.h"
#include "plan/planner.h"
#include "plan/prepared.h"

namespace convswap {
namespace {

class TwoStepPlan final : public TwoPlans {
 public:
  // `intermediate_bytes`: the size of the convolution's output; 0 if it is y itself. `pools_codes`: the
  // second plan is the pool of a convolution of codes.
  TwoStepPlan(std::unique_ptr<Plan> convolution, std::unique_ptr<Plan> epilogue,
              std::size_t intermediate_bytes, bool pools_codes)
      : TwoPlans(std::move(convolution), std::move(epilogue), true),
        convolution_bytes_(aligned(first_->scratch_bytes())),
        intermediate_bytes_(intermediate_bytes),
        pools_codes_(pools_codes) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    void* const intermediate =
        intermediate_bytes_ > 0 ? static_cast<char*>(execution.scratch) + convolution_bytes_ : tensors.y;
    ConvTensors convolution = tensors;
    convolution.y = intermediate;
    if (!pools_codes_) convolution.z = nullptr;
    first_->run(convolution, execution);
    second_->run({intermediate, nullptr, nullptr, tensors.y, pools_codes_ ? nullptr : tensors.z}, execution);
  }

  // The convolution's scratch memory, then its output.
  std::size_t scratch_bytes() const override { return convolution_bytes_ + intermediate_bytes_; }

 private:
  std::size_t convolution_bytes_, intermediate_bytes_;
  bool pools_codes_;
};

// Joins a plan of the problem without its epilogue, or without its pool of codes, and a plan of the rest.
std::unique_ptr<Plan> in_two_steps(std::unique_ptr<Plan> convolution, std::unique_ptr<Plan> epilogue,
                                   const ConvProblem& problem) {
  const bool pools = problem.epilogue.pool.kind != PoolKind::none;
  const int64_t intermediate =
      pools ? problem.output_elements() * bytes_per_element(problem.result_type()) : 0;
  return std::make_unique<TwoStepPlan>(std::move(convolution), std::move(epilogue),
                                       static_cast<std::size_t>(intermediate), problem.is_quantised());
}

// Why the pool of codes cannot be a kernel behind the convolution's; empty if it can.
std::string why_no_code_pool(const ConvProblem& problem, const Device& device) {
  const EpilogueStage* const stage = code_pool_stage(device.kind);
  if (stage == nullptr || problem.epilogue.pool.kind == PoolKind::none) {
    return "it does not compute the epilogue of codes";
  }
  return stage->why_not(problem);
}

// True if the algorithm computes the whole epilogue. A pool of codes behind the convolution is faster than
// one that computes each window's convolutions, but takes scratch memory.
bool computes_epilogue(const Algorithm& algorithm, const ConvProblem& problem, const Device& device) {
  if (problem.epilogue.is_empty()) return true;
  if (problem.is_quantised() && device.lends_scratch && why_no_code_pool(problem, device).empty())
    return false;
  return algorithm.fuses(problem);
}

// Returns the offer for the whole problem, whether or not the device can lend scratch memory and has the
// kernels.
Offer unchecked_offer(const Algorithm& algorithm, const ConvProblem& problem, const Device& device) {
  if (problem.is_quantised() && !algorithm.takes_codes()) {
    return Offer::refusal("it takes no int8 and uint8 codes");
  }
  if (const Layouts taken = layouts_for(algorithm, problem, device); taken != problem.layouts) {
    Offer inner = unchecked_offer(algorithm, problem.with_layouts(taken), device);
    return inner.is_refusal() ? inner : with_layout_stage(std::move(inner), problem, taken, device);
  }
  if (!problem.depthwise.empty() && !algorithm.takes_depthwise()) {
    Offer convolution = unchecked_offer(algorithm, problem.without_depthwise(), device);
    return convolution.is_refusal() ? convolution
                                    : with_depthwise(algorithm, std::move(convolution), problem, device);
  }
  if (computes_epilogue(algorithm, problem, device)) return algorithm.offer(problem, device);
  const bool has_codes = problem.is_quantised();
  if (has_codes) {
    if (std::string reason = why_no_code_pool(problem, device); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
  }
  const EpilogueStage* const stage = has_codes ? code_pool_stage(device.kind) : epilogue_stage(device.kind);
  if (std::string reason = stage->why_not(problem); !reason.empty()) return Offer::refusal(std::move(reason));
  Offer offer = algorithm.offer(has_codes ? problem.without_pool() : problem.without_epilogue(), device);
  if (offer.is_refusal()) return offer;
  if (offer.milliseconds) *offer.milliseconds += stage->estimate(problem, device);
  if (offer.milliseconds_for) {
    offer.milliseconds_for = [stage, problem, device, convolution = std::move(offer.milliseconds_for)](
                                 const std::shared_ptr<const CostTable>& costs) {
      Device other = device;
      other.costs = costs;
      return convolution(costs) + stage->estimate(problem, other);
    };
  }
  offer.needs_scratch |= problem.epilogue.pool.kind != PoolKind::none;
  offer.make = [stage, problem, device, make_convolution = std::move(offer.make)] {
    return in_two_steps(make_convolution(), stage->make(problem, device), problem);
  };
  offer.kernels = [stage, problem, device, convolution_kernels = std::move(offer.kernels)] {
    std::vector<std::string> names = convolution_kernels();
    for (std::string& name : stage->kernels(problem, device)) names.push_back(std::move(name));
    return names;
  };
  return offer;
}

}  // namespace

std::vector<KernelFacts> TwoPlans::kernels() const {
  std::vector<KernelFacts> kernels = first_->kernels();
  const std::vector<KernelFacts> second = second_->kernels();
  kernels.insert(kernels.end(), second.begin(), second.end());
  return kernels;
}

Offer refuse_scratch() {
  return Offer::refusal(
      "it needs scratch memory, which takes ONNX Runtime 1.18 or newer: install a newer onnxruntime-gpu");
}

std::vector<Offer> alternatives_of(const Algorithm& algorithm, const ConvProblem& problem,
                                   const Device& device, std::size_t max_count) {
  const bool computes_all = layouts_for(algorithm, problem, device) == problem.layouts &&
                            (problem.depthwise.empty() || algorithm.takes_depthwise()) &&
                            computes_epilogue(algorithm, problem, device);
  if (computes_all) return algorithm.alternatives(problem, device, max_count);
  Offer only = offer_of(algorithm, problem, device);
  if (only.is_refusal()) return {};
  return {std::move(only)};
}

Offer offer_of(const Algorithm& algorithm, const ConvProblem& problem, const Device& device) {
  Offer offer = unchecked_offer(algorithm, problem, device);
  if (!offer.is_refusal() && offer.needs_scratch && !device.lends_scratch) {
    return refuse_scratch();
  }
  if (offer.is_refusal() || offer.kernels == nullptr || !device.is_present) return offer;
  if (std::string reason = why_no_kernels(device, offer); !reason.empty()) {
    return Offer::refusal(std::move(reason));
  }
  return offer;
}

}  // namespace convswap
