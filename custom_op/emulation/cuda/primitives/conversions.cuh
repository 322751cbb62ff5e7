#pragma once

#include "conv/small_floats.h"
#include "cuda_emulation.h"

namespace convswap {

template <typename Small>
unsigned rounded_pair(float first, float second) {
  return Small(first).bits | static_cast<unsigned>(Small(second).bits) << 16;
}
template <typename Small>
float lower_of_pair(unsigned both) {
  Small lower;
  lower.bits = static_cast<unsigned short>(both);
  return static_cast<float>(lower);
}
template <typename Small>
float upper_of_pair(unsigned both) {
  return lower_of_pair<Small>(both >> 16);
}

inline unsigned round_to_tensor_float32(float value) {
  const unsigned bits = __float_as_uint(value);
  return std::isfinite(value) ? (bits + 0x1000u) & ~0x1fffu : bits;
}

}  // namespace convswap
