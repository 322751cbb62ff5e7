#pragma once

// What plans tell kernels of a problem.

#include "conv/problem.h"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"
#include "plan/algorithm.h"

namespace convswap {

// Numbers that an algorithm has found to fit into 32 bits.
inline int narrow(int64_t value) { return static_cast<int>(value); }

// Of a problem with one or two spatial axes whose sizes fit into 32 bits; those that no kernel of an
// algorithm reads need not.
Geometry geometry_of(const ConvProblem& problem);

// Whether so many of the problem's elements that begin at `data` are one aligned load or store.
bool is_aligned(const void* data, const ConvProblem& problem, int elements);

inline Tensors<void> tensors_of(const ConvTensors& tensors, const Execution& execution) {
  return {tensors.x, tensors.w, tensors.b, tensors.z, tensors.y, execution.weights_are_constant};
}

NaiveConv naive_conv_of(const ConvProblem& problem);

EpilogueParams epilogue_params_of(const Epilogue& epilogue);

// Whether its activation does nothing but limit.
inline bool only_clamps(const Epilogue& epilogue) { return epilogue_params_of(epilogue).only_clamps; }

}  // namespace convswap
