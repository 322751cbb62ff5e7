#pragma once

// Mma fragments of one step's weights and pixels, for each format. A format is an element type or a way to
// multiply one.
//
// A lane loads four adjacent K elements of a step, so one vector load takes a filter's four weights. The
// order of K within an mma is free, as long as filters and pixels agree. Therefore lanes with t = lane % 4
// feed elements 4 t to 4 t + 3 to the mma's K indices t and t + 4, two elements to each of two mma in TF32.
// In 16 bits, the four elements have the K indices 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of one mma.
//
// Loaded registers are not touched before the mma, because any use would wait for the load. 16-bit weights
// that are loaded one by one are the exception.

#include "conv/small_floats.h"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/sliced_k/arguments.h"

namespace convswap {

// Format of float32 elements that are split into two TF32 each. Their sum differs from the float32 value by
// at most 2^-23 of the value, or by 2^-137, below which the smaller TF32 has no bits. (The pairs of
// Float16Pairs in tensor_core_formats.cuh are two neighbouring elements instead.)
struct Tf32Pairs;

namespace sliced_k {

// `Element`: the type in memory. `kSplitsOperands`: true if an element is multiplied as a sum of two parts,
// which turns an infinity into NaN. `Vector`: four weights of a filter, one load. `Fragment`: a lane's
// operand of the mma.
//
// Pixels are loaded into words[tile][K element]. After a vector load, words[0][i], words[1][i], ... hold the
// adjacent pixels of K element i in the order of memory. For 16-bit elements that is two pixels per word, so
// tile t is in half t % 2 of words[t / 2].
template <typename Format>
struct MmaOperands;

template <>
struct MmaOperands<float> {
  using Element = float;
  static constexpr bool kSplitsOperands = false;

  struct Fragment {
    float values[4];
  };

  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_if(condition, address, to);
  }

  // Fragment of a filter.
  using Vector = uint4;
  static __device__ Vector pack(const unsigned (&words)[4]) {
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  static __device__ Fragment fragment_of(const Vector& words) {
    return {{to_tf32(words.x), to_tf32(words.y), to_tf32(words.z), to_tf32(words.w)}};
  }

  // Fragment of a tile's pixel.
  template <int kTiles>
  static __device__ Fragment fragment_of(const unsigned (&words)[kTiles][4], int tile, bool) {
    return {
        {to_tf32(words[tile][0]), to_tf32(words[tile][1]), to_tf32(words[tile][2]), to_tf32(words[tile][3])}};
  }

  // Fragment of values that are already rounded to TF32. The family separable calls this.
  static __device__ Fragment fragment_of(const float (&values)[4]) {
    return {{values[0], values[1], values[2], values[3]}};
  }

  // `upper` is row lane / 4 of a tile of filters, `lower` is row lane / 4 + 8.
  static __device__ void multiply_add(float (&accumulators)[4], const Fragment& upper, const Fragment& lower,
                                      const Fragment& pixel) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float a[] = {upper.values[i], lower.values[i], upper.values[i + 1], lower.values[i + 1]};
      const float b[] = {pixel.values[i], pixel.values[i + 1]};
      mma_m16n8k8_tf32(accumulators, a, b);
    }
  }

 private:
  static __device__ float to_tf32(unsigned bits) { return round_to_tf32(__uint_as_float(bits)); }
};

template <>
struct MmaOperands<Tf32Pairs> : MmaOperands<float> {
  static constexpr bool kSplitsOperands = true;

  struct Fragment {
    float large[4], small[4];
  };

  static __device__ Fragment fragment_of(const Vector& words) {
    return split({words.x, words.y, words.z, words.w});
  }

  template <int kTiles>
  static __device__ Fragment fragment_of(const unsigned (&words)[kTiles][4], int tile, bool) {
    return split(words[tile]);
  }

  // Takes three of the four products; the omitted one is at most 2^-22 of the exact product. The tensor core
  // truncates when it accumulates, and the error grows with the accumulator. Therefore mma accumulates only
  // this step, the small products separately from the large ones.
  static __device__ void multiply_add(float (&accumulators)[4], const Fragment& upper, const Fragment& lower,
                                      const Fragment& pixel) {
    float large[4] = {}, small[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float large_filter[] = {upper.large[i], lower.large[i], upper.large[i + 1], lower.large[i + 1]};
      const float small_filter[] = {upper.small[i], lower.small[i], upper.small[i + 1], lower.small[i + 1]};
      const float large_pixel[] = {pixel.large[i], pixel.large[i + 1]};
      const float small_pixel[] = {pixel.small[i], pixel.small[i + 1]};
      mma_m16n8k8_tf32(small, small_filter, large_pixel);
      mma_m16n8k8_tf32(small, large_filter, small_pixel);
      mma_m16n8k8_tf32(large, large_filter, large_pixel);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[i] += large[i] + small[i];
  }

 private:
  static __device__ Fragment split(const unsigned (&words)[4]) {
    Fragment to;
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
struct MmaOperands {
  using Element = Small;
  static constexpr bool kSplitsOperands = false;

  struct Fragment {
    unsigned pairs[2];
  };

  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_16_if(condition, address, to);
  }

  using Vector = uint2;
  static __device__ Vector pack(const unsigned (&words)[4]) {
    return make_uint2(lower_halves(words[0], words[1]), lower_halves(words[2], words[3]));
  }
  static __device__ Fragment fragment_of(const Vector& words) { return {{words.x, words.y}}; }

  template <int kTiles>
  static __device__ Fragment fragment_of(const unsigned (&words)[kTiles][4], int tile,
                                         bool pixels_are_vectorized) {
    if (!pixels_are_vectorized || kTiles == 1) {
      return {{lower_halves(words[tile][0], words[tile][1]), lower_halves(words[tile][2], words[tile][3])}};
    }
    const unsigned (&pair)[4] = words[tile / 2];
    if (tile % 2 == 0) return {{lower_halves(pair[0], pair[1]), lower_halves(pair[2], pair[3])}};
    return {{upper_halves(pair[0], pair[1]), upper_halves(pair[2], pair[3])}};
  }

  static __device__ Fragment fragment_of(const float (&values)[4]) {
    return {{pack_rounded<Small>(values[0], values[1]), pack_rounded<Small>(values[2], values[3])}};
  }

  static __device__ void multiply_add(float (&accumulators)[4], const Fragment& upper, const Fragment& lower,
                                      const Fragment& pixel) {
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

// Loads the weights of a lane's filters, step by step. Lane l loads four of the step's 16 K elements of the
// block's filters l / 4, l / 4 + 8, and so on.
template <typename Format, int kFilterTiles>
class FilterLoader {
 public:
  using Operands = MmaOperands<Format>;
  using Element = typename Operands::Element;
  static constexpr int kCount = 2 * kFilterTiles;
  using Registers = typename Operands::Vector[kCount];

  // `first`: the block's first filter in its group. `Arguments` has `filters` (per group), `k_size`, `w` and
  // `vectorizes_weight_loads`.
  template <typename Arguments>
  __device__ FilterLoader(const Arguments& arguments, int group, int first, int lane)
      : k_size_(arguments.k_size),
        k_offset_(lane % 4 * 4),
        vectorized_(arguments.vectorizes_weight_loads),
        filters_left_(arguments.filters - first - lane / 4),
        base_(global_address(arguments.w) +
              (static_cast<long long>(group * arguments.filters + first + lane / 4) * arguments.k_size +
               lane % 4 * 4) *
                  static_cast<int>(sizeof(Element))) {}

  __device__ void load(int step, Registers& to) const {
    if (vectorized_) {
      load_as<true>(step, to);
    } else {
      load_as<false>(step, to);
    }
  }

 private:
  template <bool kVectorized>
  __device__ void load_as(int step, Registers& to) const {
    const int first_k = step * kStepK + k_offset_;
    const unsigned long long from = base_ + step * (kStepK * static_cast<int>(sizeof(Element)));
    const unsigned filter_bytes = k_size_ * static_cast<unsigned>(sizeof(Element));
#pragma unroll
    for (int f = 0; f < kCount; ++f) {
      const unsigned long long filter_address = address_at(from, f * 8, filter_bytes);
      const bool in_bounds = f * 8 < filters_left_;
      if constexpr (kVectorized) {
        to[f] = {};
        load_global_if(in_bounds && first_k < k_size_, filter_address, to[f]);
      } else {
        unsigned words[4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Operands::load_one(in_bounds && first_k + i < k_size_, filter_address + i * sizeof(Element),
                             words[i]);
        }
        to[f] = Operands::pack(words);
      }
    }
  }

  int k_size_, k_offset_;
  bool vectorized_;
  int filters_left_;  // filters of the group, counted from the lane's first
  unsigned long long base_;
};

}  // namespace sliced_k
}  // namespace convswap
