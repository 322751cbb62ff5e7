#pragma once

#include "conv/epilogue_math.h"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/nan_min_max.cuh"

namespace convswap {

// An activation as a function call. Inlining the formulas of all activations where results are written takes
// the compiler longer than the rest of the kernel. Parameters are passed by value: behind a reference they
// would be loaded for each call.
__device__ __noinline__ inline float activate_out_of_line(Activation activation, float alpha, float beta,
                                                          float value) {
  return activate<float>(activation, alpha, beta, value);
}
__device__ inline float activated(const Epilogue& epilogue, float value) {
  return activate_out_of_line(epilogue.activation, epilogue.alpha, epilogue.beta, value);
}

template <Activation kActivation, int kCount>
__device__ inline void activate_inlined(const Epilogue& epilogue, float (&values)[kCount]) {
#pragma unroll
  for (float& value : values) value = activate<float>(kActivation, epilogue.alpha, epilogue.beta, value);
}

// Activates all values. The activations of kInlined are inlined, since a call takes longer than most
// formulas.
template <Activation... kInlined, int kCount>
__device__ inline void activate_values(const Epilogue& epilogue, float (&values)[kCount]) {
  if (((epilogue.activation == kInlined && (activate_inlined<kInlined>(epilogue, values), true)) || ...))
    return;
#pragma unroll
  for (float& value : values) value = activated(epilogue, value);
}

// Applies an activation that satisfies is_swish.
template <int kCount>
__device__ inline void activate_swish(const Epilogue& epilogue, float (&values)[kCount]) {
  if (epilogue.activation == Activation::silu) {
    activate_inlined<Activation::silu>(epilogue, values);
  } else {
    activate_inlined<Activation::hard_swish>(epilogue, values);
  }
}

template <int kCount>
__device__ inline void clamp_values(const EpilogueParams& params, float (&values)[kCount]) {
#pragma unroll
  for (float& value : values) value = min_nan(max_nan(value, params.lower), params.upper);
}

// Dispatches once on the activation, for many values, and calls `for_each` with the functor that applies the
// activation to an array of values. The activation must clamp or satisfy is_swish.
template <typename ForEach>
__device__ inline void dispatch_activation(const EpilogueParams& params, ForEach for_each) {
  if (params.only_clamps) {
    for_each([&](auto& values) { clamp_values(params, values); });
  } else if (params.epilogue.activation == Activation::silu) {
    for_each([&](auto& values) { activate_inlined<Activation::silu>(params.epilogue, values); });
  } else {
    for_each([&](auto& values) { activate_inlined<Activation::hard_swish>(params.epilogue, values); });
  }
}

// The same for any activation.
template <typename ForEach>
__device__ inline void dispatch_any_activation(const EpilogueParams& params, ForEach for_each) {
  const Epilogue& epilogue = params.epilogue;
  if (params.only_clamps || is_swish(epilogue)) {
    dispatch_activation(params, for_each);
  } else if (epilogue.activation == Activation::gelu) {
    for_each([&](auto& values) { activate_inlined<Activation::gelu>(epilogue, values); });
  } else {
    for_each([&](auto& values) { activate_values(epilogue, values); });
  }
}

template <int kCount>
__device__ inline void apply_activation(const EpilogueParams& params, float (&values)[kCount]) {
  dispatch_any_activation(params, [&](auto activate) { activate(values); });
}

}  // namespace convswap
