#pragma once

#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_quantised_conv.h"

namespace convswap::quantised {

constexpr int kThreads = 256;

// X is the type of the codes of x. The tensors of `conv` count; those of Tensors are x, w and the like again.
template <typename X>
struct Arguments : Tensors<X> {
  NaiveQuantisedConv conv;
  long long outputs;  // elements of y
};

}  // namespace convswap::quantised
