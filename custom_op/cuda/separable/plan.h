#pragma once

#include <memory>
#include <string>

#include "cuda/separable/tiling.h"
#include "plan/algorithm.h"

namespace convswap::separable {

// The name of the kernel that the plan starts (cuda/host/kernels.h).
std::string kernel_name(const ConvProblem& problem, const Tiling& tiling);

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling);

}  // namespace convswap::separable
