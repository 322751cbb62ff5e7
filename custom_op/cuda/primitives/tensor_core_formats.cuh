#pragma once

// How the tensor core is given float32, float16 and bfloat16 data.
//
// float16 keeps as many bits of a number as TF32 does, 11, but of 29 binades only; two keep 23, for ieee. So
// float32 data are scaled by a power of two, which is exact, one for the pixels of a tile and one for the
// weights of a filter, such that the largest value lands in float16's uppermost binade but one. Values that
// span more binades are taken one window of 29 binades after the other, the rest counting as zeros meanwhile.

#include "conv/small_floats.h"
#include "cuda/primitives/small_float_pairs.cuh"

namespace convswap {

constexpr int kBinades = 29;
constexpr int kUppermost = 14;  // a largest value of 2^15 - 1 cannot round to infinity
// The guess for weights and for a block's first tile: it serves values from 2^-24 to 2^5.
constexpr int kFirstTop = 4;

// 2^exponent, for exponents from -126 to 127.
__device__ inline float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The bits of 2^exponent as float32; beyond the largest those of infinity, below the smallest 0.
__device__ inline unsigned bits_of_power(int exponent) {
  if (exponent > 127) return 0x7f800000u;
  if (exponent >= -126) return static_cast<unsigned>(exponent + 127) << 23;
  return exponent >= -149 ? 1u << (exponent + 149) : 0u;
}

// floor(log2) of a positive float32 given by its bits.
__device__ inline int exponent_of(unsigned bits) {
  return bits >= 0x00800000u ? static_cast<int>(bits >> 23) - 127 : 31 - __clz(bits) - 149;
}

// The scale, as an exponent, of a window that begins at binade `top`. Below 2^-112 it would leave float32;
// what is left down there has few bits, and float16 holds them.
__device__ inline int scale_exponent(int top) { return kUppermost - max(top, kUppermost - 126); }

// 2^exponent as two factors, since one float32 may not hold it. `is_near`: the first is enough.
struct PowerOfTwo {
  float factor, rest;
  bool is_near;

  __device__ explicit PowerOfTwo(int exponent = 0) {
    const int within_float = max(-126, min(127, exponent));
    factor = power_of_two(within_float);
    rest = power_of_two(max(-126, min(127, exponent - within_float)));
    is_near = exponent == within_float;
  }
};
// What undoes the scales of a product of two windows, that of the weights and that of the pixels.
__device__ inline PowerOfTwo undo_scales(int weight_top, int pixel_top) {
  return PowerOfTwo(-scale_exponent(weight_top) - scale_exponent(pixel_top));
}

__device__ inline unsigned absolute_bits(float value) { return __float_as_uint(value) & 0x7fffffffu; }
__device__ inline unsigned absolute_bits(Float16 value) { return value.bits & 0x7fffu; }
__device__ inline unsigned absolute_bits(BFloat16 value) { return value.bits & 0x7fffu; }

template <typename Element>
constexpr unsigned kInfinityBits = 0x7f800000u;
template <>
inline constexpr unsigned kInfinityBits<Float16> = 0x7c00u;
template <>
inline constexpr unsigned kInfinityBits<BFloat16> = 0x7f80u;

// 29 binades, the uppermost of which holds 2^top.
class BinadeWindow {
 public:
  __device__ explicit BinadeWindow(int top)
      : lowest_(bits_of_power(top - kBinades + 1)), beyond_(bits_of_power(top + 1)), top_(top) {}

  __device__ float scale() const { return power_of_two(scale_exponent(top_)); }
  __device__ bool holds(float value) const {
    const unsigned bits = absolute_bits(value);
    return bits >= lowest_ && bits < beyond_;
  }
  __device__ bool holds(unsigned least, unsigned most) const { return least >= lowest_ && most < beyond_; }

 private:
  unsigned lowest_, beyond_;
  int top_;
};

// The largest and the smallest absolute value among some numbers, zeros left out of the latter.
template <typename Element>
struct ValueRange {
  unsigned most = 0;
  unsigned least_less_one = ~0u;  // so that a zero is larger than everything

  __device__ void include(Element value) {
    const unsigned bits = absolute_bits(value);
    most = max(most, bits);
    least_less_one = min(least_less_one, bits - 1);
  }
  __device__ void include(Element first, Element second) {
    const unsigned a = absolute_bits(first), b = absolute_bits(second);
    most = max(most, max(a, b));
    least_less_one = min(least_less_one, min(a - 1, b - 1));
  }
  __device__ void reduce_warp() {
    most = __reduce_max_sync(0xffffffffu, most);
    least_less_one = __reduce_min_sync(0xffffffffu, least_less_one);
  }
  __device__ bool is_finite() const { return most < kInfinityBits<Element>; }

  // Of finite float32 numbers: the binades of the largest and the smallest, and how many windows they need.
  __device__ int top() const { return most == 0 ? 0 : exponent_of(most); }
  __device__ int bottom() const { return most == 0 ? 0 : exponent_of(least_less_one + 1); }
  __device__ int windows() const { return (top() - bottom()) / kBinades + 1; }
  __device__ bool fits(const BinadeWindow& window) const {
    return most == 0 || window.holds(least_less_one + 1, most);
  }
  __device__ bool fits(int top) const { return fits(BinadeWindow(top)); }
  // Where the uppermost window begins. A single one gets some room, for what comes next.
  __device__ int window_top() const {
    return windows() == 1 ? min(top() + 2, bottom() + kBinades - 1) : top();
  }
};

// Whether numbers of that range are all what the window that begins at `top` makes of them.
template <typename Format, typename Element>
__device__ inline bool fits(const ValueRange<Element>& range, int top) {
  return Format::kIsScaled ? range.fits(top) : range.is_finite();
}

// What some threads have seen together, by way of shared memory. `state` begins as a range's members and is
// left so; `sync` has them all wait for each other, and `is_first` is true in one of them.
template <typename Element, typename State, typename Sync>
__device__ inline ValueRange<Element> reduce_threads(ValueRange<Element> range, State& state, bool is_first,
                                                     Sync sync) {
  range.reduce_warp();
  if (threadIdx.x % 32 == 0) {
    atomicMax(&state.most, range.most);
    atomicMin(&state.least_less_one, range.least_less_one);
  }
  sync();
  const ValueRange<Element> whole{state.most, state.least_less_one};
  sync();
  if (is_first) state.most = 0u, state.least_less_one = ~0u;
  return whole;
}

// One product of one part of the pixels and one of the weights: most formats have no more. Of others the
// first kCorrections terms are too large, and what they sum up to is multiplied by kCorrectionScale before
// the rest.
struct OnePart {
  static constexpr int kParts = 1;
  static constexpr int kTerms = 1;
  static constexpr int kCorrections = 0;
  static constexpr float kCorrectionScale = 1.0f;
  static __device__ constexpr int pixel_part(int) { return 0; }
  static __device__ constexpr int weight_part(int) { return 0; }
};

// Calls add(term) for each of a format's terms, and correct() where the sums of the corrections are to be
// multiplied by kCorrectionScale. kUnrolled: as many copies of the code.
template <typename Format, int kUnrolled, typename Correct, typename Add>
__device__ inline void for_each_term(Correct correct, Add add) {
#pragma unroll kUnrolled
  for (int term = 0; term < Format::kTerms; ++term) {
    if (Format::kCorrections > 0 && term == Format::kCorrections) correct();
    add(term);
  }
}

struct Float32Elements {
  using Element = float;

  static __device__ float zero() { return 0.0f; }
  static __device__ float to_float(float value) { return value; }

  // Neighbouring results as they are stored.
  static __device__ unsigned pack(const float (&values)[1]) { return __float_as_uint(values[0]); }
  static __device__ uint2 pack(const float (&values)[2]) {
    return make_uint2(__float_as_uint(values[0]), __float_as_uint(values[1]));
  }
  static __device__ uint4 pack(const float (&values)[4]) {
    return make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
                      __float_as_uint(values[3]));
  }
};

struct ScaledFloat16Pairs : Float32Elements, OnePart {
  using Number = Float16;
  static constexpr bool kIsScaled = true;

  static __device__ unsigned pair(float first, float second, float scale, int) {
    return pack_rounded<Float16>(first * scale, second * scale);
  }
};

// What float16 leaves of a number is a second one, in a window of the same binades since it counts 2^12
// times: together 23 bits. The product of two second parts, at most 2^-22 of the whole, is left out.
struct TwoScaledFloat16 : Float32Elements {
  using Number = Float16;
  static constexpr bool kIsScaled = true;
  static constexpr int kParts = 2;
  static constexpr int kTerms = 3;
  static constexpr int kCorrections = 2;
  static constexpr float kCorrectionScale = 0x1p-12f;

  static __device__ constexpr int pixel_part(int term) { return term == 0 ? 1 : 0; }
  static __device__ constexpr int weight_part(int term) { return term == 1 ? 1 : 0; }

  static __device__ unsigned pair(float first, float second, float scale, int part) {
    first *= scale, second *= scale;
    unsigned both = pack_rounded<Float16>(first, second);
    if (part == 1) {
      // Exact differences of less than 2^4.
      both = pack_rounded<Float16>((first - unpack_low<Float16>(both)) / kCorrectionScale,
                                   (second - unpack_high<Float16>(both)) / kCorrectionScale);
    }
    return both;
  }
};

// float16 and bfloat16 are what the tensor core takes. Sums stay float32 until they are stored, once.
template <typename Small>
struct SmallFloats : OnePart {
  using Element = Small;
  using Number = Small;
  static constexpr bool kIsScaled = false;

  static __device__ Small zero() { return Small{}; }
  static __device__ float to_float(Small value) { return static_cast<float>(value); }
  static __device__ unsigned pair(Small first, Small second, float, int) {
    return first.bits | static_cast<unsigned>(second.bits) << 16;
  }

  static __device__ unsigned short pack(const float (&values)[1]) { return Small(values[0]).bits; }
  static __device__ unsigned pack(const float (&values)[2]) {
    return pack_rounded<Small>(values[0], values[1]);
  }
  static __device__ uint2 pack(const float (&values)[4]) {
    return make_uint2(pack_rounded<Small>(values[0], values[1]), pack_rounded<Small>(values[2], values[3]));
  }
};

using Float16Pairs = SmallFloats<Float16>;
using Bfloat16Pairs = SmallFloats<BFloat16>;

// Finds how large the weights of each of some filters are, one filter to a warp of the block: their uppermost
// binade into `tops`, and into `windows` the most windows of binades that one spans, ~0 where one is not
// finite. `weights_of(filter)` is where its `size` weights begin. kIsRare: short code is worth more than
// speed; few_channels, which seldom comes here, took 1 to 2 % longer at batch 64 with what the compiler makes
// of it.
template <typename Format, bool kIsRare = false, typename WeightsOf = void,
          typename Element = typename Format::Element>
__device__ inline void measure_filters(WeightsOf weights_of, int filters, int size, int* tops,
                                       unsigned* windows) {
  for (int filter = threadIdx.x / 32; filter < filters; filter += blockDim.x / 32) {
    const Element* const weights = weights_of(filter);
    ValueRange<Element> range;
    if constexpr (kIsRare) {
#pragma unroll 4
      for (int i = threadIdx.x % 32; i < size; i += 32) range.include(weights[i]);
    } else {
      for (int i = threadIdx.x % 32; i < size; i += 32) range.include(weights[i]);
    }
    range.reduce_warp();
    if (threadIdx.x % 32 != 0) continue;
    const bool is_finite = range.is_finite();
    tops[filter] = Format::kIsScaled && is_finite ? range.top() : 0;
    atomicMax(windows, !is_finite ? ~0u : Format::kIsScaled ? range.windows() : 1u);
  }
}

}  // namespace convswap
