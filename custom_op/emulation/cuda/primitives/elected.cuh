#pragma once

#include "cuda_emulation.h"

namespace convswap {

inline bool is_elected() { return threadIdx.x % 32 == 0; }

}  // namespace convswap
