#include "cuda/host/following.h"

#include <limits>

namespace convswap {

Following following_of(const Epilogue& epilogue) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool clips = epilogue.activation == Activation::clip;
  const float least = clips ? epilogue.alpha : epilogue.activation == Activation::relu ? 0.0f : -kInfinity;
  return {epilogue, clips || is_floored(epilogue), least, clips ? epilogue.beta : kInfinity};
}

}  // namespace convswap
