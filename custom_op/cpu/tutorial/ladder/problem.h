#pragma once

#include <string>
#include <string_view>

#include "conv/problem.h"
#include "cpu/tutorial/ladder/convolution.h"

namespace convswap::ladder {

// Algorithm::why_by_name_alone of every rung.
inline constexpr std::string_view kRung = "is a rung of the ladder, taken by its own name alone";

// Returns why no rung can compute the problem; "" if a rung may. Rungs compute only the layers of the
// course's networks, so that the code of each shows one idea and nothing else.
std::string why_not(const ConvProblem& problem);

// Returns all members but the pointers. Requires an empty why_not().
Convolution shapes_of(const ConvProblem& problem);

}  // namespace convswap::ladder
