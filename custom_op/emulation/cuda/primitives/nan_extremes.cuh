#pragma once

#include "cuda_emulation.h"

namespace convswap {

inline float larger_or_nan(float a, float b) { return a > b || a != a ? a : b; }
inline float smaller_or_nan(float a, float b) { return a < b || a != a ? a : b; }

}  // namespace convswap
