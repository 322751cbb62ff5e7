#pragma once

// Kernel arguments made from a problem.

#include <cstddef>

#include "conv/problem.h"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/naive_quantised_conv.h"
#include "cuda/primitives/nhwc_conv.h"
#include "cuda/primitives/requantise.h"
#include "plan/algorithm.h"

namespace convswap {

// Converts a size that the algorithm has checked to fit into 32 bits.
inline int narrow(int64_t value) { return static_cast<int>(value); }

// Geometry of a problem. It has no sizes along a depth axis, but its planes include the depth. Sizes that the
// family's kernels read must fit into 32 bits.
Geometry geometry_of(const ConvProblem& problem);

// True if `data` is aligned for one load or store of `elements` elements.
bool is_aligned(const void* data, const ConvProblem& problem, int elements);

// True if the addresses of x, y and the residual are multiples of `bytes`.
bool are_aligned(const ConvTensors& tensors, std::size_t bytes);

inline Tensors<void> tensors_of(const ConvTensors& tensors, const Execution& execution) {
  return {tensors.x, tensors.w, tensors.b, tensors.z, tensors.y, execution.weights_are_constant};
}

NaiveConv naive_conv_of(const ConvProblem& problem);

// The arguments without the tensors, and the tensors.
NaiveQuantisedConv naive_quantised_conv_of(const ConvProblem& problem);
void bind_tensors(const ConvTensors& tensors, NaiveQuantisedConv& conv);

StepLimits step_limits_of(const ConvProblem& problem);
CodeResults code_results_of(const ConvProblem& problem);
// Without vectors.
Requantisation requantisation_of(const ConvProblem& problem);

// Sizes must fit into 32 bits.
NhwcConv nhwc_conv_of(const ConvProblem& problem);

EpilogueParams epilogue_params_of(const Epilogue& epilogue);

// True if the activation only clamps.
inline bool only_clamps(const Epilogue& epilogue) { return epilogue_params_of(epilogue).only_clamps; }

}  // namespace convswap
