#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/planner.h"

namespace convswap {

// Another algorithm of the catalog, and why it was not taken.
struct OtherAlgorithm {
  std::string name;
  bool supports = false;  // it could compute the problem
  std::string why_not;
  std::optional<double> milliseconds;  // as the tuning table or the node has it, where that decided
};

// Why a problem is computed as it is, in words for people.
struct Explanation {
  const Algorithm& algorithm;
  std::function<std::unique_ptr<Plan>()> make;
  std::string decided_by;  // "name", "rule", "tuned" or, for the node's own preferences, "file"
  std::string why;
  std::optional<double> milliseconds;  // as the tuning table or the node has it, where that decided
  std::vector<OtherAlgorithm> others;  // of those the rule chooses among, in the catalog's order
};

// Explains what `choose` answers, and throws what it throws.
Explanation explain(const ConvProblem& problem, const Device& device, std::string_view requested,
                    const Preferences& own = {});

}  // namespace convswap
