#pragma once

#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"

namespace convswap::naive {

template <typename T>
struct Arguments : Tensors<T> {
  NaiveConv naive_conv;
  long long outputs;  // elements of y
};

}  // namespace convswap::naive
