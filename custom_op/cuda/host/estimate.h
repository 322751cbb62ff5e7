#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "cuda/costs/cost_table.h"
#include "cuda/host/arguments.h"

namespace convswap {

// Converts an integer to double for the cost formulas.
inline double to_double(int64_t value) { return static_cast<double>(value); }

// Time of activities that overlap: nearly the longest of them, and more if others take about as long.
inline double overlapped(std::initializer_list<double> times) {
  double sum = 0;
  for (const double time : times) sum += time * time * time * time;
  return std::sqrt(std::sqrt(sum));
}

// Scheduler cycles for the activations of one warp's results, in families that inline the activations of
// is_swish (cuda/epilogue/activations.cuh).
inline double activation_cycles(const Epilogue& epilogue, const Costs& costs) {
  if (only_clamps(epilogue)) return 0;
  switch (epilogue.activation) {
    case Activation::silu:
      return costs.activation.silu;
    case Activation::hard_swish:
      return costs.activation.hard_swish;
    case Activation::gelu:
      return costs.activation.gelu;
    default:
      return costs.activation.call;
  }
}

// The same in nanoseconds.
inline double activation_nanoseconds(const Epilogue& epilogue, const Costs& costs) {
  return costs.activation.cycle * activation_cycles(epilogue, costs);
}

}  // namespace convswap
