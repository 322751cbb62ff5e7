#pragma once

#include "conv/quantization.h"
#include "conv/small_floats.h"

namespace convswap {

// Maxima of small elements packed into 32-bit words, each of its own two or four. A NaN propagates.
template <typename T>
__device__ inline unsigned packed_max(unsigned a, unsigned b);

template <typename Small>
__device__ inline unsigned short max_of_bits(unsigned a, unsigned b) {
  Small first, second;
  first.bits = static_cast<unsigned short>(a);
  second.bits = static_cast<unsigned short>(b);
  const float x = static_cast<float>(first), y = static_cast<float>(second);
  return x > y || x != x ? first.bits : second.bits;
}

template <>
__device__ inline unsigned packed_max<Float16>(unsigned a, unsigned b) {
#if __CUDA_ARCH__ >= 800
  unsigned result;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  return max_of_bits<Float16>(a, b) | static_cast<unsigned>(max_of_bits<Float16>(a >> 16, b >> 16)) << 16;
#endif
}

template <>
__device__ inline unsigned packed_max<BFloat16>(unsigned a, unsigned b) {
#if __CUDA_ARCH__ >= 800
  unsigned result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  return max_of_bits<BFloat16>(a, b) | static_cast<unsigned>(max_of_bits<BFloat16>(a >> 16, b >> 16)) << 16;
#endif
}

template <>
__device__ inline unsigned packed_max<Int8>(unsigned a, unsigned b) {
  return __vmaxs4(a, b);
}

template <>
__device__ inline unsigned packed_max<UInt8>(unsigned a, unsigned b) {
  return __vmaxu4(a, b);
}

}  // namespace convswap
