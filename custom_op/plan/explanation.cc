#include "plan/explanation.h"

#include <cstdio>

#include "plan/catalog.h"

namespace convswap {
namespace {

std::string milliseconds_text(double milliseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", milliseconds);
  return text;
}

std::optional<double> time_of(const std::optional<TuningEntry>& entry, std::string_view algorithm) {
  if (!entry) return std::nullopt;
  for (const auto& [name, milliseconds] : entry->milliseconds) {
    if (name == algorithm) return milliseconds;
  }
  return std::nullopt;
}

std::string why_selected(const Choice& choice, std::optional<double> milliseconds,
                         std::optional<double> estimate) {
  if (choice.by_name) return "asked for by name";
  if (milliseconds && choice.by_node) {
    return "the file says that it was measured here: " + milliseconds_text(*milliseconds);
  }
  if (milliseconds) return "measured by `convswap tune`: " + milliseconds_text(*milliseconds);
  const std::string heuristic = estimate ? "estimated fastest: " + milliseconds_text(*estimate)
                                         : "the first of the catalog that supports it";
  return choice.why_not_measured.empty() ? heuristic
                                         : choice.why_not_measured + "; by heuristic: " + heuristic;
}

// Returns why an algorithm that supports the problem was not selected. `is_earlier`: it precedes the selected
// one in the catalog. `selected` and `measured` are measured times of the selected and this algorithm.
std::string why_not_selected(const Choice& choice, bool is_earlier, std::optional<double> selected,
                             std::optional<double> measured, std::optional<double> estimate) {
  if (choice.by_name) {
    return is_earlier ? "comes earlier in the catalog's order, but another was asked for by name"
                      : "another was asked for by name";
  }
  if (!choice.measured && estimate) {
    if (choice.offer.milliseconds && *estimate < *choice.offer.milliseconds) {
      return "estimated " + milliseconds_text(*estimate) +
             ", not enough faster to round a depthwise convolution to TF32; not measured";
    }
    return "estimated slower: " + milliseconds_text(*estimate) + "; not measured";
  }
  // The heuristic selects an algorithm without an estimate only if no other supports the problem.
  if (!choice.measured && choice.offer.milliseconds)
    return "only for problems that no other algorithm can compute; not measured";
  if (!choice.measured) return "comes later in the catalog's order; not measured";
  if (!measured) return "not measured";
  if (*measured >= *selected) return "measured slower: " + milliseconds_text(*measured);
  return std::string(choice.by_node ? "the file" : "the table") +
         " names another, measured: " + milliseconds_text(*measured);
}

}  // namespace

Explanation explain(const ConvProblem& problem, const Device& device, std::string_view requested,
                    const TuningHints& hints) {
  const Choice choice = choose(problem, device, requested, hints);
  const std::optional<double> selected = time_of(choice.measured, choice.algorithm.name());
  const char* const decided_by = choice.by_name    ? "name"
                                 : choice.by_node  ? "file"
                                 : choice.measured ? "tuned"
                                                   : "rule";
  const std::string why = why_selected(choice, selected, choice.offer.milliseconds);
  Explanation explanation{choice.algorithm, choice.offer.make, decided_by, why, selected, {}};
  bool is_earlier = true;
  for (const Algorithm* algorithm : catalog()) {
    if (algorithm->device_kind() != device.kind) continue;
    if (algorithm == &choice.algorithm) {
      is_earlier = false;
      continue;
    }
    if (algorithm->by_name_alone()) continue;
    const Offer offer = offer_of(*algorithm, problem, device);
    const std::optional<double> measured = time_of(choice.measured, algorithm->name());
    const bool supports = !offer.is_refusal();
    const std::string why_not =
        supports ? why_not_selected(choice, is_earlier, selected, measured, offer.milliseconds)
                 : offer.why_not;
    explanation.others.push_back({std::string(algorithm->name()), supports, why_not, measured});
  }
  return explanation;
}

}  // namespace convswap
