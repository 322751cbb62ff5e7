#include "cuda/convolution_only.h"

#include "cuda/epilogue/epilogue_kernel.h"

namespace convswap {
std::string ConvolutionOnly::why_not(const ConvProblem& problem, const Device& device) const {
  if (problem.epilogue.is_empty()) return why_not_alone(problem, device);
  if (!rounding_commutes(problem)) {
    return "it computes what follows a convolution of its results as they are rounded to " +
           std::string(name_of(problem.type)) + ", which would round twice";
  }
  return why_not_alone(problem.without_epilogue(), device);
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
