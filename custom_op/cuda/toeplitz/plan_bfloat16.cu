#include "cuda/toeplitz/plan.cuh"

namespace convswap::toeplitz {

std::unique_ptr<Plan> plan_bfloat16(const ConvProblem& problem, const Device& device) {
  return std::make_unique<ToeplitzPlan<Bfloat16Pairs>>(problem, device);
}

}  // namespace convswap::toeplitz
