#pragma once

#include "conv/epilogue.h"

namespace convswap {

// The cycles that a scheduler takes for the activations of a warp's results, by families that inline those of
// is_swish (cuda/activations.cuh): fitted to sliding_rows on an H200, as is a call. Nothing for what only
// limits: kernels do that whatever they compute.
double activation_cycles(const Epilogue& epilogue);

}  // namespace convswap
