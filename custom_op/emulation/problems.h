#pragma once

// Draws problems for an algorithm's kernels on the CPU, and compares what they compute with float64 sums.

#include <random>

#include "conv/problem.h"
#include "plan/algorithm.h"

namespace convswap {

using Random = std::mt19937;

inline int64_t between(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}
inline bool one_in(Random& random, int count) { return between(random, 1, count) == 1; }

// Small cards, so that problems are cut into tiles and passes.
Device draw_device(Random& random);

// What is drawn beside ordinary numbers.
enum class Values { any, normal };

// Whether what is offered computes a problem of float32 with values that are drawn; prints what is wrong.
bool computes_float32(const Offer& offer, const ConvProblem& problem, Random& random, Values values);

// Draws a problem for each seed that the arguments name, FIRST and END, which the algorithm computes by what
// it offers, or, if they end with "every-tiling", by each of what it chooses among; prints what is wrong, of
// a single problem how it is planned, and last how many problems were right. If they end with "plans", prints
// each problem with its plan, and computes none. Returns what main returns.
int check_seeds(const Algorithm& algorithm, int count, char** arguments);

}  // namespace convswap
