#pragma once

#include "cuda_emulation.h"

namespace convswap {

inline float max_nan(float a, float b) { return a > b || a != a ? a : b; }
inline float min_nan(float a, float b) { return a < b || a != a ? a : b; }

}  // namespace convswap
