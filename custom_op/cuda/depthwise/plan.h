#pragma once

#include <memory>
#include <string>

#include "cuda/depthwise/tiling.h"
#include "plan/algorithm.h"

namespace convswap::depthwise {

// The kernel that the plan will start.
std::string kernel_name(const ConvProblem& problem, const Tiling& tiling);

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling);

}  // namespace convswap::depthwise
