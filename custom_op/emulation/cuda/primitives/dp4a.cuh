#pragma once

#include "conv/quantization.h"
#include "cuda_emulation.h"

namespace convswap {

template <typename X>
int dp4a(unsigned x, unsigned w, int sum) {
  for (int byte = 0; byte < 4; ++byte) {
    sum += static_cast<X>(x >> 8 * byte & 0xff) * static_cast<Int8>(w >> 8 * byte & 0xff);
  }
  return sum;
}

}  // namespace convswap
