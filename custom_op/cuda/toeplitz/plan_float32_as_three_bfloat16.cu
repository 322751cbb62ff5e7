#include "cuda/toeplitz/plan.cuh"

namespace convswap::toeplitz {

std::unique_ptr<Plan> plan_float32_as_three_bfloat16(const ConvProblem& problem, const Device& device) {
  return std::make_unique<ToeplitzPlan<Bfloat16Triples>>(problem, device);
}

}  // namespace convswap::toeplitz
