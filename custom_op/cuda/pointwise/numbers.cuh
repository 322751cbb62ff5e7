#pragma once

// What a thread loads of its two pixels, and what the products take of it: for each element type.

#include "conv/small_floats.h"
#include "cuda/pointwise/layout.h"
#include "cuda/primitives/conversions.cuh"
#include "cuda/primitives/warpgroup_multiply.cuh"

namespace convswap::pointwise {

// The words of a product: of a thread's channels, both pixels.
using Words = unsigned[4];

// kLoads: a thread's channels of a product, of which number `load` is channel_of(lane % 4, load).
template <typename Element>
struct Numbers;

template <>
struct Numbers<float> {
  using Product = TensorFloat32;
  static constexpr int kLoads = 2;
  static __device__ int channel_of(int quarter, int load) { return quarter + 4 * load; }

  // A channel of two pixels, as it lies where they are neighbours, and the words that it is.
  using Pair = uint2;
  static __device__ Pair pair_at(const float* first, const float* second) {
    return make_uint2(__float_as_uint(*first), __float_as_uint(*second));
  }
  static __device__ void put(Words& to, int load, Pair pair) {
    to[2 * load] = pair.x, to[2 * load + 1] = pair.y;
  }

  // What was loaded as the product takes it.
  static __device__ void finish(Words& words) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = of_weights(words[i]);
  }

  // A word of a filter's channels, of which `left` are left, and as the product takes it.
  static __device__ unsigned word_at(const float* from, int left, int word) {
    return left > word ? __float_as_uint(from[word]) : 0u;
  }
  static constexpr bool kRoundsWeights = true;
  static __device__ unsigned of_weights(unsigned word) {
    return round_to_tensor_float32(__uint_as_float(word));
  }

  // Results of two neighbouring pixels, and of one.
  static __device__ Pair pair_of(float first, float second) {
    return make_uint2(__float_as_uint(first), __float_as_uint(second));
  }
  static __device__ float2 floats_of(Pair pair) {
    return make_float2(__uint_as_float(pair.x), __uint_as_float(pair.y));
  }
  static __device__ unsigned one_of(float result) { return __float_as_uint(result); }
};

// Of 16 bits: a word has two channels of a pixel to the products, and two pixels of a channel in memory.
template <typename Small>
struct Numbers {
  using Product = Small;
  static constexpr int kLoads = 4;
  static __device__ int channel_of(int quarter, int load) { return 2 * quarter + load % 2 + load / 2 * 8; }

  using Pair = unsigned;
  static __device__ Pair pair_at(const Small* first, const Small* second) {
    return first->bits | static_cast<unsigned>(second->bits) << 16;
  }
  static __device__ void put(Words& to, int load, Pair pair) { to[load] = pair; }

  static __device__ void finish(Words& words) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const unsigned even = words[i], odd = words[i + 1];
      words[i] = (even & 0xffffu) | odd << 16;
      words[i + 1] = even >> 16 | (odd & 0xffff0000u);
    }
  }

  static constexpr bool kRoundsWeights = false;
  static __device__ unsigned word_at(const Small* from, int left, int word) {
    const unsigned lower = left > 2 * word ? from[2 * word].bits : 0u;
    const unsigned upper = left > 2 * word + 1 ? from[2 * word + 1].bits : 0u;
    return lower | upper << 16;
  }

  static __device__ Pair pair_of(float first, float second) { return rounded_pair<Small>(first, second); }
  static __device__ float2 floats_of(Pair pair) {
    return make_float2(lower_of_pair<Small>(pair), upper_of_pair<Small>(pair));
  }
  static __device__ unsigned short one_of(float result) { return Small(result).bits; }
};

}  // namespace convswap::pointwise
