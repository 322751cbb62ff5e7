#pragma once

#include "cuda_emulation.h"

namespace convswap {

template <typename Words>
void load_global_if(bool condition, unsigned long long address, Words& to) {
  if (!condition) return;
  if (address % sizeof(Words) != 0) emulation::fail("a misaligned load from global memory");
  to = *reinterpret_cast<const Words*>(address);
}

inline void load_global_16_if(bool condition, unsigned long long address, unsigned& to) {
  unsigned short half = static_cast<unsigned short>(to);
  load_global_if(condition, address, half);
  if (condition) to = half;
}

template <typename Words>
void store_global_if(unsigned condition, unsigned long long address, Words words) {
  if (condition == 0) return;
  if (address % sizeof(Words) != 0) emulation::fail("a misaligned store to global memory");
  *reinterpret_cast<Words*>(address) = words;
}
inline unsigned long long global_address(const void* pointer) {
  return reinterpret_cast<unsigned long long>(pointer);
}
inline unsigned long long address_at(unsigned long long address, unsigned count, unsigned size) {
  return address + static_cast<unsigned long long>(count) * size;
}

inline void prefetch(const void*) {}
inline void prefetch_l1(const void*) {}

}  // namespace convswap
