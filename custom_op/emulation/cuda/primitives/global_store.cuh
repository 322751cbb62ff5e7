#pragma once

#include "cuda_emulation.h"

namespace convswap {

template <typename Words>
void store_global_if(unsigned condition, unsigned long long address, Words words) {
  if (condition == 0) return;
  if (address % sizeof(Words) != 0) emulation::fail("a store that is not aligned");
  *reinterpret_cast<Words*>(address) = words;
}
inline unsigned long long global_address(const void* pointer) {
  return reinterpret_cast<unsigned long long>(pointer);
}
inline unsigned long long address_beyond(unsigned long long address, unsigned count, unsigned size) {
  return address + static_cast<unsigned long long>(count) * size;
}

}  // namespace convswap
