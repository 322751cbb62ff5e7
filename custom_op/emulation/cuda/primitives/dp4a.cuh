#pragma once

#include "conv/quantization.h"
#include "cuda_emulation.h"

namespace convswap {

template <typename X>
[[gnu::always_inline]] inline int dp4a(unsigned x, unsigned w, int sum) {
  const X* const a = reinterpret_cast<const X*>(&x);
  const Int8* const b = reinterpret_cast<const Int8*>(&w);
  return sum + a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
}

}  // namespace convswap
