#include <cuda_fp16.h>

#include "cuda/tiled/plan.cuh"

namespace convswap::tiled {

std::unique_ptr<Plan> plan_float16(const ConvProblem& problem, const Device& device) {
  return std::make_unique<TiledPlan<__half>>(problem, device);
}

}  // namespace convswap::tiled
