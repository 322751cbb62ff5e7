#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// The instruction sets of `direct` that this processor has, best first: some of "avx512", "avx2", "baseline".
// $CONVSWAP_MAX_INSTRUCTION_SET excludes those above the one that it names. Throws InvalidArgument if it
// names none.
std::vector<std::string_view> direct_instruction_sets();

// Makes a plan of `direct` for one of direct_instruction_sets(). The algorithm itself uses the best; tests
// reach the others by this function. Throws InvalidArgument for any other word.
std::unique_ptr<Plan> make_direct_plan(const ConvProblem& problem, std::string_view instruction_set);

}  // namespace convswap
