#include "plan/layout_stage.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <utility>

#include "plan/prepared.h"

namespace convswap {
namespace {

// The tensors that have a layout.
enum class LayoutTensor { x, residual, y };
constexpr std::array kLayoutTensors{LayoutTensor::x, LayoutTensor::residual, LayoutTensor::y};

Layout& layout_of(Layouts& layouts, LayoutTensor tensor) {
  return tensor == LayoutTensor::x          ? layouts.input
         : tensor == LayoutTensor::residual ? layouts.residual
                                            : layouts.output;
}
Layout layout_of(const Layouts& layouts, LayoutTensor tensor) {
  Layouts copy = layouts;
  return layout_of(copy, tensor);
}

// The transposition of x or the residual from the problem's layout to the other one, and of y from the other
// one to the problem's. Empty if both layouts are the same memory: with one channel, one position, or no
// element.
std::optional<Transposition> transposition_of(const ConvProblem& problem, LayoutTensor tensor) {
  const ConvProblem& first = problem.depthwise.empty() ? problem : problem.depthwise.front();
  const auto [channels, positions] =
      tensor == LayoutTensor::x          ? std::pair(first.in_channels, first.input_size())
      : tensor == LayoutTensor::residual ? std::pair(problem.out_channels, problem.output_size())
                                         : std::pair(problem.out_channels, problem.result_size());
  if (channels <= 1 || positions <= 1 || problem.batch == 0) return std::nullopt;
  const bool is_y = tensor == LayoutTensor::y, is_nhwc = layout_of(problem.layouts, tensor) == Layout::nhwc;
  const ElementType type = is_y ? problem.result_type() : problem.type;
  return is_y == is_nhwc ? Transposition{type, problem.batch, channels, positions}
                         : Transposition{type, problem.batch, positions, channels};
}

// True if the algorithm and the other stages compute the problem in its layouts.
bool computes_layouts(const Algorithm& algorithm, const ConvProblem& problem) {
  if (problem.layouts.are_nchw()) return true;
  if (!problem.depthwise.empty() && !algorithm.takes_depthwise()) {
    // The depthwise convolution has its own plan, which reads x in any layout.
    return computes_layouts(algorithm, problem.without_depthwise());
  }
  if (problem.epilogue.is_empty() || algorithm.fuses(problem)) return algorithm.takes_layouts(problem);
  // The epilogue stage needs the same layout for all of its tensors.
  const Layouts& layouts = problem.layouts;
  if (problem.epilogue.has_residual && layouts.residual != layouts.output) return false;
  const ConvProblem convolution = problem.without_epilogue();
  return convolution.layouts.are_nchw() || algorithm.takes_layouts(convolution);
}

// A plan between changes of layout.
class LayoutPlan final : public Plan {
 public:
  // A change of a tensor's layout; `plan` is null for a tensor that stays as it is.
  struct Change {
    std::unique_ptr<Plan> plan;
    std::size_t bytes = 0;
    Layout to = Layout::nchw;

    std::string describe(std::string_view tensor) const {
      return std::string(tensor).append(" to ").append(name_of(to)) + ", " + plan->describe();
    }
  };

  LayoutPlan(std::unique_ptr<Plan> inner, Change x, Change residual, Change y)
      : inner_(std::move(inner)), x_(std::move(x)), residual_(std::move(residual)), y_(std::move(y)) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    char* scratch = static_cast<char*>(execution.scratch) + aligned(inner_->scratch_bytes());
    ConvTensors inner = tensors;
    for (const auto& [change, tensor] : {std::pair(&x_, &inner.x), std::pair(&residual_, &inner.z)}) {
      if (change->plan == nullptr) continue;
      change->plan->run({.x = *tensor, .y = scratch}, execution);
      *tensor = scratch;
      scratch += aligned(change->bytes);
    }
    if (y_.plan != nullptr) inner.y = scratch;
    inner_->run(inner, execution);
    if (y_.plan != nullptr) y_.plan->run({.x = scratch, .y = tensors.y}, execution);
  }

  // The inner plan's scratch memory, then the transposed tensors.
  std::size_t scratch_bytes() const override {
    return aligned(inner_->scratch_bytes()) + aligned(x_.bytes) + aligned(residual_.bytes) + y_.bytes;
  }

  PreparedForm prepared_form() const override { return inner_->prepared_form(); }
  void prepare(const void* weights, void* prepared, void* stream) const override {
    inner_->prepare(weights, prepared, stream);
  }

  std::string describe() const override {
    std::string text;
    if (x_.plan != nullptr) text += x_.describe("x") + "; ";
    if (residual_.plan != nullptr) text += residual_.describe("residual") + "; ";
    text += inner_->describe();
    if (y_.plan != nullptr) text += "; " + y_.describe("y");
    return text;
  }

  std::vector<KernelFacts> kernels() const override {
    std::vector<KernelFacts> kernels;
    for (const Plan* plan : std::initializer_list<const Plan*>{x_.plan.get(), residual_.plan.get(),
                                                               inner_.get(), y_.plan.get()}) {
      if (plan == nullptr) continue;
      for (KernelFacts& kernel : plan->kernels()) kernels.push_back(std::move(kernel));
    }
    return kernels;
  }

 private:
  const std::unique_ptr<Plan> inner_;
  const Change x_, residual_, y_;
};

using Transpositions = std::array<std::optional<Transposition>, kLayoutTensors.size()>;

double estimate_of(const LayoutStage& stage, const Transpositions& changes, const Device& device) {
  double milliseconds = 0;
  for (const auto& change : changes) {
    if (change) milliseconds += stage.estimate(*change, device);
  }
  return milliseconds;
}

}  // namespace

Layouts layouts_for(const Algorithm& algorithm, const ConvProblem& problem, const Device& device) {
  if (algorithm.changes_to_nhwc(problem, device)) {
    // The offer for the convolution behind a depthwise one changes its layouts.
    if (!problem.depthwise.empty() && !algorithm.takes_depthwise()) return problem.layouts;
    Layouts nhwc{Layout::nhwc, Layout::nhwc, Layout::nhwc};
    if (!problem.epilogue.has_residual) nhwc.residual = problem.layouts.residual;
    if (computes_layouts(algorithm, problem.with_layouts(nhwc))) return nhwc;
  }
  if (computes_layouts(algorithm, problem)) return problem.layouts;
  struct Candidate {
    int64_t bytes;
    int changes;
    Layouts layouts;
  };
  std::vector<Candidate> candidates;
  for (unsigned subset = 0; subset < 1u << kLayoutTensors.size(); ++subset) {
    Candidate candidate{0, 0, problem.layouts};
    for (std::size_t i = 0; i < kLayoutTensors.size(); ++i) {
      Layout& layout = layout_of(candidate.layouts, kLayoutTensors[i]);
      if ((subset >> i & 1) == 0 || layout == Layout::nchw) continue;
      layout = Layout::nchw;
      ++candidate.changes;
      if (const auto change = transposition_of(problem, kLayoutTensors[i]))
        candidate.bytes += change->bytes();
    }
    candidates.push_back(candidate);
  }
  std::ranges::stable_sort(candidates, {}, [](const Candidate& candidate) {
    return std::tuple(candidate.bytes, candidate.changes);
  });
  const auto best = std::ranges::find_if(candidates, [&](const Candidate& candidate) {
    return computes_layouts(algorithm, problem.with_layouts(candidate.layouts));
  });
  return best->layouts;  // the candidate with all tensors in NCHW always qualifies
}

Offer with_layout_stage(Offer inner, const ConvProblem& problem, const Layouts& taken, const Device& device) {
  Transpositions changes;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (layout_of(taken, kLayoutTensors[i]) != layout_of(problem.layouts, kLayoutTensors[i])) {
      changes[i] = transposition_of(problem, kLayoutTensors[i]);
    }
  }
  if (std::ranges::none_of(changes, [](const auto& change) { return change.has_value(); })) return inner;
  const LayoutStage* const stage = &layout_stage(device.kind);
  Offer offer;
  offer.tiling = std::move(inner.tiling);
  offer.needs_scratch = inner.needs_scratch || device.kind == DeviceKind::cuda;
  if (inner.milliseconds) offer.milliseconds = *inner.milliseconds + estimate_of(*stage, changes, device);
  if (inner.milliseconds_for != nullptr) {
    offer.milliseconds_for = [stage, changes, device, of_inner = std::move(inner.milliseconds_for)](
                                 const std::shared_ptr<const CostTable>& costs) {
      Device other = device;
      other.costs = costs;
      return of_inner(costs) + estimate_of(*stage, changes, other);
    };
  }
  const Layouts to{taken.input, problem.layouts.output, taken.residual};
  offer.make = [stage, changes, device, to, make_inner = std::move(inner.make)] {
    std::array<LayoutPlan::Change, kLayoutTensors.size()> made;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      if (!changes[i]) continue;
      made[i] = {stage->make(*changes[i], device), static_cast<std::size_t>(changes[i]->bytes()),
                 layout_of(to, kLayoutTensors[i])};
    }
    return std::make_unique<LayoutPlan>(make_inner(), std::move(made[0]), std::move(made[1]),
                                        std::move(made[2]));
  };
  if (inner.kernels != nullptr) {
    offer.kernels = [stage, changes, inner_kernels = std::move(inner.kernels)] {
      std::vector<std::string> names = inner_kernels();
      for (const auto& change : changes) {
        if (!change) continue;
        for (std::string& name : stage->kernels(*change)) {
          if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
        }
      }
      return names;
    };
  }
  return offer;
}

}  // namespace convswap
