#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/many_channels/tiling.h"
#include "plan/algorithm.h"

namespace convswap::many_channels {

// The kernels that the plan will start.
std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling);

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling);

}  // namespace convswap::many_channels
