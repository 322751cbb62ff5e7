#pragma once

// The activations with an exponential, in float arithmetic that a compiler turns into vector instructions;
// the standard library's are calls, one value each. At most 3 units in the last place off where e^x is from
// 2^-125 to 2^127, beyond which it ends somewhat sooner than float32 does; NaN stays NaN.

#include <bit>
#include <cstdint>

#include "conv/epilogue_math.h"

namespace convswap {

// e^x = 2^n e^r with n = x / ln 2 rounded and |r| at most ln 2 / 2, for which the polynomial is that of expf
// in Moshier's Cephes library. Beyond what float32 holds it is the least or the most there is.
inline float vector_exp(float x) {
  constexpr float kLeast = -87.0f, kMost = 89.0f;
  constexpr float kPerLog2 = 1.44269504f, kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
  // Adding it leaves a whole number in the lowest bits, and subtracting it that number.
  constexpr float kRounder = 12582912.0f;
  const float within = x < kLeast ? kLeast : x > kMost ? kMost : x;
  const float shifted = within * kPerLog2 + kRounder;
  const float n = shifted - kRounder;
  const float r = (within - n * kLog2High) - n * kLog2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e_to_r = p * r * r + r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRounder) + 127u;
  return e_to_r * std::bit_cast<float>(exponent << 23);
}

inline float vector_sigmoid(float x) { return 1.0f / (1.0f + vector_exp(-x)); }

// Where 1 - 2 / (e^2x + 1) would cancel, the polynomial of Cephes' tanhf.
inline float vector_tanh(float x) {
  const float size = x < 0 ? -x : x;
  const float square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float near_zero = p * square * x + x;
  const float far = 1.0f - 2.0f / (vector_exp(2.0f * size) + 1.0f);
  return size < 0.625f ? near_zero : x < 0 ? -far : far;
}

// activate(), where these serve.
template <Activation kActivation>
inline float vector_activate(float alpha, float beta, float x) {
  if constexpr (kActivation == Activation::tanh) return vector_tanh(x);
  if constexpr (kActivation == Activation::sigmoid) return vector_sigmoid(x);
  if constexpr (kActivation == Activation::silu) return x * vector_sigmoid(x);
  return activate(kActivation, alpha, beta, x);
}

}  // namespace convswap
