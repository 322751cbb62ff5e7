#pragma once

// The activations with an exponential, in arithmetic for one float or for vectors of them: the standard
// library's are calls, one value each. At most 3 units in the last place off where e^x is from 2^-125 to
// 2^127, beyond which it ends somewhat sooner than float32 does; NaN stays NaN.
//
// As position_lanes_kernel.h, this header is compiled once per instruction set, and what it defines is each
// file's own: the linker might keep a copy that only the newest processors can run.

#include <cstdint>

#include "cpu/lanes.h"

namespace convswap {

// The activations that take arithmetic enough to be worth all of a processor's vectors, in place.
struct ActivationKernels {
  void (*tanh)(float* values, int64_t count);
  void (*sigmoid)(float* values, int64_t count);
  void (*silu)(float* values, int64_t count);
  void (*hard_swish)(float* values, int64_t count);
};

namespace {

// The signed whole numbers that are as many, and as large, as the floats of V.
template <typename V>
struct WholeOf {
  typedef decltype(V{} < V{}) Type;
};
template <>
struct WholeOf<float> {
  typedef int32_t Type;
};

// Of one float and of every lane.
template <typename V>
inline V each(float value) {
  return V{} + value;
}

// e^x = 2^n e^r with n = x / ln 2 rounded and |r| at most ln 2 / 2, for which the polynomial is that of expf
// in Moshier's Cephes library. Beyond what float32 holds it is the least or the most there is.
template <typename V>
inline V vector_exp(V x) {
  typedef typename WholeOf<V>::Type Whole;
  constexpr float kLeast = -87.0f, kMost = 89.0f;
  constexpr float kPerLog2 = 1.44269504f, kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
  // Adding it leaves a whole number in the lowest bits, and subtracting it that number.
  constexpr float kRounder = 12582912.0f;
  V within = x < kLeast ? each<V>(kLeast) : x;
  within = within > kMost ? each<V>(kMost) : within;
  const V shifted = within * kPerLog2 + kRounder;
  const V n = shifted - kRounder;
  const V r = (within - n * kLog2High) - n * kLog2Low;
  V p = each<V>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const V e_to_r = p * r * r + r + 1.0f;
  // The bits of NaN mean nothing, and are multiplied by NaN.
  const Whole exponent = __builtin_bit_cast(Whole, shifted) - __builtin_bit_cast(int32_t, kRounder) + 127;
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

// Where 1 - 2 / (e^2x + 1) would cancel, the polynomial of Cephes' tanhf.
template <typename V>
inline V vector_tanh(V x) {
  const V size = x < 0.0f ? -x : x;
  const V square = x * x;
  V p = each<V>(-5.70498872745e-3f);
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const V near_zero = p * square * x + x;
  const V far = 1.0f - 2.0f / (vector_exp<V>(2.0f * size) + 1.0f);
  const V far_of_sign = x < 0.0f ? -far : far;
  return size < 0.625f ? near_zero : far_of_sign;
}

template <typename V>
inline V vector_hard_swish(V x) {
  V gate = x * (1.0f / 6.0f) + 0.5f;
  gate = gate < 0.0f ? each<V>(0.0f) : gate;
  gate = gate > 1.0f ? each<V>(1.0f) : gate;
  return x * gate;
}

template <int kLanes, auto kFunction>
void activate_lanes(float* values, int64_t count) {
  typedef Lanes<kLanes> L;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) L::store(values + i, kFunction(L::load(values + i)));
  if (i == count) return;
  const Part<kLanes> rest(0, count - i);
  rest.store(values + i, kFunction(rest.load(values + i)));
}

template <int kLanes>
constexpr ActivationKernels activation_kernels_for() {
  typedef typename Lanes<kLanes>::Vector Vector;
  return {activate_lanes<kLanes, vector_tanh<Vector>>, activate_lanes<kLanes, vector_sigmoid<Vector>>,
          activate_lanes<kLanes, vector_silu<Vector>>, activate_lanes<kLanes, vector_hard_swish<Vector>>};
}

}  // namespace
}  // namespace convswap
