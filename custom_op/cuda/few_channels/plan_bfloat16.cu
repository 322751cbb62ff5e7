#include "cuda/few_channels/plan.cuh"

namespace convswap::few_channels {

std::unique_ptr<Plan> plan_bfloat16(const ConvProblem& problem, const Device& device) {
  return std::make_unique<FewChannelsPlan<Bfloat16Pairs>>(problem, device);
}

}  // namespace convswap::few_channels
