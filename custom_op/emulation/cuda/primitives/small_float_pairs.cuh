#pragma once

#include "conv/small_floats.h"

namespace convswap {

template <typename Small>
unsigned pack_rounded(float first, float second) {
  return Small(first).bits | static_cast<unsigned>(Small(second).bits) << 16;
}
template <typename Small>
float unpack_low(unsigned both) {
  Small lower;
  lower.bits = static_cast<unsigned short>(both);
  return static_cast<float>(lower);
}
template <typename Small>
float unpack_high(unsigned both) {
  return unpack_low<Small>(both >> 16);
}

}  // namespace convswap
