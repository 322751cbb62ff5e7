#include "cuda/few_channels/plan.cuh"

namespace convswap::few_channels {

std::unique_ptr<Plan> plan_float32_as_two_float16(const ConvProblem& problem, const Device& device) {
  return std::make_unique<FewChannelsPlan<TwoScaledFloat16>>(problem, device);
}

}  // namespace convswap::few_channels
