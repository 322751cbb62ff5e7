#pragma once

#include "conv/epilogue_math.h"

namespace convswap {

// Calls `call` with the activation as a compile-time constant, so that a loop does not branch on it.
template <typename Call>
CONVSWAP_HOST_DEVICE inline void with_activation(Activation activation, Call call) {
  switch (activation) {
    case Activation::none:
      return call(Constant<Activation::none>());
    case Activation::relu:
      return call(Constant<Activation::relu>());
    case Activation::leaky_relu:
      return call(Constant<Activation::leaky_relu>());
    case Activation::clip:
      return call(Constant<Activation::clip>());
    case Activation::tanh:
      return call(Constant<Activation::tanh>());
    case Activation::sigmoid:
      return call(Constant<Activation::sigmoid>());
    case Activation::hard_sigmoid:
      return call(Constant<Activation::hard_sigmoid>());
    case Activation::hard_swish:
      return call(Constant<Activation::hard_swish>());
    case Activation::silu:
      return call(Constant<Activation::silu>());
    case Activation::gelu:
      return call(Constant<Activation::gelu>());
    case Activation::gelu_tanh:
      return call(Constant<Activation::gelu_tanh>());
    case Activation::elu:
      return call(Constant<Activation::elu>());
  }
}

}  // namespace convswap
