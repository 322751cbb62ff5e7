#pragma once

#include "conv/small_floats.h"

namespace convswap {

// Two neighbours in a word, the first in its lower half. Small: Float16 or BFloat16; rounding is as that of
// each by itself, in one instruction, which needs compute capability 8.0.
template <typename Small>
__device__ inline unsigned rounded_pair(float first, float second);

template <>
__device__ inline unsigned rounded_pair<Float16>(float first, float second) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

template <>
__device__ inline unsigned rounded_pair<BFloat16>(float first, float second) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

template <typename Small>
__device__ inline float lower_of_pair(unsigned both) {
  Small lower;
  lower.bits = static_cast<unsigned short>(both);
  return static_cast<float>(lower);
}

template <typename Small>
__device__ inline float upper_of_pair(unsigned both) {
  return lower_of_pair<Small>(both >> 16);
}

}  // namespace convswap
