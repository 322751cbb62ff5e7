#pragma once

#include "conv/problem.h"
#include "cuda/geometry.h"
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
  return {tensors.x, tensors.w, tensors.b, tensors.z, tensors.y, execution.weights_stay};
}

}  // namespace convswap
