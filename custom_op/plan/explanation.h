#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/planner.h"

namespace convswap {

// An algorithm that was not selected, with the reason.
struct OtherAlgorithm {
  std::string name;
  bool supports = false;  // true if it can compute the problem
  std::string why_not;
  std::optional<double> milliseconds;  // measured: from the tuning table or the node, if that decided
};

// The reasons of a plan as text for users.
struct Explanation {
  const Algorithm& algorithm;
  std::function<std::unique_ptr<Plan>()> make;
  std::string decided_by;  // "name", "rule", "tuned", or "file" for the node's own hints
  std::string why;
  std::optional<double> milliseconds;  // measured: from the tuning table or the node, if that decided
  std::vector<OtherAlgorithm> others;  // the planner's other candidates, in the catalog's order
};

// Explains the choice of `choose`, and throws the same exceptions.
Explanation explain(const ConvProblem& problem, const Device& device, std::string_view requested,
                    const TuningHints& hints = {});

}  // namespace convswap
