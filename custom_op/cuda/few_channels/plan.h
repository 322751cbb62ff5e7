#pragma once

#include <memory>
#include <vector>

#include "cuda/few_channels/tiling.h"
#include "plan/algorithm.h"

namespace convswap::few_channels {

// A launch for each pass, one after the other.
std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device,
                                const std::vector<Pass>& passes);

}  // namespace convswap::few_channels
