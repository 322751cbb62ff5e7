#include "plan/planner.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "conv/error.h"
#include "plan/catalog.h"

namespace convswap {
namespace {

// Bounds the memory of a server that sees every image size. Planning again is cheap compared with a run.
constexpr size_t kMostPlans = 4096;

// A misspelt name that shares this many leading letters with an algorithm selected by name alone means that
// one.
constexpr size_t kMeantBy = 4;

struct Best {
  const Algorithm* algorithm = nullptr;  // null if none supports the problem
  Offer offer;
  std::optional<double> weighed;  // the estimate with its penalty
};

// Penalty on the estimate of an algorithm that rounds a depthwise convolution to TF32. cuDNN does not round
// there, and the errors of long filters in a row, as in audio models, become visible.
constexpr double kRoundedDepthwise = 1.3;

std::optional<double> weighed(const ConvProblem& problem, const Algorithm& algorithm, const Offer& offer) {
  if (!offer.milliseconds) return std::nullopt;
  const bool rounds = problem.type == ElementType::float32 && problem.precision == Precision::tf32 &&
                      algorithm.rounds_depthwise();
  return *offer.milliseconds * (problem.is_depthwise() && rounds ? kRoundedDepthwise : 1);
}

// Replaces `best` if the offer's estimate is lower. Without estimates the earlier algorithm stays.
void take_better(Best& best, const ConvProblem& problem, const Algorithm& algorithm, Offer offer) {
  const std::optional<double> estimate = weighed(problem, algorithm, offer);
  if (best.algorithm != nullptr && (!estimate || (best.weighed && *estimate >= *best.weighed))) return;
  best = {&algorithm, std::move(offer), estimate};
}

// Returns the supported algorithm with the lowest estimate, or the catalog's first if none has an estimate.
// Appends to `reasons` why each unsupported algorithm refused.
Best best_by_rule(const ConvProblem& problem, const Device& device, std::string& reasons) {
  Best best;
  for (const Algorithm* algorithm : catalog()) {
    if (algorithm->device_kind() != device.kind || algorithm->by_name_alone()) continue;
    if (!problem.before.empty() && !algorithm->takes_depthwise()) continue;
    Offer offer = offer_of(*algorithm, problem, device);
    if (offer.is_refusal()) {
      reasons +=
          std::string(reasons.empty() ? "" : "; ") + std::string(algorithm->name()) + ": " + offer.why_not;
      continue;
    }
    take_better(best, problem, *algorithm, std::move(offer));
  }
  if (!problem.before.empty()) {
    // All other algorithms get the same plan for the depthwise convolution, so the best for the rest is the
    // best.
    Best rest = best_by_rule(problem.without_depthwise(), device, reasons);
    if (rest.algorithm != nullptr) {
      Offer whole = with_depthwise(*rest.algorithm, std::move(rest.offer), problem, device);
      if (whole.is_refusal()) {
        reasons += (reasons.empty() ? "" : "; ") + whole.why_not;
      } else {
        take_better(best, problem, *rest.algorithm, std::move(whole));
      }
    }
  }
  return best;
}

Choice choose_by_name(const ConvProblem& problem, const Device& device, std::string_view requested) {
  const Algorithm& algorithm = *find_algorithm(requested, device.kind);
  Offer offer = offer_of(algorithm, problem, device);
  if (offer.is_refusal()) throw InvalidArgument(unsupported_message(requested, offer.why_not));
  return {algorithm, std::move(offer), true, std::nullopt, {}};
}

// Returns the algorithm names that `requested` may mean, in the catalog's order: the planner's candidates, or
// the algorithms selected by name alone if one of them begins like `requested`.
std::vector<std::string> names_like(std::string_view requested, DeviceKind kind) {
  std::vector<std::string> by_rule, by_name;
  for (const Algorithm* algorithm : catalog()) {
    if (algorithm->device_kind() != kind) continue;
    (algorithm->by_name_alone() ? by_name : by_rule).emplace_back(algorithm->name());
  }
  const bool means_by_name = std::ranges::any_of(by_name, [&](const std::string& name) {
    return name.substr(0, kMeantBy) == requested.substr(0, kMeantBy);
  });
  return means_by_name ? by_name : by_rule;
}

// Returns the offer of a tuning entry's algorithm, or a refusal. `named` is null if the catalog has no such
// name: tables and models can be edited, and other builds of this version may have other algorithms.
Offer offer_of_named(const Algorithm* named, const TuningEntry& entry, const ConvProblem& problem,
                     const Device& device) {
  const std::string names = "the tuning table names '" + entry.algorithm + "', which ";
  if (named == nullptr) return Offer::refusal(names + "is not in the catalog");
  if (named->by_name_alone()) return Offer::refusal(names + std::string(named->why_by_name_alone()));
  Offer offer = offer_of(*named, problem, device);
  if (offer.is_refusal()) offer.why_not = names + "cannot compute it: " + offer.why_not;
  return offer;
}

class DepthwiseFirstPlan final : public TwoPlans {
 public:
  DepthwiseFirstPlan(std::unique_ptr<Plan> depthwise, std::unique_ptr<Plan> convolution,
                     std::size_t between_bytes)
      : TwoPlans(std::move(depthwise), std::move(convolution), false), between_bytes_(between_bytes) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    char* const of_convolution = static_cast<char*>(execution.scratch);
    char* const of_depthwise = of_convolution + aligned(second_->scratch_bytes());
    char* const between = of_depthwise + aligned(first_->scratch_bytes());
    Execution first = execution;
    first.scratch = of_depthwise;
    first.prepared_weights = nullptr;
    first_->run({tensors.x, tensors.d, tensors.db, between}, first);
    second_->run({between, tensors.w, tensors.b, tensors.y, tensors.z}, execution);
  }

  // The convolution's scratch memory, the depthwise convolution's, and the intermediate tensor.
  std::size_t scratch_bytes() const override {
    return aligned(second_->scratch_bytes()) + aligned(first_->scratch_bytes()) + between_bytes_;
  }

 private:
  std::size_t between_bytes_;
};

Offer offer_of_first(const Algorithm& algorithm, const ConvProblem& before, const Device& device) {
  if (device.kind == DeviceKind::cpu) return offer_of(algorithm, before, device);
  if (std::string reason = why_none(before, device); !reason.empty())
    return Offer::refusal(std::move(reason));
  return choose(before, device, kAuto).offer;
}

}  // namespace

std::string why_none(const ConvProblem& problem, const Device& device) {
  std::string reasons;
  if (best_by_rule(problem, device, reasons).algorithm != nullptr) return {};
  return none_supports_message(name_of(device.kind), reasons);
}

void check_algorithm_name(std::string_view requested, DeviceKind kind) {
  if (leaves_choice(requested) || find_algorithm(requested, kind) != nullptr) return;
  std::vector<std::string> names = names_like(requested, kind);
  names.insert(names.end(), {std::string(kAuto), std::string(kTuned)});
  throw InvalidArgument(
      unknown_name_message("algorithm for the device " + std::string(name_of(kind)), requested, names));
}

Choice choose(const ConvProblem& problem, const Device& device, std::string_view requested,
              const TuningHints& hints) {
  check_algorithm_name(requested, device.kind);
  if (!leaves_choice(requested)) return choose_by_name(problem, device, requested);
  if (const TuningEntry* const entry = hints.find(problem, device)) {
    const Algorithm* const named = find_algorithm(entry->algorithm, device.kind);
    Offer offer = offer_of_named(named, *entry, problem, device);
    if (!offer.is_refusal()) return {*named, std::move(offer), false, *entry, {}, true};
  }
  std::string why_not_measured;
  if (requested == kTuned) {
    if (std::optional<TuningEntry> entry = find_tuned(problem, device)) {
      const Algorithm* const named = find_algorithm(entry->algorithm, device.kind);
      Offer offer = offer_of_named(named, *entry, problem, device);
      if (!offer.is_refusal()) return {*named, std::move(offer), false, std::move(entry), {}};
      why_not_measured = std::move(offer.why_not);
    } else {
      why_not_measured = "not in the tuning table";
    }
  }
  std::string reasons;
  Best best = best_by_rule(problem, device, reasons);
  if (best.algorithm == nullptr) throw InvalidArgument(none_supports_message(name_of(device.kind), reasons));
  return {*best.algorithm, std::move(best.offer), false, std::nullopt, why_not_measured};
}

Offer with_depthwise(const Algorithm& algorithm, Offer convolution, const ConvProblem& problem,
                     const Device& device) {
  const ConvProblem& before = problem.before.front();
  Offer first = offer_of_first(algorithm, before, device);
  if (first.is_refusal()) {
    return Offer::refusal("the depthwise convolution in front: " + first.why_not);
  }
  if (device.kind == DeviceKind::cuda && !device.lends_scratch) {
    return refuse_scratch();
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

std::shared_ptr<const Plan> PlanCache::get(const ConvProblem& problem, const Device& device,
                                           const std::function<void(const Offer&)>& before_making) {
  const Key key{problem, device.index};
  {
    const std::shared_lock<std::shared_mutex> reading(mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  }
  const Choice choice = choose(problem, device, algorithm_, hints_);
  if (before_making) before_making(choice.offer);
  std::shared_ptr<const Plan> plan = choice.offer.make();
  const std::unique_lock<std::shared_mutex> writing(mutex_);
  if (plans_.size() >= kMostPlans) plans_.clear();
  return plans_.try_emplace(key, std::move(plan)).first->second;
}

}  // namespace convswap
