#pragma once

// Draws random problems for an algorithm's kernels, runs the kernels on the CPU and compares the results with
// float64 references.

#include "conv/problem.h"
#include "draws.h"
#include "plan/algorithm.h"

namespace convswap {

// A small card, so that problems need several tiles and passes.
Device draw_device(Random& random);

// Which values are drawn: `normal` only normally distributed numbers, `any` also wide ranges, infinities and
// NaNs.
enum class Values { any, normal };

// Runs a plan, half of the time with weights that are prepared beforehand. Throws std::logic_error after a
// write behind the scratch memory.
void run_plan(const Plan& plan, const ConvTensors& tensors, Random& random);

// True if the offer's plan computes a float32 problem correctly on drawn values; prints errors.
bool computes_float32(const Offer& offer, const ConvProblem& problem, Random& random, Values values);

// Makes a problem one of codes, with drawn zero points and scales.
void make_quantised(ConvProblem& problem, Random& random);

// True if the offer's plan computes drawn codes exactly as the CPU does; prints errors, and the plan if
// `prints_plan` is set.
bool check_quantised(const Offer& offer, const ConvProblem& problem, Random& random, bool prints_plan);

// Checks an algorithm on one problem per seed. `arguments` of main: FIRST END, and optionally "every-tiling"
// (checks each tiling that the algorithm chooses among) or "plans" (prints each problem and its plan, and
// computes nothing). Prints errors, the plan if there is a single seed, and finally the number of correct
// problems. Returns main's exit status.
int check_seeds(const Algorithm& algorithm, int count, char** arguments);

}  // namespace convswap
