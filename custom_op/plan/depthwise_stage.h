#pragma once

#include "plan/algorithm.h"

namespace convswap {

// The whole of a problem with a depthwise convolution in front, where `convolution` is an offer for the rest:
// first the depthwise convolution, by what the rule chooses for it, into memory that is taken for the run,
// and then the rest. A refusal where nothing computes the depthwise convolution, or no memory is lent.
Offer with_depthwise(Offer convolution, const ConvProblem& problem, const Device& device);

}  // namespace convswap
