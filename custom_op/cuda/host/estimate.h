#pragma once

#include <cstdint>

#include "cuda/host/arguments.h"

namespace convswap {

// For formulas of costs.
inline double number(int64_t value) { return static_cast<double>(value); }

// The cycles that a scheduler takes for the activations of a warp's results, by families that inline those of
// is_swish (cuda/epilogue/activations.cuh): fitted to sliding_rows on an H200, as is a call. Nothing for what
// only limits: kernels do that whatever they compute.
inline double activation_cycles(const Epilogue& epilogue) {
  if (only_clamps(epilogue)) return 0;
  constexpr double kSiLU = 17, kHardSwish = 13, kCalled = 115;
  switch (epilogue.activation) {
    case Activation::silu:
      return kSiLU;
    case Activation::hard_swish:
      return kHardSwish;
    default:
      return kCalled;
  }
}

}  // namespace convswap
