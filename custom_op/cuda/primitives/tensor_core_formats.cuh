#pragma once

// Conversion of float32, float16 and bfloat16 data to tensor-core operands.
//
// A float16 has the 11 significant bits of a TF32, but far fewer exponents; two float16 have 23 bits, for
// precision ieee. float32 data are therefore scaled by a power of two, which is exact. Weights have a scale
// per filter, pixels a scale per tile (in many_channels per K tile, in implicit_gemm per image).
//
// A *binade* is the numbers from 2^e up to 2^(e+1). The normal float16 numbers are 30 binades, e = -14 to 15.
// The highest is left free, because its values could round to infinity. That leaves a *binade window* of 29
// binades, and the scale moves the window's highest binade (`top`) to 2^14. Data that span more binades are
// processed one binade window after the other, with all values outside of the window set to zero.

#include "conv/small_floats.h"
#include "cuda/primitives/small_float_pairs.cuh"

namespace convswap {

constexpr int kBinades = 29;    // binades of a binade window
constexpr int kScaledTop = 14;  // exponent of a binade window's highest binade after scaling
// First guess of `top` for weights and for a block's first tile. Its binade window holds values from 2^-24 to
// 2^5.
constexpr int kFirstTop = 4;

// 2^exponent, for exponents from -126 to 127.
__device__ inline float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The bits of 2^exponent as float32: infinity above the largest finite power, 0 below the smallest subnormal.
__device__ inline unsigned bits_of_power(int exponent) {
  if (exponent > 127) return 0x7f800000u;
  if (exponent >= -126) return static_cast<unsigned>(exponent + 127) << 23;
  return exponent >= -149 ? 1u << (exponent + 149) : 0u;
}

// floor(log2) of a positive float32, given by its bits.
__device__ inline int exponent_of(unsigned bits) {
  return bits >= 0x00800000u ? static_cast<int>(bits >> 23) - 127 : 31 - __clz(bits) - 149;
}

// The exponent of the scale for a binade window whose highest binade is `top`. If `top` is below -112, the
// scale is that of -112: 2^126, the largest power of two whose inverse is a normal float32, too. The scaled
// numbers are then smaller, but those float32 numbers have few significant bits, which float16 holds.
__device__ inline int scale_exponent(int top) { return kScaledTop - max(top, kScaledTop - 126); }

// 2^exponent as a product of two factors, because a single float32 may not hold it. If `fits_one_factor`, the
// second factor is 1.
struct PowerOfTwo {
  float factor, second_factor;
  bool fits_one_factor;

  __device__ explicit PowerOfTwo(int exponent = 0) {
    const int clamped = max(-126, min(127, exponent));
    factor = power_of_two(clamped);
    second_factor = power_of_two(max(-126, min(127, exponent - clamped)));
    fits_one_factor = exponent == clamped;
  }
};
// The inverse of the scales of the weights' and the pixels' binade windows.
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

// A range of kBinades binades; the highest begins at 2^top.
class BinadeWindow {
 public:
  __device__ explicit BinadeWindow(int top)
      : lowest_(bits_of_power(top - kBinades + 1)), end_(bits_of_power(top + 1)), top_(top) {}

  __device__ float scale() const { return power_of_two(scale_exponent(top_)); }
  __device__ bool holds(float value) const {
    const unsigned bits = absolute_bits(value);
    return bits >= lowest_ && bits < end_;
  }
  __device__ bool holds(unsigned min_bits, unsigned max_bits) const {
    return min_bits >= lowest_ && max_bits < end_;
  }

 private:
  unsigned lowest_, end_;
  int top_;
};

// The largest absolute value and the smallest nonzero absolute value of some numbers, as their bits. The bits
// of absolute values are in the order of the values.
template <typename Element>
struct ValueRange {
  unsigned max_bits = 0;
  unsigned min_bits_less_one = ~0u;  // the subtraction wraps a zero to ~0u, so that minima skip zeros

  __device__ void include(Element value) {
    const unsigned bits = absolute_bits(value);
    max_bits = max(max_bits, bits);
    min_bits_less_one = min(min_bits_less_one, bits - 1);
  }
  __device__ void include(Element first, Element second) {
    const unsigned a = absolute_bits(first), b = absolute_bits(second);
    max_bits = max(max_bits, max(a, b));
    min_bits_less_one = min(min_bits_less_one, min(a - 1, b - 1));
  }
  __device__ void reduce_warp() {
    max_bits = __reduce_max_sync(0xffffffffu, max_bits);
    min_bits_less_one = __reduce_min_sync(0xffffffffu, min_bits_less_one);
  }
  __device__ bool is_finite() const { return max_bits < kInfinityBits<Element>; }

  // Binades of the largest and the smallest value, and the number of binade windows that cover both. The
  // numbers must be finite float32 numbers.
  __device__ int top() const { return max_bits == 0 ? 0 : exponent_of(max_bits); }
  __device__ int bottom() const { return max_bits == 0 ? 0 : exponent_of(min_bits_less_one + 1); }
  __device__ int windows() const { return (top() - bottom()) / kBinades + 1; }
  __device__ bool fits(const BinadeWindow& window) const {
    return max_bits == 0 || window.holds(min_bits_less_one + 1, max_bits);
  }
  __device__ bool fits(int top) const { return fits(BinadeWindow(top)); }
  // The highest binade of the first binade window. If one binade window is enough, it leaves headroom for the
  // next tile's values.
  __device__ int window_top() const {
    return windows() == 1 ? min(top() + 2, bottom() + kBinades - 1) : top();
  }
};

// True if the binade window at `top` holds all numbers of the range; formats without scaling only need finite
// numbers.
template <typename Format, typename Element>
__device__ inline bool fits(const ValueRange<Element>& range, int top) {
  return Format::kIsScaled ? range.fits(top) : range.is_finite();
}

// Reduces the ranges of a group of threads through shared memory. `state` starts as the members of an empty
// range and is reset to them. `sync` is a barrier of the group; `is_leader` is true in one of its threads.
template <typename Element, typename State, typename Sync>
__device__ inline ValueRange<Element> reduce_threads(ValueRange<Element> range, State& state, bool is_leader,
                                                     Sync sync) {
  range.reduce_warp();
  if (threadIdx.x % 32 == 0) {
    atomicMax(&state.max_bits, range.max_bits);
    atomicMin(&state.min_bits_less_one, range.min_bits_less_one);
  }
  sync();
  const ValueRange<Element> reduced{state.max_bits, state.min_bits_less_one};
  sync();
  if (is_leader) state.max_bits = 0u, state.min_bits_less_one = ~0u;
  return reduced;
}

// Base of formats with one part (number) per element, and so one term (product) per pair of a pixel and a
// weight.
struct OnePart {
  static constexpr int kParts = 1;
  static constexpr int kTerms = 1;
  static constexpr int kCorrections = 0;
  static constexpr float kCorrectionScale = 1.0f;
  static __device__ constexpr int pixel_part(int) { return 0; }
  static __device__ constexpr int weight_part(int) { return 0; }
};

// Calls add(term) for each term of a format. The first kCorrections terms of a format are too large by the
// factor 1 / kCorrectionScale. After them calls correct(), which must multiply the accumulators by
// kCorrectionScale before the remaining terms are added. kUnrolled is the unroll factor.
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

  // Packs neighbouring results for one store.
  static __device__ unsigned pack(const float (&values)[1]) { return __float_as_uint(values[0]); }
  static __device__ uint2 pack(const float (&values)[2]) {
    return make_uint2(__float_as_uint(values[0]), __float_as_uint(values[1]));
  }
  static __device__ uint4 pack(const float (&values)[4]) {
    return make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
                      __float_as_uint(values[3]));
  }
};

// Formats of tensor-core operands. `Element` is the type of the tensors, `Number` that of the operands. A
// *pair* is two neighbours along K in a 32-bit register or word, as mma and wgmma read them.

// float32 elements as scaled float16 operands, for precision tf32.
struct ScaledFloat16Pairs : Float32Elements, OnePart {
  using Number = Float16;
  static constexpr bool kIsScaled = true;

  static __device__ unsigned pair(float first, float second, float scale, int) {
    return pack_rounded<Float16>(first * scale, second * scale);
  }
};

// float32 elements as two scaled float16 operands each, for precision ieee. Part 0 is the rounded number,
// part 1 its rounding error times 2^12, so that both use the same binade window. Together they hold 23 bits.
// The product of the two rounding errors, at most 2^-22 of the full product, is omitted.
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
    unsigned word = pack_rounded<Float16>(first, second);
    if (part == 1) {
      // Exact differences of less than 2^4.
      word = pack_rounded<Float16>((first - unpack_low<Float16>(word)) / kCorrectionScale,
                                   (second - unpack_high<Float16>(word)) / kCorrectionScale);
    }
    return word;
  }
};

// float16 or bfloat16 elements, which are operands unchanged. Accumulators stay float32 and are rounded once,
// at the store.
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
  static __device__ uint4 pack(const float (&values)[8]) {
    return make_uint4(pack_rounded<Small>(values[0], values[1]), pack_rounded<Small>(values[2], values[3]),
                      pack_rounded<Small>(values[4], values[5]), pack_rounded<Small>(values[6], values[7]));
  }
};

using Float16Pairs = SmallFloats<Float16>;
using Bfloat16Pairs = SmallFloats<BFloat16>;

// Finds the value range of filters, one filter per warp at a time. Writes the highest binade of each filter
// to `tops`. Raises `windows` to the largest number of binade windows of any filter, or to ~0 if a filter is
// not finite. `weights_of(filter)` points to the `size` weights of a filter. kIsRare unrolls by 4 only, for
// small code: few_channels, which seldom takes this path, ran 1 to 2 % slower at batch 64 with the compiler's
// own unrolling.
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
