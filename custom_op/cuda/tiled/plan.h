#pragma once

#include <memory>

#include "plan/algorithm.h"

namespace convswap::tiled {

// The plans of tiled, by element type, each a file of its own to be compiled side by side.
std::unique_ptr<Plan> plan_float32(const ConvProblem& problem, const Device& device);
std::unique_ptr<Plan> plan_float16(const ConvProblem& problem, const Device& device);
std::unique_ptr<Plan> plan_bfloat16(const ConvProblem& problem, const Device& device);

}  // namespace convswap::tiled
