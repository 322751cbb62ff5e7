#pragma once

#include "cuda_emulation.h"

namespace convswap {

template <typename Words>
void load_global_if(bool condition, unsigned long long address, Words& to) {
  if (!condition) return;
  if (address % sizeof(Words) != 0) emulation::fail("a load that is not aligned");
  to = *reinterpret_cast<const Words*>(address);
}

inline void load_global_16_if(bool condition, unsigned long long address, unsigned& to) {
  unsigned short half = static_cast<unsigned short>(to);
  load_global_if(condition, address, half);
  if (condition) to = half;
}

}  // namespace convswap
