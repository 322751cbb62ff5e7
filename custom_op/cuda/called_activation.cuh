#pragma once

#include "conv/epilogue_math.h"

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

}  // namespace convswap
