#pragma once

// Results of kernels that hold int32 sums of codes in accumulators: four results become a word of codes of y.
// Every result has the steps of conv/quantization.h, with the same roundings.

#include "conv/quantization.h"
#include "cuda/epilogue/activations.cuh"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/naive_quantised_conv.h"
#include "cuda/primitives/requantise.cuh"

namespace convswap {

template <CodeResults kResults>
constexpr bool kHasResidual = kResults == CodeResults::residual || kResults == CodeResults::rounded;

// Turns sums of codes of type X into steps from the zero point of y, without limits. `residual` has the codes
// of the residual, in the order of the sums.
template <CodeResults kResults, typename X>
__device__ inline void steps_of_sums(const NaiveQuantisedConv& conv, const EpilogueParams& epilogue,
                                     const float (&scale)[4], const float (&offset)[4], const int (&sums)[4],
                                     unsigned residual, float (&values)[4]) {
  constexpr bool kIsAny = kResults == CodeResults::any;
  const Quantization& quantization = conv.quantization;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float value;
    if (kIsAny) {
      value = requantize::number_of_sum<X>(quantization, sums[i], scale[i], offset[i], conv.sum_values);
    } else {
      value = requantize::multiply(static_cast<float>(sums[i]), scale[i]);
      if (kResults != CodeResults::scaled) value = requantize::add(value, offset[i]);
    }
    if (kResults == CodeResults::rounded) {
      const float least = static_cast<float>(requantize::kMinCode<X> - quantization.sum_zero_point);
      const float steps = rounded_half_to_even(fminf(fmaxf(value, least), least + 255));
      value = requantize::multiply(steps, quantization.sum_scale);
    }
    if (kHasResidual<kResults> || (kIsAny && conv.z != nullptr)) {
      const float steps = number_of_code<X>(residual, i, quantization.residual_zero_point);
      value = requantize::add(value, requantize::multiply(steps, quantization.residual_scale));
    }
    values[i] = value;
  }
  if (kIsAny && !epilogue.only_clamps) apply_activation(epilogue, values);
  if (kHasResidual<kResults> || kIsAny) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = requantize::multiply(values[i], quantization.y_factor);
  }
}

// Writes the code of y for each code of a sum, from the least on, to a table in shared memory. For
// CodeResults::tabled; `thread` is one of `threads`.
__device__ inline void write_code_table(const NaiveQuantisedConv& conv, const EpilogueParams& epilogue,
                                        unsigned char* table, int thread, int threads) {
  for (int i = thread; i < kCodeCount; i += threads) {
    float value[1] = {conv.sum_values[i]};
    apply_activation(epilogue, value);
    table[i] =
        static_cast<unsigned char>(requantize::result_code(conv.quantization, value[0], conv.y_min_code));
  }
}

// Turns steps from the zero point of y into words of codes. For CodeResults::tabled the steps count from the
// zero point of the sum of codes of type X, and the table has the codes of y.
template <CodeResults kResults, typename X>
class ResultCodes {
 public:
  // `are_bounded` as are_steps_bounded.
  __device__ ResultCodes(const NaiveQuantisedConv& conv, const StepLimits& limits, bool are_bounded,
                         const unsigned char* table)
      : sum_distance_(conv.quantization.sum_zero_point - requantize::kMinCode<X>),
        // Codes saturate when they are packed, if adding the rounder has not overflowed before.
        has_limits_((!kIsTabled && limits.are_narrower) || kResults == CodeResults::any || !are_bounded),
        least_(kIsTabled ? static_cast<float>(-sum_distance_) : limits.least),
        most_(kIsTabled ? least_ + 255 : limits.most),
        // Indices of the table are distances from the least code.
        packing_(kIsTabled ? CodePacking(sum_distance_, 0)
                           : CodePacking(conv.quantization.y_zero_point, conv.y_min_code)),
        table_(table) {}

  // Limits many values after a single branch: branches between values would keep their instructions from
  // overlapping.
  template <int kWords>
  __device__ void limit(float (&values)[kWords][4]) const {
    if (!has_limits_) return;
#pragma unroll
    for (int i = 0; i < 4 * kWords; ++i) {
      float& value = values[i / 4][i % 4];
      value = fminf(fmaxf(value, least_), most_);
    }
  }

  __device__ unsigned word_of(const float (&steps)[4]) const {
    const unsigned word = packing_.word_of(steps);
    return kIsTabled ? look_up(table_, word) : word;
  }

 private:
  static constexpr bool kIsTabled = kResults == CodeResults::tabled;

  int sum_distance_;
  bool has_limits_;
  float least_, most_;
  CodePacking packing_;
  const unsigned char* table_;
};

}  // namespace convswap
