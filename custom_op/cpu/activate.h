#pragma once

#include "conv/epilogue_math.h"
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

}  // namespace convswap
