#pragma once

#include <cstdint>

#include "cpu/lanes.h"
#include "cpu/vector_math.h"

// As position_lanes_kernel.h, this header is compiled once per instruction set, and includes nothing that
// defines an inline function that other files share.

namespace convswap {

// The activations that take arithmetic enough to be worth all of a processor's vectors, in place.
struct ActivationKernels {
  void (*tanh)(float* values, int64_t count);
  void (*sigmoid)(float* values, int64_t count);
  void (*silu)(float* values, int64_t count);
  void (*hard_swish)(float* values, int64_t count);
};

namespace {

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
