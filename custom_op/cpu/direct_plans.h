#pragma once

// The plans of `direct`, by vectorised dimension: positions of an image, columns of a row, or channels.
// `instruction_set` is the name of the kernels' instruction set, for describe().

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "cpu/channel_lanes_kernel.h"
#include "cpu/position_lanes_kernel.h"
#include "cpu/row_lanes_kernel.h"
#include "plan/algorithm.h"

namespace convswap {

// The smallest image buffer, in floats, with which a position-lanes plan can compute the problem.
double min_image_elements(const ConvProblem& problem);

// Supports every problem but float64. It uses the row kernels to copy rows.
std::unique_ptr<Plan> make_position_lanes_plan(const ConvProblem& problem,
                                               const PositionLanesKernels& kernels,
                                               const RowLanesKernels& row_kernels,
                                               std::string_view instruction_set);

// `lanes` is the number of floats in a vector.
bool suits_row_lanes(const ConvProblem& problem, int lanes);
std::unique_ptr<Plan> make_row_lanes_plan(const ConvProblem& problem, const RowLanesKernels& kernels,
                                          std::string_view instruction_set);

bool suits_channel_lanes(const ConvProblem& problem, const ChannelLanesKernels& kernels);
std::unique_ptr<Plan> make_channel_lanes_plan(const ConvProblem& problem, const ChannelLanesKernels& kernels,
                                              std::string_view instruction_set);

// Grows a thread's buffer, which it keeps for the next run, to `elements`; the content stays.
inline void grow(std::vector<float>& memory, int64_t elements) {
  if (static_cast<int64_t>(memory.size()) < elements) memory.resize(elements);
}

}  // namespace convswap
