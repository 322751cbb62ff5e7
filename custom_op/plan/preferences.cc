#include "plan/preferences.h"

#include <algorithm>

namespace convswap {
namespace {

// `text` is the problem's: made once, since it is longer than what it is compared with.
bool is_about(const TuningEntry& entry, std::string_view text) {
  return entry.version == CONVSWAP_VERSION && entry.problem == text;
}

}  // namespace

const TuningEntry* Preferences::find(const ConvProblem& problem, const Device& device) const {
  if (entries_.empty()) return nullptr;
  const std::string text = problem.text(), name = tuning_device(device);
  const auto found = std::find_if(entries_.rbegin(), entries_.rend(), [&](const TuningEntry& entry) {
    return entry.device == name && is_about(entry, text);
  });
  return found == entries_.rend() ? nullptr : &*found;
}

std::vector<std::string> Preferences::anywhere(const ConvProblem& problem, DeviceKind kind) const {
  std::vector<std::string> names;
  if (entries_.empty()) return names;
  const std::string text = problem.text(), prefix = std::string(name_of(kind)) + " ";
  for (const TuningEntry& entry : entries_) {
    if (!entry.device.starts_with(prefix) || !is_about(entry, text)) continue;
    if (std::find(names.begin(), names.end(), entry.algorithm) == names.end()) {
      names.push_back(entry.algorithm);
    }
  }
  return names;
}

}  // namespace convswap
