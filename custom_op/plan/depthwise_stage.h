#pragma once

#include "plan/algorithm.h"

namespace convswap {

// The whole of a problem with a depthwise convolution in front, where `convolution` is the algorithm's offer
// for the rest: first the depthwise convolution, into memory that is taken for the run, and then the rest. On
// a card the rule chooses what computes the depthwise convolution; on the CPU, where each algorithm computes
// all there is, it is the same one. A refusal where nothing computes it, or no memory is lent.
Offer with_depthwise(const Algorithm& algorithm, Offer convolution, const ConvProblem& problem,
                     const Device& device);

}  // namespace convswap
