#include "cuda/implicit_gemm/plan.cuh"

namespace convswap::implicit_gemm {

std::unique_ptr<Plan> plan_float32_as_scaled_float16(const ConvProblem& problem, const Device& device) {
  return std::make_unique<ImplicitGemmPlan<ScaledFloat16Pairs>>(problem, device);
}

}  // namespace convswap::implicit_gemm
