#pragma once

// Vectorised activations: tanh, sigmoid, SiLU and HardSwish of one float or of a vector of floats. They
// replace the standard library's functions, which are a call per value. The error is at most 3 ulp if e^x is
// between 2^-125 and 2^127. Beyond that range e^x saturates, somewhat earlier than in float32. NaN stays NaN.
//
// Like position_lanes_kernel.h, this header is compiled once per instruction set. Its functions have internal
// linkage: of shared ones the linker might keep a copy that only the newest processors can run.

#include <cstdint>

#include "cpu/lanes.h"

namespace convswap {

// Activations compiled for the widest vectors of each instruction set. They work in place.
struct ActivationKernels {
  void (*tanh)(float* values, int64_t count);
  void (*sigmoid)(float* values, int64_t count);
  void (*silu)(float* values, int64_t count);
  void (*hard_swish)(float* values, int64_t count);
};

namespace {

// The int32_t type with as many lanes as V.
template <typename V>
struct IntegersOf {
  typedef decltype(V{} < V{}) Type;
};
template <>
struct IntegersOf<float> {
  typedef int32_t Type;
};

// Returns V with `value` in every lane.
template <typename V>
inline V broadcast(float value) {
  return V{} + value;
}

// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln 2 / 2. The polynomial for e^r is that of expf in
// Moshier's Cephes library. x is clamped to [kMinInput, kMaxInput].
template <typename V>
inline V vector_exp(V x) {
  typedef typename IntegersOf<V>::Type Integers;
  constexpr float kMinInput = -87.0f, kMaxInput = 89.0f;
  constexpr float kPerLog2 = 1.44269504f, kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
  // 1.5 * 2^23. Adding it rounds to an integer in the low mantissa bits; subtracting it again gives that
  // integer as a float.
  constexpr float kRoundToInteger = 12582912.0f;
  V clamped = x < kMinInput ? broadcast<V>(kMinInput) : x;
  clamped = clamped > kMaxInput ? broadcast<V>(kMaxInput) : clamped;
  const V shifted = clamped * kPerLog2 + kRoundToInteger;
  const V n = shifted - kRoundToInteger;
  const V r = (clamped - n * kLog2High) - n * kLog2Low;
  V p = broadcast<V>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const V e_to_r = p * r * r + r + 1.0f;
  // For a NaN the exponent is meaningless, but e_to_r is NaN.
  const Integers exponent =
      __builtin_bit_cast(Integers, shifted) - __builtin_bit_cast(int32_t, kRoundToInteger) + 127;
  return e_to_r * __builtin_bit_cast(V, exponent << 23);
}

template <typename V>
inline V vector_sigmoid(V x) {
  return 1.0f / (1.0f + vector_exp<V>(-x));
}

template <typename V>
inline V vector_silu(V x) {
  return x * vector_sigmoid<V>(x);
}

// Uses the polynomial of Cephes' tanhf near zero, where 1 - 2 / (e^2x + 1) would cancel.
template <typename V>
inline V vector_tanh(V x) {
  const V magnitude = x < 0.0f ? -x : x;
  const V square = x * x;
  V p = broadcast<V>(-5.70498872745e-3f);
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const V near_zero = p * square * x + x;
  const V tail = 1.0f - 2.0f / (vector_exp<V>(2.0f * magnitude) + 1.0f);
  const V signed_tail = x < 0.0f ? -tail : tail;
  return magnitude < 0.625f ? near_zero : signed_tail;
}

template <typename V>
inline V vector_hard_swish(V x) {
  V gate = x * (1.0f / 6.0f) + 0.5f;
  gate = gate < 0.0f ? broadcast<V>(0.0f) : gate;
  gate = gate > 1.0f ? broadcast<V>(1.0f) : gate;
  return x * gate;
}

template <int kLanes, auto kFunction>
void activate_lanes(float* values, int64_t count) {
  typedef Lanes<kLanes> L;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) L::store(values + i, kFunction(L::load(values + i)));
  if (i == count) return;
  const LaneMask<kLanes> mask(0, count - i);
  mask.store(values + i, kFunction(mask.load(values + i)));
}

template <int kLanes>
constexpr ActivationKernels activation_kernels_for() {
  typedef typename Lanes<kLanes>::Vector Vector;
  return {activate_lanes<kLanes, vector_tanh<Vector>>, activate_lanes<kLanes, vector_sigmoid<Vector>>,
          activate_lanes<kLanes, vector_silu<Vector>>, activate_lanes<kLanes, vector_hard_swish<Vector>>};
}

}  // namespace
}  // namespace convswap
