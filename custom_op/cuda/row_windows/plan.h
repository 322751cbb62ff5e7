#pragma once

#include <memory>
#include <string>

#include "cuda/row_windows/tiling.h"
#include "plan/algorithm.h"

namespace convswap::row_windows {

std::string kernel_name(const ConvProblem& problem, const Tiling& tiling);

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling);

}  // namespace convswap::row_windows
