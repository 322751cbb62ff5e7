#pragma once

#include <memory>

#include "cuda/implicit_gemm/tiling.h"
#include "plan/algorithm.h"

namespace convswap::implicit_gemm {

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling);

}  // namespace convswap::implicit_gemm
