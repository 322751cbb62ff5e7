#pragma once

#include <memory>
#include <string_view>

#include "cpu/position_lanes_kernel.h"
#include "cpu/row_lanes_kernel.h"
#include "plan/algorithm.h"

namespace convswap {

// Floats of the least memory that a plan for the problem needs.
double least_image_elements(const ConvProblem& problem);

// For any problem whose data are no float64. The row kernels copy rows; `instruction_set` is the kernels',
// for people.
std::unique_ptr<Plan> make_position_lanes_plan(const ConvProblem& problem,
                                               const PositionLanesKernels& kernels,
                                               const RowLanesKernels& row_kernels,
                                               std::string_view instruction_set);

}  // namespace convswap
