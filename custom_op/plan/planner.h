#pragma once

#include <string>
#include <string_view>

#include "plan/algorithm.h"

namespace convswap {

// The word that leaves the choice to the planner.
inline constexpr std::string_view kAuto = "auto";

// Throws InvalidArgument, naming the nearest, where no algorithm for the kind of device has the name.
void check_algorithm_name(std::string_view requested, DeviceKind kind);

// Empty where some algorithm of the catalog can compute the problem on the device; otherwise why none can.
std::string why_none(const ConvProblem& problem, const Device& device);

// The algorithm called `requested`, or with "auto" the first of the catalog that supports the problem.
// Throws InvalidArgument where the name is unknown, or where the algorithm (with "auto": every one) cannot
// compute the problem.
const Algorithm& choose_algorithm(const ConvProblem& problem, const Device& device,
                                  std::string_view requested);

}  // namespace convswap
