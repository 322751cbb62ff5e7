#pragma once

// Results from the sums of a lane: residual, activation, and out they go.

#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/conversions.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/sliding_rows/arguments.h"

namespace convswap::sliding_rows {

__device__ inline unsigned bits_of(float value) { return __float_as_uint(value); }
template <typename Small>
__device__ inline unsigned bits_of(Small value) {
  return value.bits;
}

// Two of 16 bits as they lie in memory.
template <typename Small>
__device__ inline unsigned pair_of(float first, float second) {
#if __CUDA_ARCH__ >= 800
  return rounded_pair<Small>(first, second);
#else
  return bits_of(Small(first)) | bits_of(Small(second)) << 16;
#endif
}

// Stores neighbouring outputs together.
template <typename T>
__device__ inline void store_together(bool is_wanted, unsigned long long to, const float (&values)[2]) {
  if constexpr (kAreSame<T, float>) {
    store_global_if(is_wanted, to, make_uint2(bits_of(values[0]), bits_of(values[1])));
  } else {
    store_global_if(is_wanted, to, pair_of<T>(values[0], values[1]));
  }
}
template <typename T>
__device__ inline void store_together(bool is_wanted, unsigned long long to, const float (&values)[4]) {
  if constexpr (kAreSame<T, float>) {
    const unsigned bits[] = {bits_of(values[0]), bits_of(values[1]), bits_of(values[2]), bits_of(values[3])};
    store_global_if(is_wanted, to, make_uint4(bits[0], bits[1], bits[2], bits[3]));
  } else {
    store_global_if(is_wanted, to,
                    make_uint2(pair_of<T>(values[0], values[1]), pair_of<T>(values[2], values[3])));
  }
}

// Of a lane's sums in one row. `first`: the number in y of the first of them; of which the image has
// `inside`.
template <typename T, int kOutputs>
__device__ inline void write_row(const Arguments<T>& a, long long first, int inside, bool is_wanted,
                                 const float (&sums)[kOutputs]) {
  float values[kOutputs];
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) values[i] = sums[i];
  if (a.z != nullptr) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      if (is_wanted && i < inside) values[i] += static_cast<float>(a.z[first + i]);
    }
  }
  finish_values(a.following, values);
  const unsigned long long to = global_address(a.y) + first * int(sizeof(T));
  if constexpr (kOutputs > 1) {
    if (a.stores_together) {
      store_together<T>(is_wanted, to, values);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const bool is_inside = is_wanted && i < inside;
    if constexpr (kAreSame<T, float>) {
      store_global_if(is_inside, to + 4 * i, bits_of(values[i]));
    } else {
      store_global_if(is_inside, to + 2 * i, T(values[i]).bits);
    }
  }
}

}  // namespace convswap::sliding_rows
