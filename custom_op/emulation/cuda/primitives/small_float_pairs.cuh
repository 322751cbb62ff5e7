#pragma once

#include "conv/small_floats.h"

namespace convswap {

template <typename Small>
unsigned pack_rounded(float first, float second) {
  return Small(first).bits | static_cast<unsigned>(Small(second).bits) << 16;
}
template <typename Small>
float unpack_low(unsigned word) {
  Small lower;
  lower.bits = static_cast<unsigned short>(word);
  return static_cast<float>(lower);
}
template <typename Small>
float unpack_high(unsigned word) {
  return unpack_low<Small>(word >> 16);
}

}  // namespace convswap
