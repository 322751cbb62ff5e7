#include "cuda/ladder/stand_in.h"

#include <array>

namespace convswap {

const Algorithm& cuda_toeplitz();
const Algorithm& cuda_few_channels();

namespace ladder {
namespace {

std::array<const Algorithm*, 2> fast_algorithms() { return {&cuda_toeplitz(), &cuda_few_channels()}; }

}  // namespace

std::string StandIn::why_not(const ConvProblem& problem, const Device& device) const {
  std::string reasons = why_not_here(problem);
  if (!reasons.empty()) return reasons;
  for (const Algorithm* algorithm : fast_algorithms()) {
    const std::string reason = algorithm->why_not(problem, device);
    if (reason.empty()) return {};
    reasons += (reasons.empty() ? "" : "; ") + std::string(algorithm->name()) + ": " + reason;
  }
  return reasons;
}

std::unique_ptr<Plan> StandIn::make_plan(const ConvProblem& problem, const Device& device) const {
  for (const Algorithm* algorithm : fast_algorithms()) {
    if (algorithm->why_not(problem, device).empty()) return algorithm->make_plan(problem, device);
  }
  return nullptr;
}

}  // namespace ladder
}  // namespace convswap
