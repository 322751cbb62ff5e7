#pragma once

#include "conv/small_floats.h"

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

}  // namespace convswap
