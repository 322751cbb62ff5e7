#pragma once

#include <cstdint>

#include "conv/epilogue_math.h"
#include "conv/with_activation.h"
#include "cpu/activation_lanes.h"
#include "cpu/vector_math.h"

namespace convswap {

// activate(), by arithmetic where that has an exponential.
template <Activation kActivation>
inline float vector_activate(float alpha, float beta, float x) {
  if constexpr (kActivation == Activation::tanh) return vector_tanh(x);
  if constexpr (kActivation == Activation::sigmoid) return vector_sigmoid(x);
  if constexpr (kActivation == Activation::silu) return vector_silu(x);
  return activate(kActivation, alpha, beta, x);
}

// The kernel of an activation; null where there is none.
inline auto activation_kernel(const ActivationKernels& kernels, Activation activation) {
  switch (activation) {
    case Activation::tanh:
      return kernels.tanh;
    case Activation::sigmoid:
      return kernels.sigmoid;
    case Activation::silu:
      return kernels.silu;
    case Activation::hard_swish:
      return kernels.hard_swish;
    default:
      return static_cast<decltype(kernels.silu)>(nullptr);
  }
}

// In place, by the kernel where there is one.
inline void activate_row(const Epilogue& epilogue, Activation activation, const ActivationKernels& kernels,
                         int64_t columns, float* values) {
  if (const auto kernel = activation_kernel(kernels, activation); kernel != nullptr) {
    return kernel(values, columns);
  }
  with_activation(activation, [&](auto constant) {
    for (int64_t i = 0; i < columns; ++i) {
      values[i] = vector_activate<decltype(constant)::value>(epilogue.alpha, epilogue.beta, values[i]);
    }
  });
}

}  // namespace convswap
