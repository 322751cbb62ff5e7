#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// The instruction sets that `direct` is compiled for and this processor has, best first: some of "avx512",
// "avx2", "baseline". $CONVSWAP_MAX_INSTRUCTION_SET leaves out those better than the one it names; throws
// InvalidArgument if it names none.
std::vector<std::string_view> direct_instruction_sets();

// A plan of `direct` for one of direct_instruction_sets(); the algorithm itself takes the best. Tests call
// this to reach the others. Throws InvalidArgument for any other word.
std::unique_ptr<Plan> make_direct_plan(const ConvProblem& problem, std::string_view instruction_set);

}  // namespace convswap
