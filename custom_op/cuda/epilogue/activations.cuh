#pragma once

#include "conv/epilogue_math.h"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/nan_min_max.cuh"

namespace convswap {

// An activation by a call. Inlined where results are written, the formulas of all activations take the
// compiler longer than all else of a kernel. What it needs is passed: behind a reference it would be loaded
// each time.
__device__ __noinline__ inline float called_activation(Activation activation, float alpha, float beta,
                                                       float value) {
  return activate<float>(activation, alpha, beta, value);
}
__device__ inline float activated(const Epilogue& epilogue, float value) {
  return called_activation(epilogue.activation, epilogue.alpha, epilogue.beta, value);
}

template <Activation kActivation, int kCount>
__device__ inline void activate_inlined(const Epilogue& epilogue, float (&values)[kCount]) {
#pragma unroll
  for (float& value : values) value = activate<float>(kActivation, epilogue.alpha, epilogue.beta, value);
}

// Activates all values, without a call where the activation is one of kInlined: a call takes longer than most
// formulas.
template <Activation... kInlined, int kCount>
__device__ inline void activate_values(const Epilogue& epilogue, float (&values)[kCount]) {
  if (((epilogue.activation == kInlined && (activate_inlined<kInlined>(epilogue, values), true)) || ...))
    return;
#pragma unroll
  for (float& value : values) value = activated(epilogue, value);
}

// What is_swish is true of.
template <int kCount>
__device__ inline void activate_swish(const Epilogue& epilogue, float (&values)[kCount]) {
  if (epilogue.activation == Activation::silu) {
    activate_inlined<Activation::silu>(epilogue, values);
  } else {
    activate_inlined<Activation::hard_swish>(epilogue, values);
  }
}

template <int kCount>
__device__ inline void limit_values(const EpilogueParams& following, float (&values)[kCount]) {
#pragma unroll
  for (float& value : values) value = min_nan(max_nan(value, following.least), following.most);
}

// Where values are many, and nothing follows but what limits and what is_swish is true of: asks once which,
// and calls `for_each` with what does it to some of them.
template <typename ForEach>
__device__ inline void finish_many(const EpilogueParams& following, ForEach for_each) {
  if (following.only_clamps) {
    for_each([&](auto& values) { limit_values(following, values); });
  } else if (following.epilogue.activation == Activation::silu) {
    for_each([&](auto& values) { activate_inlined<Activation::silu>(following.epilogue, values); });
  } else {
    for_each([&](auto& values) { activate_inlined<Activation::hard_swish>(following.epilogue, values); });
  }
}

// Whatever activation follows.
template <int kCount>
__device__ inline void finish_values(const EpilogueParams& following, float (&values)[kCount]) {
  if (following.only_clamps) {
    limit_values(following, values);
  } else {
    activate_values<Activation::silu, Activation::hard_swish>(following.epilogue, values);
  }
}

}  // namespace convswap
