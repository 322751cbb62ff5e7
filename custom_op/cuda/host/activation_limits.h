#pragma once

#include "conv/epilogue.h"

namespace convswap {

// An activation that does nothing but limit, so that kernels need not ask what it is.
struct ActivationLimits {
  bool are_all;  // whether it is one
  float least, most;

  explicit ActivationLimits(const Epilogue& epilogue);
};

}  // namespace convswap
