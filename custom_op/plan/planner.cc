#include "plan/planner.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "conv/error.h"
#include "plan/catalog.h"
#include "plan/prepared.h"

namespace convswap {
namespace {

// Bounds the memory of a server that sees every image size. Planning again is cheap compared with a run.
constexpr size_t kMaxPlans = 4096;

// A misspelt name that shares this many leading letters with an algorithm selected by name alone means that
// one.
constexpr size_t kSharedPrefix = 4;

struct Best {
  const Algorithm* algorithm = nullptr;  // null if none supports the problem
  Offer offer;
  std::optional<double> penalized;  // the estimate with its penalty
};

// Penalty on the estimate of an algorithm that rounds a depthwise convolution to TF32. cuDNN does not round
// there, and the errors of long filters in a row, as in audio models, become visible.
constexpr double kRoundingPenalty = 1.5;

std::optional<double> penalized_estimate(const ConvProblem& problem, const Algorithm& algorithm,
                                         const Offer& offer) {
  if (!offer.milliseconds) return std::nullopt;
  const bool rounds = problem.type == ElementType::float32 && problem.precision == Precision::tf32 &&
                      algorithm.rounds_depthwise();
  return *offer.milliseconds * (problem.is_depthwise() && rounds ? kRoundingPenalty : 1);
}

// Replaces `best` if the offer's estimate is lower. Without estimates the earlier algorithm stays.
void replace_if_better(Best& best, const ConvProblem& problem, const Algorithm& algorithm, Offer offer) {
  const std::optional<double> estimate = penalized_estimate(problem, algorithm, offer);
  if (best.algorithm != nullptr && (!estimate || (best.penalized && *estimate >= *best.penalized))) return;
  best = {&algorithm, std::move(offer), estimate};
}

// Returns the supported algorithm with the lowest estimate, or the catalog's first if none has an estimate.
// Appends to `reasons` why each unsupported algorithm refused.
Best best_by_heuristic(const ConvProblem& problem, const Device& device, std::string& reasons) {
  Best best;
  for (const Algorithm* algorithm : catalog()) {
    if (algorithm->device_kind() != device.kind || algorithm->by_name_alone()) continue;
    if (!problem.depthwise.empty() && !algorithm->takes_depthwise()) continue;
    Offer offer = offer_of(*algorithm, problem, device);
    if (offer.is_refusal()) {
      reasons +=
          std::string(reasons.empty() ? "" : "; ") + std::string(algorithm->name()) + ": " + offer.why_not;
      continue;
    }
    replace_if_better(best, problem, *algorithm, std::move(offer));
  }
  if (!problem.depthwise.empty()) {
    // All other algorithms get the same plan for the depthwise convolution, so the best for the other
    // convolution is the best for both.
    Best convolution = best_by_heuristic(problem.without_depthwise(), device, reasons);
    if (convolution.algorithm != nullptr) {
      Offer both = with_depthwise(*convolution.algorithm, std::move(convolution.offer), problem, device);
      if (both.is_refusal()) {
        reasons += (reasons.empty() ? "" : "; ") + both.why_not;
      } else {
        replace_if_better(best, problem, *convolution.algorithm, std::move(both));
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
  std::vector<std::string> candidates, by_name;
  for (const Algorithm* algorithm : catalog()) {
    if (algorithm->device_kind() != kind) continue;
    (algorithm->by_name_alone() ? by_name : candidates).emplace_back(algorithm->name());
  }
  const bool means_by_name = std::ranges::any_of(by_name, [&](const std::string& name) {
    return name.substr(0, kSharedPrefix) == requested.substr(0, kSharedPrefix);
  });
  return means_by_name ? by_name : candidates;
}

// Returns the offer of a tuning entry's algorithm, or a refusal. `named` is null if the catalog has no such
// name: tables and models can be edited, and other builds of this version may have other algorithms.
Offer offer_of_entry(const Algorithm* named, const TuningEntry& entry, const ConvProblem& problem,
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
                     std::size_t intermediate_bytes)
      : TwoPlans(std::move(depthwise), std::move(convolution), false),
        intermediate_bytes_(intermediate_bytes) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    char* const convolution_scratch = static_cast<char*>(execution.scratch);
    char* const depthwise_scratch = convolution_scratch + aligned(second_->scratch_bytes());
    char* const intermediate = depthwise_scratch + aligned(scratch_bytes_with_weights(*first_));
    Execution first = execution;
    first.scratch = depthwise_scratch;
    prepare_and_run(*first_, {tensors.x, tensors.d, tensors.db, intermediate}, first);
    second_->run({intermediate, tensors.w, tensors.b, tensors.y, tensors.z}, execution);
  }

  // The convolution's scratch memory, the depthwise convolution's, and the intermediate tensor.
  std::size_t scratch_bytes() const override {
    return aligned(second_->scratch_bytes()) + aligned(scratch_bytes_with_weights(*first_)) +
           intermediate_bytes_;
  }

 private:
  std::size_t intermediate_bytes_;
};

Offer offer_of_depthwise(const Algorithm& algorithm, const ConvProblem& depthwise, const Device& device) {
  if (device.kind == DeviceKind::cpu) return offer_of(algorithm, depthwise, device);
  if (std::string reason = why_no_algorithm(depthwise, device); !reason.empty())
    return Offer::refusal(std::move(reason));
  return choose(depthwise, device, kAuto).offer;
}

}  // namespace

std::string why_no_algorithm(const ConvProblem& problem, const Device& device) {
  std::string reasons;
  if (best_by_heuristic(problem, device, reasons).algorithm != nullptr) return {};
  return none_supports_message(name_of(device.kind), reasons);
}

void check_algorithm_name(std::string_view requested, DeviceKind kind) {
  if (leaves_choice(requested) || find_algorithm(requested, kind) != nullptr) return;
  const DeviceKind other = kind == DeviceKind::cpu ? DeviceKind::cuda : DeviceKind::cpu;
  if (find_algorithm(requested, other) != nullptr) {
    throw InvalidArgument("algorithm '" + std::string(requested) + "' is one of the device " +
                          std::string(name_of(other)) + ", and this is the device " +
                          std::string(name_of(kind)) +
                          ": use algorithm 'auto', which selects one on any device");
  }
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
    Offer offer = offer_of_entry(named, *entry, problem, device);
    if (!offer.is_refusal()) return {*named, std::move(offer), false, *entry, {}, true};
  }
  std::string why_not_measured;
  if (requested == kTuned) {
    if (std::optional<TuningEntry> entry = find_tuned(problem, device)) {
      const Algorithm* const named = find_algorithm(entry->algorithm, device.kind);
      Offer offer = offer_of_entry(named, *entry, problem, device);
      if (!offer.is_refusal()) return {*named, std::move(offer), false, std::move(entry), {}};
      why_not_measured = std::move(offer.why_not);
    } else {
      why_not_measured = "not in the tuning table";
    }
  }
  std::string reasons;
  Best best = best_by_heuristic(problem, device, reasons);
  if (best.algorithm == nullptr) throw InvalidArgument(none_supports_message(name_of(device.kind), reasons));
  return {*best.algorithm, std::move(best.offer), false, std::nullopt, why_not_measured};
}

Offer with_depthwise(const Algorithm& algorithm, Offer convolution, const ConvProblem& problem,
                     const Device& device) {
  const ConvProblem depthwise = problem.depthwise_alone();
  Offer first = offer_of_depthwise(algorithm, depthwise, device);
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
  const auto bytes =
      static_cast<std::size_t>(depthwise.result_elements() * bytes_per_element(depthwise.type));
  both.make = [make_first = std::move(first.make), make_second = std::move(convolution.make), bytes] {
    return std::make_unique<DepthwiseFirstPlan>(make_first(), make_second(), bytes);
  };
  if (first.kernels != nullptr || convolution.kernels != nullptr) {
    both.kernels = [first_kernels = std::move(first.kernels),
                    second_kernels = std::move(convolution.kernels)] {
      std::vector<std::string> names;
      for (const auto& kernels : {first_kernels, second_kernels}) {
        if (kernels == nullptr) continue;
        for (std::string& name : kernels()) names.push_back(std::move(name));
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
  if (plans_.size() >= kMaxPlans) plans_.clear();
  return plans_.try_emplace(key, std::move(plan)).first->second;
}

}  // namespace convswap
