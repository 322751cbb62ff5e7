#pragma once

#include "conv/epilogue.h"

namespace convswap {

// Epilogue parameters of a kernel. Activations that only clamp (ReLU, Clip) are two bounds, so that the
// kernel does not branch on their kind.
struct EpilogueParams {
  Epilogue epilogue;
  bool only_clamps;  // the activation is min(max(value, lower), upper)
  float lower, upper;
};

}  // namespace convswap
