#include "conv/small_floats.h"

#include <bit>

namespace convswap {
namespace {

constexpr uint32_t kInfinity = 0x7f800000;  // of a float
constexpr uint32_t kNotANumber = 0x7fff;    // the NaN that the card returns

// Drops the low `count` bits of a magnitude, rounding to nearest, ties to even.
uint32_t drop_bits(uint32_t magnitude, int count) {
  const uint32_t half = uint32_t{1} << (count - 1);
  const uint32_t is_odd = magnitude >> count & 1;
  return (magnitude + half - 1 + is_odd) >> count;
}

}  // namespace

Float16::Float16(float value) {
  const uint32_t float_bits = std::bit_cast<uint32_t>(value);
  uint32_t sign = float_bits >> 16 & 0x8000;
  const uint32_t magnitude = float_bits & 0x7fffffff;
  constexpr uint32_t kSmallestNormal = 113u << 23;  // 2^-14
  constexpr uint32_t kTooLarge = 143u << 23;        // 2^16
  uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = kNotANumber, sign = 0;
  } else if (magnitude >= kTooLarge) {
    half = 0x7c00;
  } else if (magnitude >= kSmallestNormal) {
    // The rebased exponent and the mantissa round as one number, so carries propagate correctly.
    half = drop_bits(magnitude - (112u << 23), 13);
  } else if (const uint32_t exponent = magnitude >> 23; exponent >= 102) {
    // Below 2^-14 the mantissa, with its leading one, counts units of 2^-24.
    half = drop_bits((magnitude & 0x7fffff) | 0x800000, 126 - static_cast<int>(exponent));
  }
  bits = static_cast<uint16_t>(sign | half);
}

Float16::operator float() const {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | kInfinity | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

BFloat16::BFloat16(float value)
    : bits(static_cast<uint16_t>(rounded_to_bfloat16(std::bit_cast<uint32_t>(value)))) {}

BFloat16::operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace convswap
