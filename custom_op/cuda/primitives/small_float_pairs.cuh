#pragma once

#include "conv/small_floats.h"

namespace convswap {

// Two neighbours in a word, the first in its lower half. Small: Float16 or BFloat16; rounding is as that of
// each by itself, in one instruction, which needs compute capability 8.0.
template <typename Small>
__device__ inline unsigned pack_rounded(float first, float second);

template <>
__device__ inline unsigned pack_rounded<Float16>(float first, float second) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

template <>
__device__ inline unsigned pack_rounded<BFloat16>(float first, float second) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

template <typename Small>
__device__ inline float unpack_low(unsigned both) {
  Small lower;
  lower.bits = static_cast<unsigned short>(both);
  return static_cast<float>(lower);
}

template <typename Small>
__device__ inline float unpack_high(unsigned both) {
  return unpack_low<Small>(both >> 16);
}

}  // namespace convswap
