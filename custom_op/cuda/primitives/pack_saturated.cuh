#pragma once

namespace convswap {

// Four numbers as the bytes of a word, the first lowest, each limited to 0 to 255.
__device__ inline unsigned pack_saturated(const int (&numbers)[4]) {
  unsigned high, word;
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(numbers[3]), "r"(numbers[2]));
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(numbers[1]), "r"(numbers[0]), "r"(high));
  return word;
}

}  // namespace convswap
