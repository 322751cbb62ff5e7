#include "cuda/implicit_gemm/plan.cuh"

namespace convswap::implicit_gemm {

std::unique_ptr<Plan> plan_bfloat16(const ConvProblem& problem, const Device& device) {
  return std::make_unique<ImplicitGemmPlan<Bfloat16Pairs>>(problem, device);
}

}  // namespace convswap::implicit_gemm
