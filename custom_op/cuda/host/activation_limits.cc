#include "cuda/host/activation_limits.h"

#include <limits>

namespace convswap {

ActivationLimits::ActivationLimits(const Epilogue& epilogue) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // With limits the wrong way round it matters which is applied first.
  const bool clips = epilogue.activation == Activation::clip && epilogue.alpha <= epilogue.beta;
  are_all = clips || is_floored(epilogue);
  least = clips ? epilogue.alpha : epilogue.activation == Activation::relu ? 0.0f : -kInfinity;
  most = clips ? epilogue.beta : kInfinity;
}

}  // namespace convswap
