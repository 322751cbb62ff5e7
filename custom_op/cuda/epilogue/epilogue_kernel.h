#pragma once

#include <memory>

#include "plan/algorithm.h"

namespace convswap {

// Whether rounding a convolution's results to the element type before the epilogue, too, changes nothing of
// what the epilogue gives: float32 and float64 sums are of that type already, and rounding never changes
// which of two values is the larger.
bool rounding_commutes(const ConvProblem& problem);

// The problem by two kernels: `convolution`, a plan of the problem without its epilogue, and then one for the
// epilogue. Between them the results lie in y, or, where a pool makes y smaller, in scratch memory.
std::unique_ptr<Plan> with_epilogue_kernel(std::unique_ptr<Plan> convolution, const ConvProblem& problem,
                                           const Device& device);

// About how long the second kernel takes, in milliseconds.
double estimate_epilogue(const ConvProblem& problem, const Device& device);

}  // namespace convswap
