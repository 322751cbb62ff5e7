#pragma once

#include <type_traits>

#include "conv/epilogue_math.h"

namespace convswap {

template <Activation kActivation>
using ActivationConstant = std::integral_constant<Activation, kActivation>;

// Calls back with the activation as a constant of the compiler, so that a loop does not ask for it at each
// step.
template <typename Call>
CONVSWAP_ANYWHERE inline void with_activation(Activation activation, Call call) {
  switch (activation) {
    case Activation::none:
      return call(ActivationConstant<Activation::none>());
    case Activation::relu:
      return call(ActivationConstant<Activation::relu>());
    case Activation::leaky_relu:
      return call(ActivationConstant<Activation::leaky_relu>());
    case Activation::clip:
      return call(ActivationConstant<Activation::clip>());
    case Activation::tanh:
      return call(ActivationConstant<Activation::tanh>());
    case Activation::sigmoid:
      return call(ActivationConstant<Activation::sigmoid>());
    case Activation::hard_sigmoid:
      return call(ActivationConstant<Activation::hard_sigmoid>());
    case Activation::hard_swish:
      return call(ActivationConstant<Activation::hard_swish>());
    case Activation::silu:
      return call(ActivationConstant<Activation::silu>());
    case Activation::gelu:
      return call(ActivationConstant<Activation::gelu>());
    case Activation::gelu_tanh:
      return call(ActivationConstant<Activation::gelu_tanh>());
    case Activation::elu:
      return call(ActivationConstant<Activation::elu>());
  }
}

}  // namespace convswap
