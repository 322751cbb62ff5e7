#pragma once

#include <memory>
#include <string_view>

#include "cpu/channel_lanes_kernel.h"
#include "plan/algorithm.h"

namespace convswap {

// Whether the plan below is for the problem.
bool suits_channel_lanes(const ConvProblem& problem, const ChannelLanesKernels& kernels);

// Requires a problem that it suits. `instruction_set` is the kernels', for people.
std::unique_ptr<Plan> make_channel_lanes_plan(const ConvProblem& problem, const ChannelLanesKernels& kernels,
                                              std::string_view instruction_set);

}  // namespace convswap
