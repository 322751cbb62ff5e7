#pragma once

#include <cstdint>

#include "cuda_emulation.h"

namespace convswap {

template <typename Words>
void store_shared(void* target, Words words) {
  if (reinterpret_cast<uintptr_t>(target) % sizeof(Words) != 0) {
    emulation::fail("a misaligned store to shared memory");
  }
  std::memcpy(target, &words, sizeof(Words));
}
inline void store_shared(unsigned* target, unsigned a, unsigned b) { store_shared(target, uint2{a, b}); }
inline void store_shared(unsigned* target, unsigned a, unsigned b, unsigned c, unsigned d) {
  store_shared(target, uint4{a, b, c, d});
}
inline void store_shared(float* target, float a, float b, float c, float d) {
  store_shared(target, float4{a, b, c, d});
}

using SharedAddress = uintptr_t;
inline SharedAddress shared_address(const void* shared) { return reinterpret_cast<uintptr_t>(shared); }
template <typename Words>
void store_shared_at(SharedAddress target, Words words) {
  store_shared(reinterpret_cast<void*>(target), words);
}

inline float load_shared_at(SharedAddress from) {
  if (from % sizeof(float) != 0) emulation::fail("a misaligned load from shared memory");
  return *reinterpret_cast<const float*>(from);
}

template <typename Words>
void store_shared_at_if(bool condition, SharedAddress target, Words words) {
  if (condition) store_shared_at(target, words);
}

}  // namespace convswap
