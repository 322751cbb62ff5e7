#pragma once

// Results of kernels that compute int32 sums of several adjacent filters per thread.

#include "conv/epilogue_math.h"
#include "conv/quantization.h"
#include "conv/small_floats.h"
#include "cuda/primitives/naive_quantised_conv.h"
#include "cuda/primitives/pack_saturated.cuh"
#include "cuda/primitives/requantise.h"

namespace convswap {

// Beside 1.5 * 2^23 a float has no fraction, and its mantissa counts ones: adding a value between -2^22 and
// 2^22 rounds it half to even.
constexpr float kRounder = 12582912.0f;
__device__ inline float rounded_half_to_even(float value) {
  return requantize::add(requantize::add(value, kRounder), -kRounder);
}
// The low byte of the result is that of the rounded value.
__device__ inline int round_to_low_byte(float value) {
  return __float_as_int(requantize::add(value, kRounder));
}

// The steps of byte `i` of a word of codes from a zero point.
template <typename Code>
__device__ inline float number_of_code(unsigned codes, int i, int zero_point) {
  // The byte in the mantissa of 2^23. Those of int8 are offset, so that they count from the lowest code.
  if (requantize::kMinCode<Code> < 0) codes ^= 0x80808080;
  const float number = __uint_as_float(__byte_perm(codes, 0x4b000000, 0x7440 + static_cast<unsigned>(i)));
  return requantize::add(number, static_cast<float>(requantize::kMinCode<Code> - zero_point) - 8388608.0f);
}

// The bytes of a table at the bytes of a word.
__device__ inline unsigned look_up(const unsigned char* table, unsigned indices) {
  const unsigned a = table[indices & 0xff], b = table[indices >> 8 & 0xff];
  const unsigned c = table[indices >> 16 & 0xff], d = table[indices >> 24];
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// Packs steps from the zero point of y as codes of y.
struct CodePacking {
  int origin;      // the rounder's bits, less the distance of the zero point from the lowest code
  unsigned signs;  // turns distances from the lowest code into codes

  __device__ CodePacking(int zero_point, int min_code)
      : origin(__float_as_int(kRounder) - (zero_point - min_code)), signs(min_code < 0 ? 0x80808080 : 0) {}

  // The codes of four values between -2^21 and 2^21, rounded half to even, as a word. Those beyond the range
  // of codes saturate.
  __device__ unsigned word_of(const float (&steps)[4]) const {
    int distances[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) distances[i] = round_to_low_byte(steps[i]) - origin;
    return pack_saturated(distances) ^ signs;
  }
};

// True if all results of a filter are less than 2^21 steps from the zero point of y, or with values of codes
// of the sum, all sums from the zero point of the sum. Then CodePacking needs no limits, but for an
// activation that only clamps.
__device__ inline bool are_steps_bounded(const NaiveQuantisedConv& conv, const StepLimits& limits, int bias,
                                         float scale, float offset) {
  const Quantization& quantization = conv.quantization;
  float most = fabsf((limits.most_products + fabsf(static_cast<float>(bias))) * scale) + fabsf(offset);
  if (quantization.has_sum_values) return most < 0x1p21f;
  if (quantization.rounds_sum) most = fabsf(256 * quantization.sum_scale);
  if (conv.z != nullptr) most += fabsf(256 * quantization.residual_scale);
  return fabsf(most * quantization.y_factor) < 0x1p21f;  // false for NaN
}

// What results need, each a code path of its own.
enum class Results {
  saturated,  // codes of the scaled sums, whose only limits are the range of codes
  plain,      // codes of the scaled sums; see Requantisation::is_plain
  any,
};

// Calls a function template for `results`.
template <typename Function>
__device__ inline void call_for(Results results, const Function& function) {
  switch (results) {
    case Results::saturated:
      return function.template operator()<Results::saturated>();
    case Results::plain:
      return function.template operator()<Results::plain>();
    case Results::any:
      return function.template operator()<Results::any>();
  }
}

template <int kFilters>
struct CodeWords;
template <>
struct CodeWords<4> {
  using Type = unsigned;
};
template <>
struct CodeWords<8> {
  using Type = uint2;
};

// Scales and offsets of adjacent filters, of which `count` exist.
template <int kFilters>
struct FilterScales {
  float scale[kFilters], offset[kFilters];
  bool are_bounded = true;  // as are_steps_bounded

  __device__ FilterScales(const NaiveQuantisedConv& conv, const Requantisation& to, int first, int count) {
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      const int filter = first + (f < count ? f : 0);
      scale[f] = conv.scale[filter];
      offset[f] = conv.offset == nullptr ? 0.0f : conv.offset[filter];
      const int bias = conv.b == nullptr ? 0 : conv.b[filter];
      are_bounded = are_bounded && are_steps_bounded(conv, to.limits, bias, scale[f], offset[f]);
    }
  }

  __device__ Results results(const Requantisation& to) const {
    if (!to.is_plain) return Results::any;
    return are_bounded && !to.limits.are_narrower ? Results::saturated : Results::plain;
  }
};

// Adjacent filters at a position of the convolution, without a pool.
struct ResultPlace {
  long long y, z;    // elements of the first filter
  int filters_left;  // filters from the first on

  // The position counts in the image.
  __device__ ResultPlace(const NaiveQuantisedConv& conv, int image, long long position, int filter,
                         int filters_left)
      : y(element_at(conv.y_strides, image, position, filter)),
        z(element_at(conv.z_strides, image, position, filter)),
        filters_left(filters_left) {}

  // The next position.
  __device__ void advance(const NaiveQuantisedConv& conv) {
    y += conv.y_strides.position, z += conv.z_strides.position;
  }

 private:
  static __device__ long long element_at(const Strides& strides, int image, long long position, int filter) {
    return image * strides.image + position * strides.position + filter * strides.channel;
  }
};

// The residual's codes of the filters.
template <typename X, int kFilters>
__device__ inline void load_residual(const NaiveQuantisedConv& conv, const Requantisation& to,
                                     const ResultPlace& at, X (&codes)[kFilters]) {
  const X* const residual = static_cast<const X*>(conv.z) + at.z;
  if (to.has_z_vectors && at.filters_left >= kFilters) {
    const auto words = *reinterpret_cast<const typename CodeWords<kFilters>::Type*>(residual);
    memcpy(codes, &words, sizeof words);
    return;
  }
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    codes[f] = f < at.filters_left ? residual[f * conv.z_strides.channel] : X(0);
  }
}

// Stores the values of the filters if y has numbers.
template <int kFilters>
__device__ inline void store_numbers(const NaiveQuantisedConv& conv, const ResultPlace& at,
                                     const float (&values)[kFilters]) {
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    if (f >= at.filters_left) break;
    if (conv.y_bytes == 4) {
      static_cast<float*>(conv.y)[at.y + f * conv.y_strides.channel] = values[f];
    } else {
      static_cast<Float16*>(conv.y)[at.y + f * conv.y_strides.channel] = Float16(values[f]);
    }
  }
}

template <int kFilters>
__device__ inline void store_codes(const NaiveQuantisedConv& conv, const Requantisation& to,
                                   const ResultPlace& at, const unsigned (&words)[kFilters / 4]) {
  Int8* const y = static_cast<Int8*>(conv.y) + at.y;
  if (to.has_y_vectors && at.filters_left >= kFilters) {
    if constexpr (kFilters == 8) {
      *reinterpret_cast<uint2*>(y) = make_uint2(words[0], words[1]);
    } else {
      *reinterpret_cast<unsigned*>(y) = words[0];
    }
    return;
  }
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    if (f < at.filters_left) y[f * conv.y_strides.channel] = static_cast<Int8>(words[f / 4] >> f % 4 * 8);
  }
}

// Turns the sums of adjacent filters into codes or numbers of y, and stores them.
template <Results kResults, typename X, int kFilters>
__device__ inline void store_results(const NaiveQuantisedConv& conv, const Requantisation& to,
                                     const FilterScales<kFilters>& scales, const ResultPlace& at,
                                     const int (&sums)[kFilters]) {
  float values[kFilters];
  if constexpr (kResults != Results::any) {
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      values[f] = requantize::multiply(static_cast<float>(sums[f]), scales.scale[f]);
    }
  } else {
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      values[f] = requantize::number_of_sum<X>(conv.quantization, sums[f], scales.scale[f], scales.offset[f],
                                               conv.sum_values);
    }
    if (conv.z != nullptr) {
      X residual[kFilters];
      load_residual(conv, to, at, residual);
#pragma unroll
      for (int f = 0; f < kFilters; ++f) {
        values[f] = requantize::plus_residual(conv.quantization, values[f], residual[f]);
      }
    }
    const bool has_numbers = conv.y_bytes > 1;
    if (has_numbers || !to.only_clamps) {
      const Epilogue& epilogue = conv.conv.epilogue;
#pragma unroll
      for (int f = 0; f < kFilters; ++f) {
        values[f] = activate<float>(epilogue.activation, epilogue.alpha, epilogue.beta, values[f]);
      }
    }
    if (has_numbers) return store_numbers(conv, at, values);
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      values[f] = requantize::multiply(values[f], conv.quantization.y_factor);
    }
  }
  if (kResults != Results::saturated) {
#pragma unroll
    for (float& value : values) value = fminf(fmaxf(value, to.limits.least), to.limits.most);
  }
  const CodePacking packing(conv.quantization.y_zero_point, conv.y_min_code);
  unsigned words[kFilters / 4];
#pragma unroll
  for (int f = 0; f < kFilters; f += 4) {
    const float four[4] = {values[f], values[f + 1], values[f + 2], values[f + 3]};
    words[f / 4] = packing.word_of(four);
  }
  store_codes<kFilters>(conv, to, at, words);
}

}  // namespace convswap
