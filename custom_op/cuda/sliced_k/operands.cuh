#pragma once

// How the tensor core is given a step's numbers of a filter and of a pixel, for each format: an element type,
// or a way to multiply one.
//
// A lane loads four neighbours along the depth. Which number of the depth a product calls which is free, as
// long as filters and pixels agree: so the neighbours are what a lane gives, and a filter's are one load.
//
// What was loaded stays as it came until it is multiplied: whatever is done to it at once waits for it.
// Filters of 16-bit numbers whose neighbours are no load of their own are the exception.

#include "conv/small_floats.h"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/sliced_k/arguments.h"

namespace convswap {

// Float32 as two TF32 each, which add up to it but for 2^-23 of it at most, or for 2^-137, below which the
// smaller has no bits.
struct Tf32Pairs;

namespace sliced_k {

// `Element`: what is in memory. `kSplits`: whether each is multiplied as a sum, of which an infinity leaves
// no number. `Neighbours`: four of a filter, as one load. `Four`: what a lane gives to a product.
//
// Pixels of several tiles are loaded into words, of each number along the depth one for each tile; where
// neighbours were loaded together, number i's are those of words[0][i] and on, as they lay in memory.
template <typename Format>
struct Numbers;

template <>
struct Numbers<float> {
  using Element = float;
  static constexpr bool kSplits = false;

  struct Four {
    float numbers[4];
  };

  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_if(condition, address, to);
  }

  // Of a filter.
  using Neighbours = uint4;
  static __device__ Neighbours joined(const unsigned (&words)[4]) {
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  static __device__ Four four_of(const Neighbours& words) {
    return {{rounded(words.x), rounded(words.y), rounded(words.z), rounded(words.w)}};
  }

  // Of the pixel of a tile.
  template <int kTiles>
  static __device__ Four four_of(const unsigned (&words)[kTiles][4], int tile, bool) {
    return {
        {rounded(words[tile][0]), rounded(words[tile][1]), rounded(words[tile][2]), rounded(words[tile][3])}};
  }

  // Of what is rounded already.
  static __device__ Four four_of(const float (&numbers)[4]) {
    return {{numbers[0], numbers[1], numbers[2], numbers[3]}};
  }

  // Of rows l / 4 of a tile of filters, and of those eight further on.
  static __device__ void multiply_add(float (&accumulators)[4], const Four& upper, const Four& lower,
                                      const Four& pixel) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float a[] = {upper.numbers[i], lower.numbers[i], upper.numbers[i + 1], lower.numbers[i + 1]};
      const float b[] = {pixel.numbers[i], pixel.numbers[i + 1]};
      mma_m16n8k8_tf32(accumulators, a, b);
    }
  }

 private:
  static __device__ float rounded(unsigned bits) { return round_to_tf32(__uint_as_float(bits)); }
};

template <>
struct Numbers<Tf32Pairs> : Numbers<float> {
  static constexpr bool kSplits = true;

  struct Four {
    float large[4], small[4];
  };

  static __device__ Four four_of(const Neighbours& words) {
    return split({words.x, words.y, words.z, words.w});
  }

  template <int kTiles>
  static __device__ Four four_of(const unsigned (&words)[kTiles][4], int tile, bool) {
    return split(words[tile]);
  }

  // Three of the four products: what is left out is 2^-22 of the whole at most. The tensor core truncates
  // where it adds, the more the larger the sum is: so it adds up this step alone, and the small products
  // apart from the large ones.
  static __device__ void multiply_add(float (&accumulators)[4], const Four& upper, const Four& lower,
                                      const Four& pixel) {
    float large[4] = {}, small[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float of_filter[] = {upper.large[i], lower.large[i], upper.large[i + 1], lower.large[i + 1]};
      const float less_of_filter[] = {upper.small[i], lower.small[i], upper.small[i + 1], lower.small[i + 1]};
      const float of_pixel[] = {pixel.large[i], pixel.large[i + 1]};
      const float less_of_pixel[] = {pixel.small[i], pixel.small[i + 1]};
      mma_m16n8k8_tf32(small, less_of_filter, of_pixel);
      mma_m16n8k8_tf32(small, of_filter, less_of_pixel);
      mma_m16n8k8_tf32(large, of_filter, of_pixel);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[i] += large[i] + small[i];
  }

 private:
  static __device__ Four split(const unsigned (&words)[4]) {
    Four to;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float number = __uint_as_float(words[i]);
      to.large[i] = round_to_tf32(number);
      to.small[i] = round_to_tf32(number - to.large[i]);
    }
    return to;
  }
};

template <typename Small>
struct Numbers {
  using Element = Small;
  static constexpr bool kSplits = false;

  struct Four {
    unsigned pairs[2];
  };

  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_16_if(condition, address, to);
  }

  using Neighbours = uint2;
  static __device__ Neighbours joined(const unsigned (&words)[4]) {
    return make_uint2(lower_halves(words[0], words[1]), lower_halves(words[2], words[3]));
  }
  static __device__ Four four_of(const Neighbours& words) { return {{words.x, words.y}}; }

  template <int kTiles>
  static __device__ Four four_of(const unsigned (&words)[kTiles][4], int tile, bool together) {
    if (!together || kTiles == 1) {
      return {{lower_halves(words[tile][0], words[tile][1]), lower_halves(words[tile][2], words[tile][3])}};
    }
    const unsigned (&pair)[4] = words[tile / 2];
    if (tile % 2 == 0) return {{lower_halves(pair[0], pair[1]), lower_halves(pair[2], pair[3])}};
    return {{upper_halves(pair[0], pair[1]), upper_halves(pair[2], pair[3])}};
  }

  static __device__ Four four_of(const float (&numbers)[4]) {
    return {{pack_rounded<Small>(numbers[0], numbers[1]), pack_rounded<Small>(numbers[2], numbers[3])}};
  }

  static __device__ void multiply_add(float (&accumulators)[4], const Four& upper, const Four& lower,
                                      const Four& pixel) {
    mma_m16n8k16<Small>(accumulators, upper.pairs[0], lower.pairs[0], upper.pairs[1], lower.pairs[1],
                        pixel.pairs[0], pixel.pairs[1]);
  }

 private:
  static __device__ unsigned lower_halves(unsigned first, unsigned second) {
    return (first & 0xffffu) | second << 16;
  }
  static __device__ unsigned upper_halves(unsigned first, unsigned second) {
    return first >> 16 | (second & 0xffff0000u);
  }
};

// A lane's filters of a block, eight apart, whose numbers it loads step by step.
template <typename Format, int kFilterTiles>
class Filters {
 public:
  using Of = Numbers<Format>;
  using Element = typename Of::Element;
  static constexpr int kCount = 2 * kFilterTiles;
  using Step = typename Of::Neighbours[kCount];

  // `first`: the block's first filter in its group, of which `a` has so many filters, and of these their
  // depth.
  template <typename Arguments>
  __device__ Filters(const Arguments& a, int group, int first, int lane)
      : depth_(a.depth),
        quarter_(lane % 4 * 4),
        together_(a.loads_weights_together),
        left_(a.filters - first - lane / 4),
        own_(global_address(a.w) +
             (static_cast<long long>(group * a.filters + first + lane / 4) * a.depth + lane % 4 * 4) *
                 static_cast<int>(sizeof(Element))) {}

  __device__ void load(int step, Step& to) const {
    if (together_) {
      load_as<true>(step, to);
    } else {
      load_as<false>(step, to);
    }
  }

 private:
  template <bool kTogether>
  __device__ void load_as(int step, Step& to) const {
    const int at = step * kStepDepth + quarter_;
    const unsigned long long from = own_ + step * (kStepDepth * static_cast<int>(sizeof(Element)));
    const unsigned row = depth_ * static_cast<unsigned>(sizeof(Element));
#pragma unroll
    for (int f = 0; f < kCount; ++f) {
      const unsigned long long of_filter = address_at(from, f * 8, row);
      const bool is_there = f * 8 < left_;
      if constexpr (kTogether) {
        to[f] = {};
        load_global_if(is_there && at < depth_, of_filter, to[f]);
      } else {
        unsigned words[4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Of::load_one(is_there && at + i < depth_, of_filter + i * sizeof(Element), words[i]);
        }
        to[f] = Of::joined(words);
      }
    }
  }

  int depth_, quarter_;
  bool together_;
  int left_;  // filters of the group from the lane's first on
  unsigned long long own_;
};

}  // namespace sliced_k
}  // namespace convswap
