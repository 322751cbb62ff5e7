#include "plan/planner.h"

#include <string>
#include <utility>

#include "conv/error.h"
#include "conv/messages.h"
#include "plan/catalog.h"
#include "plan/tuning_file.h"

namespace convswap {
namespace {

// What the names of all rungs begin with, or most of it, should one be misspelt.
constexpr std::string_view kRungPrefix = "ladd";

// Of those that support the problem the one estimated fastest, or the catalog's first where none has an
// estimate. Null where none does; `reasons` then says why not, algorithm by algorithm.
const Algorithm* best_by_rule(const ConvProblem& problem, const Device& device, std::string& reasons) {
  const Algorithm* best = nullptr;
  std::optional<double> least;
  for (const Algorithm* algorithm : catalog()) {
    if (algorithm->device_kind() != device.kind || algorithm->is_rung()) continue;
    const std::string reason = algorithm->why_not(problem, device);
    if (!reason.empty()) {
      reasons += std::string(reasons.empty() ? "" : "; ") + std::string(algorithm->name()) + ": " + reason;
      continue;
    }
    const std::optional<double> estimate = algorithm->estimate(problem, device);
    if (best != nullptr && (!estimate || (least && *estimate >= *least))) continue;
    best = algorithm;
    least = estimate;
  }
  return best;
}

Choice choose_by_name(const ConvProblem& problem, const Device& device, std::string_view requested) {
  const Algorithm& algorithm = *find_algorithm(requested, device.kind);
  const std::string reason = algorithm.why_not(problem, device);
  if (!reason.empty()) throw InvalidArgument(unsupported_message(requested, reason));
  return {algorithm, true, std::nullopt, {}};
}

// Why the entry's algorithm, null where the catalog has none of its name, cannot be taken; empty where it
// can. The table is a file that anyone may edit, and another build of the same version may have other
// algorithms.
std::string why_not_named(const Algorithm* named, const TuningEntry& entry, const ConvProblem& problem,
                          const Device& device) {
  const std::string names = "the tuning table names '" + entry.algorithm + "', which ";
  if (named == nullptr) return names + "is not in the catalog";
  if (named->is_rung()) return names + "is a rung of the ladder, taken by its own name alone";
  const std::string reason = named->why_not(problem, device);
  return reason.empty() ? "" : names + "cannot compute it: " + reason;
}

}  // namespace

std::string why_none(const ConvProblem& problem, const Device& device) {
  std::string reasons;
  if (best_by_rule(problem, device, reasons) != nullptr) return {};
  return none_supports_message(name_of(device.kind), reasons);
}

void check_algorithm_name(std::string_view requested, DeviceKind kind) {
  if (leaves_choice(requested) || find_algorithm(requested, kind) != nullptr) return;
  // Who does not climb the ladder need not read the names of its rungs.
  const bool means_rung = requested.substr(0, kRungPrefix.size()) == kRungPrefix;
  std::vector<std::string> names = algorithm_names(kind, means_rung);
  names.insert(names.end(), {std::string(kAuto), std::string(kTuned)});
  throw InvalidArgument(
      unknown_name_message("algorithm for the device " + std::string(name_of(kind)), requested, names));
}

Choice choose(const ConvProblem& problem, const Device& device, std::string_view requested) {
  check_algorithm_name(requested, device.kind);
  if (!leaves_choice(requested)) return choose_by_name(problem, device, requested);
  std::string why_not_measured;
  if (requested == kTuned) {
    if (std::optional<TuningEntry> entry = find_tuned(problem, device)) {
      const Algorithm* const named = find_algorithm(entry->algorithm, device.kind);
      why_not_measured = why_not_named(named, *entry, problem, device);
      if (why_not_measured.empty()) return {*named, false, std::move(entry), {}};
    } else {
      why_not_measured = "not in the tuning table";
    }
  }
  std::string reasons;
  if (const Algorithm* best = best_by_rule(problem, device, reasons)) {
    return {*best, false, std::nullopt, why_not_measured};
  }
  throw InvalidArgument(none_supports_message(name_of(device.kind), reasons));
}

const Algorithm& choose_algorithm(const ConvProblem& problem, const Device& device,
                                  std::string_view requested) {
  return choose(problem, device, requested).algorithm;
}

}  // namespace convswap
