#include "cuda/toeplitz/plan.cuh"

namespace convswap::toeplitz {

std::unique_ptr<Plan> plan_float16(const ConvProblem& problem, const Device& device) {
  return std::make_unique<ToeplitzPlan<Float16Pairs>>(problem, device);
}

}  // namespace convswap::toeplitz
