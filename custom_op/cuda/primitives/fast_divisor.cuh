#pragma once

#include "conv/host_device.h"

namespace convswap {

// Division by a number known only at run time, as one multiplication: n / d = floor(n * ceil(2^32 / d) /
// 2^32), exact while n * d < 2^32 (the error is below n / 2^32, which must stay below 1 / d). With d = 1 the
// factor does not fit into 32 bits, so factor 0 marks that divisor.
struct FastDivisor {
  unsigned divisor = 1;
  unsigned factor = 0;

  FastDivisor() = default;
  CONVSWAP_HOST_DEVICE explicit FastDivisor(unsigned d)
      : divisor(d), factor(d == 1 ? 0u : static_cast<unsigned>((0x100000000ull + d - 1) / d)) {}

  CONVSWAP_HOST_DEVICE unsigned quotient(unsigned n) const {
#ifdef __CUDA_ARCH__
    return factor == 0 ? n : __umulhi(n, factor);
#else
    return factor == 0 ? n : static_cast<unsigned>(static_cast<unsigned long long>(n) * factor >> 32);
#endif
  }

  // Exact for every n: if n * d is 2^32 or more, the multiplication is one too large at most.
  CONVSWAP_HOST_DEVICE unsigned quotient_of_any(unsigned n) const {
    const unsigned q = quotient(n);
    return q - (q * static_cast<unsigned long long>(divisor) > n ? 1u : 0u);
  }
};

// Divides `number` in place, and returns the remainder.
CONVSWAP_HOST_DEVICE inline int div_mod(int& number, FastDivisor divisor) {
  const int quotient = static_cast<int>(divisor.quotient_of_any(static_cast<unsigned>(number)));
  const int remainder = number - quotient * static_cast<int>(divisor.divisor);
  number = quotient;
  return remainder;
}

// True if `index` is at least 0 and below `extent`.
CONVSWAP_HOST_DEVICE inline bool is_inside(int index, int extent) {
  return static_cast<unsigned>(index) < static_cast<unsigned>(extent);
}

}  // namespace convswap
