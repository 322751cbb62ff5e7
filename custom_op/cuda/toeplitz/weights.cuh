#pragma once

// Staging of the weights in shared memory as a Toeplitz matrix.

#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/toeplitz/input.cuh"

namespace convswap::toeplitz {

// Writes the Toeplitz matrix of every filter pass and part (tensor_core_formats.cuh), k-step by k-step.
// Returns the value range of the weights that the thread has read.
template <typename Format, int kAccumulatorTiles, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> stage_weights(const Arguments<Element>& problem, const Element* w,
                                                    const int* tops, int window, unsigned* matrix) {
  const int size = problem.filter_height * problem.filter_width;
  const int bundle_mask = (1 << problem.log2_bundle) - 1;
  const int outputs_mask = (1 << problem.log2_outputs) - 1;
  const int count = problem.filter_passes * Format::kParts * problem.steps * kAccumulatorTiles * 64;
  ValueRange<Element> range;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int pair = i % 4;
    const int matrix_column = i / 4 % (kAccumulatorTiles * kAccumulatorTileColumns);
    int remaining = i / (kAccumulatorTiles * 32);
    const int half = remaining % 2;
    remaining /= 2;
    const int matrix_index = problem.steps_divisor.quotient_of_any(remaining);
    const int step = remaining - matrix_index * problem.steps;
    remaining = matrix_index;
    const int part = remaining % Format::kParts;
    const int filter_and_fold = matrix_column >> problem.log2_outputs;
    const int in_pass = filter_and_fold >> problem.log2_folds;
    const int filter = remaining / Format::kParts * problem.filters_per_pass + in_pass;
    unsigned packed = 0;
    if (in_pass < problem.filters_per_pass && filter < problem.filters) {
      const StepVectors vectors = problem.step_vectors[step];
      const int vector = half == 0 ? vectors.first : vectors.second;
      const int bundle_row = problem.window_vectors_divisor.quotient(vector);
      const int bundle = problem.window_rows_divisor.quotient(bundle_row);
      // Filter row and column, times the dilation, by which this matrix column multiplies the vector.
      const int row = bundle_row - bundle * problem.window_rows -
                      (filter_and_fold & (problem.folds - 1)) * problem.stride_height;
      const int first_column = ((vector - bundle_row * problem.window_vectors) << (3 - problem.log2_bundle)) -
                               (matrix_column & outputs_mask) * problem.stride_width;
      const int r = row < 0 ? 0 : static_cast<int>(problem.dilation_height_divisor.quotient(row));
      const BinadeWindow binades(tops[filter] - window * kBinades);
      const auto weight_at = [&](int j) -> Element {
        const int channel = (bundle << problem.log2_bundle) + (j & bundle_mask);
        const int across = first_column + (j >> problem.log2_bundle);
        const int s = across < 0 ? 0 : static_cast<int>(problem.dilation_width_divisor.quotient(across));
        if (vector < 0 || channel >= problem.channels || row < 0 || across < 0 ||
            r >= problem.filter_height || s >= problem.filter_width ||
            r * static_cast<int>(problem.dilation_height_divisor.divisor) != row ||
            s * static_cast<int>(problem.dilation_width_divisor.divisor) != across) {
          return Format::zero();
        }
        const Element value = w[(static_cast<long long>(filter) * problem.channels + channel) * size +
                                r * problem.filter_width + s];
        range.include(value);
        if constexpr (Format::kIsScaled) return binades.holds(value) ? value : 0.0f;
        return value;
      };
      packed = Format::pair(weight_at(2 * pair), weight_at(2 * pair + 1), binades.scale(), part);
    }
    matrix[i] = packed;
  }
  return range;
}

// Sets the scales of a warpgroup for every filter and fold of every filter pass. Returns whether one factor
// holds each scale that this thread sets. `are_scaled`: the accumulators are products of scaled numbers.
template <typename Format, int kAccumulatorTiles, typename Element = typename Format::Element>
__device__ inline bool find_scales(const Arguments<Element>& problem, const int* tops, int weight_window,
                                   int top, const Element* bias, bool are_scaled, FilterScale* scales) {
  const int per_pass = kAccumulatorTiles * kAccumulatorTileColumns >> problem.log2_outputs;
  bool fits_one_factor = true;
  for (int i = warpgroup_thread(); i < problem.filter_passes * per_pass; i += kWarpgroupThreads) {
    const int filter_pass = i / per_pass;
    const int within = i % per_pass;
    const int in_pass = within >> problem.log2_folds;
    const int filter = filter_pass * problem.filters_per_pass + in_pass;
    if (in_pass >= problem.filters_per_pass || filter >= problem.filters) continue;
    FilterScale scale = {1.0f, 1.0f, 0.0f, 0};
    scale.offset =
        (in_pass * problem.conv_strides.plane + (within & (problem.folds - 1)) * problem.fold_distance) *
        problem.result_bytes;
    if (bias != nullptr) scale.bias = Format::to_float(bias[filter]);
    if (Format::kIsScaled && are_scaled) {
      const PowerOfTwo undone = undo_scales(tops[filter] - weight_window * kBinades, top);
      scale.factor = undone.factor, scale.second_factor = undone.second_factor;
      fits_one_factor = fits_one_factor && undone.fits_one_factor;
    }
    scales[i] = scale;
  }
  return fits_one_factor;
}

}  // namespace convswap::toeplitz
