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

// Instructions that turn an int32 sum into a code and store the code, by the SASS of channels_last_mma for
// compute capability 9.0 (tiles of 128 x 128); 0 for numbers.
inline double instructions_of_code(const ConvProblem& problem) {
  if (!problem.is_quantised()) return 0;
  const double limiting = step_limits_of(problem).are_narrower ? 2 : 0;
  switch (code_results_of(problem)) {
    case CodeResults::scaled:
      return limiting + 6;
    case CodeResults::shifted:
      return limiting + 7;
    case CodeResults::residual:
      return limiting + 14;
    case CodeResults::rounded:
      return limiting + 19;
    case CodeResults::tabled:
      return 11;
    case CodeResults::any:
      // From a time: a loop of dependent instructions, by one thread for each four codes.
      return 64;
  }
  return 0;
}

}  // namespace convswap
