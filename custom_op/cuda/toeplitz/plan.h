#pragma once

#include <memory>

#include "cuda/toeplitz/tiling.h"
#include "plan/algorithm.h"

namespace convswap::toeplitz {

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling);

}  // namespace convswap::toeplitz
