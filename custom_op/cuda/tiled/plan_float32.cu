#include "cuda/tiled/plan.cuh"

namespace convswap::tiled {

std::unique_ptr<Plan> plan_float32(const ConvProblem& problem, const Device& device) {
  return std::make_unique<TiledPlan<float>>(problem, device);
}

}  // namespace convswap::tiled
