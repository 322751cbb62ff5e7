#include "cuda/toeplitz/plan.cuh"

namespace convswap::toeplitz {

std::unique_ptr<Plan> plan_float32_as_two_float16(const ConvProblem& problem, const Device& device) {
  return std::make_unique<ToeplitzPlan<TwoScaledFloat16>>(problem, device);
}

}  // namespace convswap::toeplitz
