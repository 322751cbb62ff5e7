#pragma once

// The plans of `direct`, by what the lanes of a vector stand for: positions of an image, columns of a row, or
// channels. `instruction_set` is the kernels', for people.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "cpu/channel_lanes_kernel.h"
#include "cpu/position_lanes_kernel.h"
#include "cpu/row_lanes_kernel.h"
#include "plan/algorithm.h"

namespace convswap {

// Floats of the least memory that a plan of position lanes needs for the problem.
double least_image_elements(const ConvProblem& problem);

// For any problem whose data are no float64. The row kernels copy rows.
std::unique_ptr<Plan> make_position_lanes_plan(const ConvProblem& problem,
                                               const PositionLanesKernels& kernels,
                                               const RowLanesKernels& row_kernels,
                                               std::string_view instruction_set);

// For problems that row lanes suit, on vectors of so many floats.
bool suits_row_lanes(const ConvProblem& problem, int lanes);
std::unique_ptr<Plan> make_row_lanes_plan(const ConvProblem& problem, const RowLanesKernels& kernels,
                                          std::string_view instruction_set);

// For problems that channel lanes suit.
bool suits_channel_lanes(const ConvProblem& problem, const ChannelLanesKernels& kernels);
std::unique_ptr<Plan> make_channel_lanes_plan(const ConvProblem& problem, const ChannelLanesKernels& kernels,
                                              std::string_view instruction_set);

// Makes room for so many floats in memory that a thread keeps for the next run; what is there stays.
inline void grow(std::vector<float>& memory, int64_t elements) {
  if (static_cast<int64_t>(memory.size()) < elements) memory.resize(elements);
}

}  // namespace convswap
