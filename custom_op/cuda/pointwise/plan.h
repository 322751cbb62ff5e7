#pragma once

#include <memory>
#include <string>

#include "cuda/pointwise/tiling.h"
#include "plan/algorithm.h"

namespace convswap::pointwise {

std::string kernel_name(const ConvProblem& problem, const Tiling& tiling);

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling);

}  // namespace convswap::pointwise
