#include "plan/planner.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "conv/error.h"
#include "conv/messages.h"
#include "plan/catalog.h"
#include "plan/depthwise_stage.h"
#include "plan/tuning_file.h"

namespace convswap {
namespace {

// With so many letters of its name, an algorithm that is taken by name alone is meant, should it be misspelt.
constexpr size_t kMeantBy = 4;

struct Best {
  const Algorithm* algorithm = nullptr;  // null where none supports the problem
  Offer offer;
  std::optional<double> weighed;  // its estimate, as it is compared
};

// How many times as fast as one that does not round has to be what rounds a depthwise convolution to TF32:
// cuDNN does not, and where long ones follow each other, as in filters of sound, outputs tell the difference.
constexpr double kRoundedDepthwise = 1.3;

std::optional<double> weighed(const ConvProblem& problem, const Algorithm& algorithm, const Offer& offer) {
  if (!offer.milliseconds) return std::nullopt;
  const bool rounds = problem.type == ElementType::float32 && problem.precision == Precision::tf32 &&
                      algorithm.rounds_depthwise();
  return *offer.milliseconds * (problem.is_depthwise() && rounds ? kRoundedDepthwise : 1);
}

// The better one of `best` and an offer of the algorithm, the former where neither has an estimate.
void take_better(Best& best, const ConvProblem& problem, const Algorithm& algorithm, Offer offer) {
  const std::optional<double> own = weighed(problem, algorithm, offer);
  if (best.algorithm != nullptr && (!own || (best.weighed && *own >= *best.weighed))) return;
  best = {&algorithm, std::move(offer), own};
}

// Of those that support the problem the one estimated fastest, or the catalog's first where none has an
// estimate. `reasons` says of the others why not, algorithm by algorithm.
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
    // The others get the same depthwise convolution in front: the best of them alone is the best with it.
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

// The names of the algorithms for a kind of device that `requested` may mean, in the catalog's order: those
// that the rule chooses among, or those that are taken by name alone and begin as it does.
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

// What the entry's algorithm, null where the catalog has none of its name, offers; a refusal where it cannot
// be taken. The table, like a model, is a file that anyone may edit, and another build of the same version
// may have other algorithms.
Offer offer_of_named(const Algorithm* named, const TuningEntry& entry, const ConvProblem& problem,
                     const Device& device) {
  const std::string names = "the tuning table names '" + entry.algorithm + "', which ";
  if (named == nullptr) return Offer::refusal(names + "is not in the catalog");
  if (named->by_name_alone()) return Offer::refusal(names + std::string(named->why_by_name_alone()));
  Offer offer = offer_of(*named, problem, device);
  if (offer.is_refusal()) offer.why_not = names + "cannot compute it: " + offer.why_not;
  return offer;
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
              const Preferences& own) {
  check_algorithm_name(requested, device.kind);
  if (!leaves_choice(requested)) return choose_by_name(problem, device, requested);
  if (const TuningEntry* const entry = own.find(problem, device)) {
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

}  // namespace convswap
