#include "plan/planner.h"

#include <string>

#include "conv/error.h"
#include "conv/messages.h"
#include "plan/catalog.h"

namespace convswap {
namespace {

// Null where none does; `reasons` then says why not, algorithm by algorithm.
const Algorithm* first_that_supports(const ConvProblem& problem, const Device& device, std::string& reasons) {
  for (const Algorithm* algorithm : catalog()) {
    if (algorithm->device_kind() != device.kind) continue;
    const std::string reason = algorithm->why_not(problem, device);
    if (reason.empty()) return algorithm;
    reasons += std::string(reasons.empty() ? "" : "; ") + std::string(algorithm->name()) + ": " + reason;
  }
  return nullptr;
}

}  // namespace

std::string why_none(const ConvProblem& problem, const Device& device) {
  std::string reasons;
  if (first_that_supports(problem, device, reasons) != nullptr) return {};
  return none_supports_message(name_of(device.kind), reasons);
}

void check_algorithm_name(std::string_view requested, DeviceKind kind) {
  if (requested == kAuto || find_algorithm(requested, kind) != nullptr) return;
  std::vector<std::string> names = algorithm_names(kind);
  names.emplace_back(kAuto);
  throw InvalidArgument(
      unknown_name_message("algorithm for the device " + std::string(name_of(kind)), requested, names));
}

const Algorithm& choose_algorithm(const ConvProblem& problem, const Device& device,
                                  std::string_view requested) {
  check_algorithm_name(requested, device.kind);
  if (requested == kAuto) {
    std::string reasons;
    if (const Algorithm* first = first_that_supports(problem, device, reasons)) return *first;
    throw InvalidArgument(none_supports_message(name_of(device.kind), reasons));
  }
  const Algorithm& algorithm = *find_algorithm(requested, device.kind);
  const std::string reason = algorithm.why_not(problem, device);
  if (!reason.empty()) throw InvalidArgument(unsupported_message(requested, reason));
  return algorithm;
}

}  // namespace convswap
