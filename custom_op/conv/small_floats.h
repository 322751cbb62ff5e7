#pragma once

#include "conv/host_device.h"

namespace convswap {

// The 16-bit floating-point types as stored, with conversions to and from float. The card has instructions
// for them; elsewhere they are integer arithmetic, since the host compiler may have neither type. Rounding is
// to nearest, ties to even; NaN stays NaN.

// IEEE binary16: 1 sign, 5 exponent, 10 mantissa bits.
struct Float16 {
  unsigned short bits;

  Float16() = default;
  CONVSWAP_HOST_DEVICE explicit Float16(float value);
  CONVSWAP_HOST_DEVICE explicit operator float() const;
};

// The upper half of a float: 1 sign, 8 exponent, 7 mantissa bits.
struct BFloat16 {
  unsigned short bits;

  BFloat16() = default;
  CONVSWAP_HOST_DEVICE explicit BFloat16(float value);
  CONVSWAP_HOST_DEVICE explicit operator float() const;
};

// Converts the bits of a float to those of a bfloat16. A carry out of the mantissa correctly raises the
// exponent.
CONVSWAP_HOST_DEVICE inline unsigned rounded_to_bfloat16(unsigned bits) {
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;  // the NaN that the card returns
  const unsigned is_odd = bits >> 16 & 1;
  return (bits + 0x7fff + is_odd) >> 16;
}

#ifdef __CUDA_ARCH__
inline __host__ __device__ Float16::Float16(float value) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
}

inline __host__ __device__ Float16::operator float() const {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

inline __host__ __device__ BFloat16::BFloat16(float value) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
  bits = static_cast<unsigned short>(rounded_to_bfloat16(__float_as_uint(value)));
#endif
}

inline __host__ __device__ BFloat16::operator float() const {
#if __CUDA_ARCH__ >= 900
  float value;
  asm("cvt.f32.bf16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
#endif
}
#endif

}  // namespace convswap
