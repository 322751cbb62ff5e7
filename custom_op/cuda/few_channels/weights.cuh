#pragma once

// Staging of the weights in shared memory.

#include "cuda/few_channels/arguments.h"
#include "cuda/primitives/tensor_core_formats.cuh"

namespace convswap::few_channels {

// Bundle at `index` along K. Bundles beyond the filter's last are padding.
template <int kBundle, typename Arguments>
__device__ inline FilterBundle filter_bundle(const Arguments& problem, int index) {
  if (index >= problem.bundles) return {0, 0, {-1, -1, -1, -1}, {}};
  const bool single_taps = problem.dilation_width != 1;
  const int per_line = single_taps ? problem.filter_width : problem.stride_phases;
  const int within = index % per_line;
  const int line = index / per_line;
  const int rows = (problem.folded_filter_height + problem.bundle_rows - 1) / problem.bundle_rows;
  const int first_row = line % rows;
  const int channel_block = line / rows;

  FilterBundle bundle;
#pragma unroll
  for (int j = 0; j < kBundle; ++j) {
    const int c = channel_block * problem.bundle_channels + j % problem.bundle_channels;
    const int r = first_row + j / problem.bundle_channels * rows;
    bundle.row[j] = c < problem.pass_channels ? r : -1;
    bundle.start[j] =
        ((problem.first_channel + c) * problem.filter_height + r) * problem.filter_width + within;
  }
  int stride_phase = within;
  int column = 0;
  bundle.taps = (problem.filter_width - within + problem.stride_width - 1) / problem.stride_width;
  if (single_taps) {
    stride_phase = within * problem.dilation_width % problem.stride_width;
    column = within * problem.dilation_width / problem.stride_width;
    bundle.taps = 1;
  }
  bundle.offset =
      channel_block * problem.channel_block_words +
      (first_row * problem.dilation_height * problem.stride_phases + stride_phase) * problem.line_words +
      column * kBundle;
  return bundle;
}

// Converts the weights and stores them in the order of the mma's B fragments: for each (filter block, part,
// k-step, tap) the words of all lanes are contiguous, by accumulator tile. Returns the value range that the
// thread has read.
template <typename Format, int kBundle, int kTaps, int kAccumulatorTiles, bool kNhwc, typename Arguments>
__device__ inline ValueRange<typename Format::Element> stage_weights(const Arguments& problem,
                                                                     const typename Format::Element* w,
                                                                     const FilterBundle* bundles, int filters,
                                                                     const int* tops, int window,
                                                                     unsigned* weights) {
  constexpr int kWords = kBundle / 2;
  const int stride = problem.channels * problem.filter_height * problem.filter_width;
  const int count =
      problem.filter_blocks * Format::kParts * problem.steps * kTaps * kAccumulatorTiles * 32 * kWords;
  ValueRange<typename Format::Element> range;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int word = i % kWords;
    const int lane = i / kWords % 32;
    int remaining = i / kWords / 32;
    const int tile = remaining % kAccumulatorTiles;
    remaining /= kAccumulatorTiles;
    const int tap = remaining % kTaps;
    remaining /= kTaps;
    const int step = remaining % problem.steps;
    remaining /= problem.steps;
    const int part = remaining % Format::kParts;
    const int filter = remaining / Format::kParts * kAccumulatorTiles * kMmaN +
                       filter_of_column<kNhwc, kAccumulatorTiles, typename Format::Element>(tile, lane / 4);
    unsigned packed = 0;
    if (filter < filters) {
      const FilterBundle& bundle = bundles[step * kBundlesPerStep + lane % 4];
      const BinadeWindow binades(tops[filter] - window * kBinades);
      const int shift = (filter & ((1 << problem.log2_folds) - 1)) * problem.stride_height;
      const auto weight_at = [&](int j) -> typename Format::Element {
        const int r = bundle.row[j] - shift;
        if (r < 0 || r >= problem.filter_height || tap >= bundle.taps) return Format::zero();
        const typename Format::Element value =
            w[static_cast<long long>(filter >> problem.log2_folds) * stride + bundle.start[j] -
              shift * problem.filter_width + tap * problem.stride_width];
        range.include(value);
        if constexpr (Format::kIsScaled) return binades.holds(value) ? value : 0.0f;
        return value;
      };
      packed = Format::pair(weight_at(2 * word), weight_at(2 * word + 1), binades.scale(), part);
    }
    weights[i] = packed;
  }
  return range;
}

// Sets the scale and bias of each folded filter.
template <typename Format, typename Arguments>
__device__ inline void find_scales(const Arguments& problem, int filters, int padded, const int* tops,
                                   int weight_window, int top, const typename Format::Element* bias,
                                   FilterScale* scales, float* second_factors, BlockState* state) {
  for (int filter = threadIdx.x; filter < padded; filter += blockDim.x) {
    FilterScale scale = {1.0f, 0.0f};
    if (filter < filters) {
      if (bias != nullptr) scale.bias = Format::to_float(bias[filter >> problem.log2_folds]);
      if constexpr (Format::kIsScaled) {
        const PowerOfTwo undone = undo_scales(tops[filter] - weight_window * kBinades, top);
        scale.factor = undone.factor, second_factors[filter] = undone.second_factor;
        if (!undone.fits_one_factor) state->needs_second_factor = 1;
      }
    }
    scales[filter] = scale;
  }
}

}  // namespace convswap::few_channels
