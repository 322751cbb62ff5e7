#pragma once

#include <cstdint>

namespace convswap {

// The 16-bit floating types as stored, converted to and from float in plain integer arithmetic: this must
// build with compilers that have neither type. Rounding is to nearest, ties to even; NaN stays NaN.

// IEEE binary16: 1 sign, 5 exponent, 10 mantissa bits.
struct Float16 {
  uint16_t bits;

  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};

// The upper half of a float: 1 sign, 8 exponent, 7 mantissa bits.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value);
  explicit operator float() const;
};

}  // namespace convswap
