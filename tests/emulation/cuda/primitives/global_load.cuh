#pragma once

#include "cuda_emulation.h"

namespace convswap {

template <typename Words>
void load_global_if(bool condition, unsigned long long address, Words& to) {
  if (!condition) return;
  if (address % sizeof(Words) != 0) emulation::fail("a load that is not aligned");
  to = *reinterpret_cast<const Words*>(address);
}

}  // namespace convswap
