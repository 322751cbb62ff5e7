#pragma once

#include <algorithm>

namespace convswap {

inline unsigned pack_saturated(const int (&numbers)[4]) {
  unsigned word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<unsigned>(std::clamp(numbers[i], 0, 255)) << 8 * i;
  return word;
}

}  // namespace convswap
