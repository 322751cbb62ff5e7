#pragma once

#include <cmath>

#include "cuda_emulation.h"

namespace convswap {

inline float recomputed(float sum) {
  if (std::isfinite(sum)) emulation::fail("a finite sum whose parts were not finite");
  return sum;
}

}  // namespace convswap
