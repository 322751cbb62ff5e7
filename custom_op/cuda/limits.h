#pragma once

#include <initializer_list>
#include <string>

#include "conv/problem.h"

namespace convswap {

inline constexpr int64_t kMostGridRows = 65'535;

// Why a kernel for float32, float16 and bfloat16 data with one or two spatial axes, whose grid has a row for
// each group, cannot compute a problem, whatever its sizes else; empty where nothing is in the way.
std::string why_not_flat(const ConvProblem& problem);

// Why a kernel whose indices have 32 bits cannot reach so far; empty where it can.
std::string why_not_indexed(std::initializer_list<int64_t> largest);

}  // namespace convswap
