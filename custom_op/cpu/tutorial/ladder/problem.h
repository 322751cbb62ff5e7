#pragma once

#include <string>
#include <string_view>

#include "conv/problem.h"
#include "cpu/tutorial/ladder/convolution.h"

namespace convswap::ladder {

// Why the planner's rule takes none of them.
inline constexpr std::string_view kRung = "is a rung of the ladder, taken by its own name alone";

// What all rungs of the ladder leave to others, so that their code shows one idea and nothing else: they
// compute what the course's networks need. Empty where a rung may take the problem; otherwise why not.
std::string why_not(const ConvProblem& problem);

// All but the pointers. Requires an empty why_not.
Convolution shapes_of(const ConvProblem& problem);

}  // namespace convswap::ladder
