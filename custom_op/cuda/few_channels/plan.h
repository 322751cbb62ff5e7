#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/few_channels/tiling.h"
#include "plan/algorithm.h"

namespace convswap::few_channels {

// The kernels that the plan will start, each once.
std::vector<std::string> kernel_names(const ConvProblem& problem, const std::vector<Pass>& passes);

// A launch for each pass, one after the other.
std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device,
                                const std::vector<Pass>& passes);

}  // namespace convswap::few_channels
