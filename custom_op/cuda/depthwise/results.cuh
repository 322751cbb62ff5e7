#pragma once

// Results from sums: residual, activation, and out they go.

#include "cuda/depthwise/arguments.h"
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/global_memory.cuh"

namespace convswap::depthwise {

template <typename T>
struct Results {
  const Arguments<T>& a;
  unsigned long long y;  // the address of a strip's first output
  const T* z;            // the same of the residual; null where there is none

  __device__ Results(const Arguments<T>& arguments, long long first)
      : a(arguments), y(global_address(a.y + first)), z(a.z == nullptr ? nullptr : a.z + first) {}

  // `offset`: from the first.
  __device__ void write(float sum, int offset) const {
    float values[] = {sum};
    float& value = values[0];
    if (z != nullptr) value += static_cast<float>(z[offset]);
    finish_values(a.following, values);
    const unsigned long long to = y + static_cast<long long>(offset) * int(sizeof(T));
    if constexpr (kAreSame<T, float>) {
      store_global_if(1, to, __float_as_uint(value));
    } else {
      store_global_if(1, to, T(value).bits);
    }
  }
};

}  // namespace convswap::depthwise
