#pragma once

#include "conv/small_floats.h"

namespace convswap {

// Converts two numbers to Small (Float16 or BFloat16), to nearest even, and packs them into a 32-bit word,
// the first in the lower half. One instruction; needs compute capability 8.0.
template <typename Small>
__device__ inline unsigned pack_rounded(float first, float second);

template <>
__device__ inline unsigned pack_rounded<Float16>(float first, float second) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

template <>
__device__ inline unsigned pack_rounded<BFloat16>(float first, float second) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

template <typename Small>
__device__ inline float unpack_low(unsigned word) {
  Small lower;
  lower.bits = static_cast<unsigned short>(word);
  return static_cast<float>(lower);
}

template <typename Small>
__device__ inline float unpack_high(unsigned word) {
  return unpack_low<Small>(word >> 16);
}

}  // namespace convswap
