#pragma once

#include "cuda_emulation.h"

namespace convswap {

inline unsigned round_to_tensor_float32(float value) {
  const unsigned bits = __float_as_uint(value);
  return std::isfinite(value) ? (bits + 0x1000u) & ~0x1fffu : bits;
}

}  // namespace convswap
