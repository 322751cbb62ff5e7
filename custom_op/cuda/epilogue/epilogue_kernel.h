#pragma once

#include <memory>
#include <string>

#include "plan/algorithm.h"

namespace convswap {

// Empty where an epilogue may be computed of a convolution's results in memory; otherwise why not, in words a
// user can act on.
std::string why_not_apart(const ConvProblem& problem);

// The problem by two kernels: `convolution`, a plan of the problem without its epilogue, and then one for the
// epilogue. Between them the results lie in y, or, where a pool makes y smaller, in scratch memory.
std::unique_ptr<Plan> with_epilogue_kernel(std::unique_ptr<Plan> convolution, const ConvProblem& problem,
                                           const Device& device);

// About how long the second kernel takes, in milliseconds.
double estimate_epilogue(const ConvProblem& problem, const Device& device);

}  // namespace convswap
