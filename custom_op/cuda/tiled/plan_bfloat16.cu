#include "conv/small_floats.h"
#include "cuda/tiled/plan.cuh"

namespace convswap::tiled {

std::unique_ptr<Plan> plan_bfloat16(const ConvProblem& problem, const Device& device) {
  return std::make_unique<TiledPlan<BFloat16>>(problem, device);
}

}  // namespace convswap::tiled
