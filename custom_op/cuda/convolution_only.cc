#include "cuda/convolution_only.h"

#include "cuda/epilogue/epilogue_kernel.h"

namespace convswap {
std::string ConvolutionOnly::why_not(const ConvProblem& problem, const Device& device) const {
  if (problem.epilogue.is_empty()) return why_not_alone(problem, device);
  const std::string reason = why_not_apart(problem);
  return reason.empty() ? why_not_alone(problem.without_epilogue(), device) : reason;
}

std::optional<double> ConvolutionOnly::estimate(const ConvProblem& problem, const Device& device) const {
  if (problem.epilogue.is_empty()) return estimate_alone(problem, device);
  std::optional<double> milliseconds = estimate_alone(problem.without_epilogue(), device);
  if (milliseconds) *milliseconds += estimate_epilogue(problem, device);
  return milliseconds;
}

std::unique_ptr<Plan> ConvolutionOnly::make_plan(const ConvProblem& problem, const Device& device) const {
  if (problem.epilogue.is_empty()) return plan_alone(problem, device);
  return with_epilogue_kernel(plan_alone(problem.without_epilogue(), device), problem, device);
}

}  // namespace convswap
