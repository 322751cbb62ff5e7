#pragma once

#include "cuda/definition.h"
#include "cuda/geometry.h"

namespace convswap::naive {

template <typename T>
struct Arguments : Tensors<T> {
  Definition definition;
  long long outputs;  // elements of y
};

}  // namespace convswap::naive
