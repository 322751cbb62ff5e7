#include "cuda/host/activation_cost.h"

#include "cuda/host/following.h"

namespace convswap {

double activation_cycles(const Epilogue& epilogue) {
  if (only_limits(epilogue)) return 0;
  constexpr double kSiLU = 17, kHardSwish = 13, kCalled = 115;
  switch (epilogue.activation) {
    case Activation::silu:
      return kSiLU;
    case Activation::hard_swish:
      return kHardSwish;
    default:
      return kCalled;
  }
}

}  // namespace convswap
