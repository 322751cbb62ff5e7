#pragma once

#include <memory>
#include <string_view>

#include "cpu/row_lanes_kernel.h"
#include "plan/algorithm.h"

namespace convswap {

// Whether the plan below is for the problem, on vectors of so many floats: where it is not, `direct` computes
// it as it does any other.
bool suits_row_lanes(const ConvProblem& problem, int lanes);

// Requires a problem that it suits. `instruction_set` is the kernels', for people.
std::unique_ptr<Plan> make_row_lanes_plan(const ConvProblem& problem, const RowLanesKernels& kernels,
                                          std::string_view instruction_set);

}  // namespace convswap
