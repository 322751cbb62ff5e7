#pragma once

#include <cstdint>

#include "cuda/host/arguments.h"

namespace convswap {

// Converts an integer to double for the cost formulas.
inline double to_double(int64_t value) { return static_cast<double>(value); }

// Scheduler cycles for the activations of one warp's results, in families that inline the activations of
// is_swish (cuda/epilogue/activations.cuh). Inlined activations and calls were fitted to sliding_rows on an
// H200. Clamping costs nothing extra: kernels always clamp.
inline double activation_cycles(const Epilogue& epilogue) {
  if (only_clamps(epilogue)) return 0;
  constexpr double kSiLU = 17, kHardSwish = 13, kFunctionCall = 115;
  switch (epilogue.activation) {
    case Activation::silu:
      return kSiLU;
    case Activation::hard_swish:
      return kHardSwish;
    default:
      return kFunctionCall;
  }
}

}  // namespace convswap
