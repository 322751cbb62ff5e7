#pragma once

#include <memory>

#include "cuda/tiled/tiling.h"
#include "plan/algorithm.h"

namespace convswap::tiled {

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling);

}  // namespace convswap::tiled
