#pragma once

#include "conv/small_floats.h"
#include "cuda_emulation.h"

namespace convswap {

template <typename T>
inline unsigned packed_max(unsigned a, unsigned b) {
  constexpr int kCount = 4 / int(sizeof(T));
  T first[kCount], second[kCount];
  std::memcpy(first, &a, sizeof a);
  std::memcpy(second, &b, sizeof b);
  for (int i = 0; i < kCount; ++i) {
    const float x = static_cast<float>(first[i]), y = static_cast<float>(second[i]);
    if (!(x > y || x != x)) first[i] = second[i];
  }
  std::memcpy(&a, first, sizeof a);
  return a;
}

}  // namespace convswap
