#pragma once

// How a window of an image's row is loaded, and what the products take of it: for each element type.

#include "conv/small_floats.h"
#include "cuda/primitives/global_load.cuh"
#include "cuda/primitives/global_store.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/primitives/tensor_float32.cuh"
#include "cuda/primitives/warpgroup_multiply.cuh"
#include "cuda/row_windows/layout.h"

namespace convswap::row_windows {

// `Window`: as it was loaded, so that nothing waits for it at once; zeros before. Of 16 bits it has a number
// in each word, or two where they are loaded in pairs, which of float32 makes no difference. `column` is that
// of its first number, at `address`, of a row of `width`; what lies outside stays zero.
template <typename Element>
struct Numbers;

template <>
struct Numbers<float> {
  using Product = TensorFloat32;
  static constexpr int kOfWindow = kPlaceBytes / 4;
  template <bool>
  using Window = unsigned[kOfWindow];

  template <bool kPairs>
  static __device__ void load(bool exists, unsigned long long address, int column, int width,
                              Window<kPairs>& to) {
#pragma unroll
    for (int i = 0; i < kOfWindow; ++i) {
      load_global_if(exists && static_cast<unsigned>(column + i) < static_cast<unsigned>(width),
                     address + i * 4, to[i]);
    }
  }
  template <bool kPairs>
  static __device__ uint4 place_of(const Window<kPairs>& words) {
    return make_uint4(rounded(words[0]), rounded(words[1]), rounded(words[2]), rounded(words[3]));
  }
  // Of weights.
  static __device__ uint4 place_of(const float (&numbers)[kOfWindow]) {
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
  static __device__ uint4 four_of(Pair first, Pair second) {
    return make_uint4(first.x, first.y, second.x, second.y);
  }
  static __device__ unsigned one_of(float result) { return __float_as_uint(result); }

 private:
  static __device__ unsigned rounded(unsigned bits) { return round_to_tensor_float32(__uint_as_float(bits)); }
};

template <typename Small>
struct Numbers {
  using Product = Small;
  static constexpr int kOfWindow = kPlaceBytes / 2;
  template <bool kPairs>
  using Window = unsigned[kPairs ? kOfWindow / 2 : kOfWindow];

  template <bool kPairs>
  static __device__ void load(bool exists, unsigned long long address, int column, int width,
                              Window<kPairs>& to) {
    constexpr int kOfWord = kPairs ? 2 : 1;
#pragma unroll
    for (int i = 0; i < kOfWindow / kOfWord; ++i) {
      const bool is_inside =
          exists && static_cast<unsigned>(column + kOfWord * i) < static_cast<unsigned>(width);
      if constexpr (kPairs) {
        load_global_if(is_inside, address + i * 4, to[i]);
      } else {
        load_global_16_if(is_inside, address + i * 2, to[i]);
      }
    }
  }
  template <bool kPairs>
  static __device__ uint4 place_of(const Window<kPairs>& words) {
    if constexpr (kPairs) {
      return make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      return make_uint4(words[0] | words[1] << 16, words[2] | words[3] << 16, words[4] | words[5] << 16,
                        words[6] | words[7] << 16);
    }
  }
  static __device__ uint4 place_of(const float (&numbers)[kOfWindow]) {
    return make_uint4(
        rounded_pair<Small>(numbers[0], numbers[1]), rounded_pair<Small>(numbers[2], numbers[3]),
        rounded_pair<Small>(numbers[4], numbers[5]), rounded_pair<Small>(numbers[6], numbers[7]));
  }

  using Pair = unsigned;
  static __device__ Pair pair_of(float first, float second) { return rounded_pair<Small>(first, second); }
  static __device__ Pair beside(Pair pair) { return __shfl_xor_sync(0xffffffffu, pair, 1); }
  static __device__ uint2 four_of(Pair first, Pair second) { return make_uint2(first, second); }
  static __device__ unsigned short one_of(float result) { return Small(result).bits; }
};

}  // namespace convswap::row_windows
