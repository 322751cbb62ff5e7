#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/tuning_table.h"

namespace convswap {

// What a node of a model tells of its own problems: lines of a tuning table, in its attribute `tuned`. They
// are preferences and no commands, since the file may be loaded beside another card, by another version, and
// run with other sizes: what is not about the case in hand, or is damaged, says nothing.
class Preferences {
 public:
  Preferences() = default;
  explicit Preferences(std::string_view lines) : entries_(parse_tuning_lines(lines)) {}

  // What they say of the problem on the device, for this version of convswap; null where that is nothing. Of
  // two lines about the same the last counts.
  const TuningEntry* find(const ConvProblem& problem, const Device& device) const;

  // The algorithms that they name for the problem on any device of that kind, each once: what a machine that
  // is not here may take.
  std::vector<std::string> anywhere(const ConvProblem& problem, DeviceKind kind) const;

 private:
  std::vector<TuningEntry> entries_;
};

}  // namespace convswap
