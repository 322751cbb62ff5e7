#pragma once

// How a window of an image's row is loaded, and what the products take of it: for each element type.

#include "conv/small_floats.h"
#include "cuda/primitives/conversions.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/warpgroup_multiply.cuh"
#include "cuda/row_windows/layout.h"

namespace convswap::row_windows {

// What is loaded is rounded, or put together, only when all loads are under way.
template <typename Element>
struct Numbers;

template <>
struct Numbers<float> {
  using Product = TensorFloat32;
  static constexpr int kOfWindow = kPlaceBytes / 4;
  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_if(condition, address, to);
  }
  static __device__ unsigned word_of(unsigned bits) { return round_to_tensor_float32(__uint_as_float(bits)); }
  static __device__ uint4 window_of(const unsigned (&numbers)[kOfWindow]) {
    return make_uint4(word_of(numbers[0]), word_of(numbers[1]), word_of(numbers[2]), word_of(numbers[3]));
  }
  // Of weights.
  static __device__ uint4 window_of(const float (&numbers)[kOfWindow]) {
    return make_uint4(round_to_tensor_float32(numbers[0]), round_to_tensor_float32(numbers[1]),
                      round_to_tensor_float32(numbers[2]), round_to_tensor_float32(numbers[3]));
  }

  // Two neighbouring results, those of the lane beside this one, and four.
  using Pair = uint2;
  static __device__ Pair pair_of(float first, float second) {
    return make_uint2(__float_as_uint(first), __float_as_uint(second));
  }
  static __device__ Pair beside(Pair pair) {
    return make_uint2(__shfl_xor_sync(0xffffffffu, pair.x, 1), __shfl_xor_sync(0xffffffffu, pair.y, 1));
  }
  using Four = uint4;
  static __device__ Four four_of(Pair first, Pair second) {
    return make_uint4(first.x, first.y, second.x, second.y);
  }
  static __device__ unsigned one_of(float result) { return __float_as_uint(result); }
};

template <typename Small>
struct Numbers {
  using Product = Small;
  static constexpr int kOfWindow = kPlaceBytes / 2;
  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_16_if(condition, address, to);
  }
  static __device__ unsigned word_of(unsigned pair) { return pair; }
  static __device__ uint4 window_of(const unsigned (&numbers)[kOfWindow]) {
    return make_uint4(numbers[0] | numbers[1] << 16, numbers[2] | numbers[3] << 16,
                      numbers[4] | numbers[5] << 16, numbers[6] | numbers[7] << 16);
  }
  static __device__ uint4 window_of(const float (&numbers)[kOfWindow]) {
    return make_uint4(
        rounded_pair<Small>(numbers[0], numbers[1]), rounded_pair<Small>(numbers[2], numbers[3]),
        rounded_pair<Small>(numbers[4], numbers[5]), rounded_pair<Small>(numbers[6], numbers[7]));
  }

  using Pair = unsigned;
  static __device__ Pair pair_of(float first, float second) { return rounded_pair<Small>(first, second); }
  static __device__ Pair beside(Pair pair) { return __shfl_xor_sync(0xffffffffu, pair, 1); }
  using Four = uint2;
  static __device__ Four four_of(Pair first, Pair second) { return make_uint2(first, second); }
  static __device__ unsigned short one_of(float result) { return Small(result).bits; }
};

}  // namespace convswap::row_windows
