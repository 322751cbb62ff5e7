#pragma once

#include "conv/quantization.h"

namespace convswap {

// `sum` plus the products of the four codes of `x` and the four int8 weights of `w`, as one instruction. X is
// the type of the codes.
template <typename X>
__device__ inline int dp4a(unsigned x, unsigned w, int sum);

template <>
__device__ inline int dp4a<Int8>(unsigned x, unsigned w, int sum) {
  asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(w));
  return sum;
}
template <>
__device__ inline int dp4a<UInt8>(unsigned x, unsigned w, int sum) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(w));
  return sum;
}

}  // namespace convswap
