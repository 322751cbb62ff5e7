#pragma once

// Neighbouring columns of a row of x, in registers as they lie in memory.

#include "cuda/primitives/conversions.cuh"
#include "cuda/primitives/global_memory.cuh"

namespace convswap::sliding_rows {

// Columns that lie together, as one load has them.
template <typename T, int kTogether>
struct Together;

template <>
struct Together<float, 1> {
  using Words = unsigned;
  static __device__ float column(unsigned word, int) { return __uint_as_float(word); }
};
template <>
struct Together<float, 2> {
  using Words = uint2;
  static __device__ float column(uint2 words, int i) { return __uint_as_float(i == 0 ? words.x : words.y); }
};
template <>
struct Together<float, 4> {
  using Words = uint4;
  static __device__ float column(uint4 words, int i) {
    return __uint_as_float(i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w);
  }
};
template <typename Small>
struct Together<Small, 1> {
  using Words = unsigned short;
  static __device__ float column(unsigned short word, int) { return lower_of_pair<Small>(word); }
};
template <typename Small>
struct Together<Small, 2> {
  using Words = unsigned;
  static __device__ float column(unsigned pair, int i) {
    return i == 0 ? lower_of_pair<Small>(pair) : upper_of_pair<Small>(pair);
  }
};
template <typename Small>
struct Together<Small, 4> {
  using Words = uint2;
  static __device__ float column(uint2 pairs, int i) {
    return Together<Small, 2>::column(i < 2 ? pairs.x : pairs.y, i % 2);
  }
};

// kColumns columns of a row of x, loaded kTogether at a time.
template <typename T, int kColumns, int kTogether>
struct Piece {
  typename Together<T, kTogether>::Words words[kColumns / kTogether];

  // From an aligned address, from which on `inside` columns are in the image, a multiple of kTogether; others
  // are 0.
  __device__ void load(unsigned long long address, int inside) {
#pragma unroll
    for (int i = 0; i < kColumns / kTogether; ++i) {
      words[i] = {};
      load_global_if(i * kTogether < inside, address + i * kTogether * int(sizeof(T)), words[i]);
    }
  }

  __device__ float column(int i) const {
    return Together<T, kTogether>::column(words[i / kTogether], i % kTogether);
  }
};

}  // namespace convswap::sliding_rows
