#pragma once

// From the accumulators to y, with the epilogue.

#include "cuda/epilogue/activations.cuh"
#include "cuda/many_channels/tile_scheduler.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/primitives/nan_min_max.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"

namespace convswap::many_channels {

// Scale and bias of an accumulator row, which is a filter.
template <typename Format>
struct RowScale {
  PowerOfTwo scale;
  float bias = 0.0f;

  // `row` is the row in the filter block; `exponent` is the scale exponent of the pixels and weight windows.
  template <typename Element>
  __device__ RowScale(const Arguments<Element>& problem, const TileInfo& tile_info, int row, int exponent) {
    const int filter = tile_info.filter_block * kWgmmaM + row;
    if (filter >= problem.filters) return;
    if (problem.b != nullptr && problem.splits.divisor == 1) {
      bias = Format::to_float(problem.b[tile_info.conv_group * problem.filters + filter]);
    }
    if constexpr (Format::kIsScaled) {
      scale = PowerOfTwo(-scale_exponent(problem.filter_ranges[tile_info.first_row + row].top) - exponent);
    }
  }
};

// Stores the results at one position for a warp's 16 rows, each to the output channel of its filter.
// `filters_left` counts the filters of the conv group from the warp's first row on; further rows have none.
template <typename Format, typename Stored, typename Element = typename Format::Element>
class PositionWriter {
 public:
  // `to` is y or the sums of a split.
  __device__ PositionWriter(const Arguments<Element>& problem, Stored* to, long long at, int filters_left,
                            const float* staged)
      : residual_(global_address(problem.z + at)),
        to_(global_address(to + at)),
        plane_bytes_(problem.output_plane * static_cast<unsigned>(sizeof(Stored))),
        filters_left_(filters_left),
        staged_(staged) {}

  // Stores 16 rows without a residual, with an activation that only clamps.
  __device__ void store_clamped(float lower, float upper) const {
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      store(i, min_nan(max_nan(staged_[i * kStagedPitch], lower), upper));
    }
  }
  // Stores rows with any residual, activation and number of filters. Loads kRowsPerPass residuals before it
  // stores anything, because the compiler cannot know that y does not overlap the residual.
  template <int kRowsPerPass, typename Activate>
  __device__ void store_rows(bool has_residual, Activate activate) const {
#pragma unroll 1
    for (int first = 0; first < min(filters_left_, kWarpRows); first += kRowsPerPass) {
      float values[kRowsPerPass];
#pragma unroll
      for (int i = 0; i < kRowsPerPass; ++i) values[i] = staged_[(first + i) * kStagedPitch];
      if (has_residual) {
#pragma unroll
        for (int i = 0; i < kRowsPerPass; ++i) {
          if (first + i < filters_left_) {
            values[i] += Format::to_float(*optimization_barrier_global(
                reinterpret_cast<const Element*>(address_at(residual_, first + i, plane_bytes_))));
          }
        }
      }
      activate(values);
#pragma unroll
      for (int i = 0; i < kRowsPerPass; ++i) {
        if (first + i < filters_left_) store(first + i, values[i]);
      }
    }
  }

 private:
  __device__ void store(int row, float value) const {
    *optimization_barrier_global(reinterpret_cast<Stored*>(address_at(to_, row, plane_bytes_))) =
        static_cast<Stored>(value);
  }

  unsigned long long residual_, to_;
  unsigned plane_bytes_;
  int filters_left_;
  const float* staged_;
};

// Stores a warp's accumulators of 16 filters, from row `first_row` of the filter block on. Scale and bias are
// applied in the registers, where a thread has two rows. Results then pass through `staged`, the warp's part
// of shared memory, 32 positions at a time. The remaining epilogue runs with neighbouring lanes at
// neighbouring positions, for coalesced loads and stores.
template <typename Format, int kAccumulatorTiles, typename Element = typename Format::Element>
__device__ inline void store_results(const Arguments<Element>& problem, const TileInfo& tile_info,
                                     int exponent, const int* output_offsets,
                                     float (&accumulators)[kAccumulatorTiles][4], int first_row,
                                     float* staged) {
  constexpr int kStagedAccumulatorTiles = kStagedPositions / kAccumulatorTileColumns;
  constexpr int kStagedParts = (kAccumulatorTiles + kStagedAccumulatorTiles - 1) / kStagedAccumulatorTiles;
  const int lane = threadIdx.x % 32;
  int lane_outputs[kStagedParts];  // output offsets of the lane's positions
#pragma unroll
  for (int part = 0; part < kStagedParts; ++part) {
    const int position = part * kStagedPositions + lane;
    lane_outputs[part] =
        position < kAccumulatorTiles * kAccumulatorTileColumns ? output_offsets[position] : kNoOutput;
  }
  const RowScale<Format> row_scales[2] = {{problem, tile_info, first_row + lane / 4, exponent},
                                          {problem, tile_info, first_row + lane / 4 + 8, exponent}};
  // A single float32 factor nearly always holds the scale.
  const bool all_fit_one_factor =
      __all_sync(~0u, row_scales[0].scale.fits_one_factor && row_scales[1].scale.fits_one_factor);
  if (Format::kIsScaled && !all_fit_one_factor) [[unlikely]] {
#pragma unroll
    for (int t = 0; t < kAccumulatorTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) accumulators[t][j] *= row_scales[j / 2].scale.second_factor;
    }
  }
  const EpilogueParams& epilogue_params = problem.epilogue_params;
  const int first_filter = tile_info.filter_block * kWgmmaM + first_row;
  const int filters_left = problem.filters - first_filter;
  const bool has_residual = problem.z != nullptr, has_splits = problem.splits.divisor > 1;
  const bool only_clamps_full_rows =
      epilogue_params.only_clamps && filters_left >= kWarpRows && !has_residual;
  const long long plane =
      (tile_info.image * problem.out_channels + tile_info.conv_group * problem.filters + first_filter) *
      problem.output_plane;
#pragma unroll
  for (int part = 0; part < kStagedParts; ++part) {
    __syncwarp();
#pragma unroll
    for (int t = 0; t < kStagedAccumulatorTiles && part * kStagedAccumulatorTiles + t < kAccumulatorTiles;
         ++t) {
      const float (&accumulator)[4] = accumulators[part * kStagedAccumulatorTiles + t];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const RowScale<Format>& row_scale = row_scales[i];
        const float factor = Format::kIsScaled ? row_scale.scale.factor : 1.0f;
        const float pair[2] = {accumulator[2 * i] * factor + row_scale.bias,
                               accumulator[2 * i + 1] * factor + row_scale.bias};
        *reinterpret_cast<uint2*>(staged + (lane / 4 + i * 8) * kStagedPitch + t * kAccumulatorTileColumns +
                                  lane % 4 * 2) = Float32Elements::pack(pair);
      }
    }
    __syncwarp();
    if (lane_outputs[part] == kNoOutput) continue;
    const long long at = plane + lane_outputs[part];
    if (has_splits) {
      float* const split_sums = problem.split_accumulators + tile_info.split * problem.y_elements;
      const PositionWriter<Format, float> writer(problem, split_sums, at, filters_left, staged + lane);
      writer.template store_rows<8>(false, [](float (&)[8]) {});
      continue;
    }
    const PositionWriter<Format, Element> writer(problem, problem.y, at, filters_left, staged + lane);
    if (only_clamps_full_rows) [[likely]] {
      writer.store_clamped(epilogue_params.lower, epilogue_params.upper);
    } else if (epilogue_params.only_clamps) {
      writer.template store_rows<8>(has_residual,
                                    [&](float (&values)[8]) { clamp_values(epilogue_params, values); });
    } else if (is_swish(epilogue_params.epilogue)) {
      writer.template store_rows<8>(
          has_residual, [&](float (&values)[8]) { activate_swish(epilogue_params.epilogue, values); });
    } else {
      writer.template store_rows<1>(has_residual, [&](float (&values)[1]) {
        values[0] = activated(epilogue_params.epilogue, values[0]);
      });
    }
  }
}

// Computes a work tile without tensor cores, because its prepared tile or its weights have infinities or NaN
// or span too many binades.
// Called by a warpgroup.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ void compute_naive_conv(const Arguments<Element>& problem, const TileInfo& tile_info,
                                                const int* output_offsets, int positions) {
  const int image_size = problem.out_channels * problem.output_plane;
  for (int i = threadIdx.x % 128; i < kWgmmaM * positions; i += 128) {
    const int output_offset = output_offsets[i % positions];
    const int filter = tile_info.filter_block * kWgmmaM + i / positions;
    if (output_offset == kNoOutput || filter >= problem.filters) continue;
    const int image = output_offset / image_size, element = output_offset - image * image_size;
    const int depth_row = element / problem.output_width, column = element - depth_row * problem.output_width;
    const int depth = depth_row / problem.output_height, row = depth_row - depth * problem.output_height;
    const long long n = tile_info.image + image, k = tile_info.conv_group * problem.filters + filter;
    problem.y[(n * problem.out_channels + k) * problem.output_plane + element] = static_cast<Element>(
        naive_conv_value<Element, float>(problem, problem.naive_conv, n, k, depth, row, column));
  }
}

// Marks the sums of a split as invalid. `combine` then computes the outputs with naive_conv_value, since a
// split has only its own channels. Called by a warpgroup.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ void invalidate_split(const Arguments<Element>& problem, const TileInfo& tile_info,
                                              const int* output_offsets, int positions) {
  float* const split_sums = problem.split_accumulators + tile_info.split * problem.y_elements;
  for (int i = threadIdx.x % 128; i < kWgmmaM * positions; i += 128) {
    const int output_offset = output_offsets[i % positions],
              filter = tile_info.filter_block * kWgmmaM + i / positions;
    if (output_offset == kNoOutput || filter >= problem.filters) continue;
    const long long plane =
        tile_info.image * problem.out_channels + tile_info.conv_group * problem.filters + filter;
    split_sums[plane * problem.output_plane + output_offset] = __uint_as_float(kInvalidSumBits);
  }
}

// Computes an element of y from the sums of the splits.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void combine_split_sums(const Arguments<Element>& problem, long long at) {
  const long long plane = at / problem.output_plane;
  const int element = static_cast<int>(at - plane * problem.output_plane);
  const long long image = plane / problem.out_channels;
  const int filter = static_cast<int>(plane - image * problem.out_channels);
  float accumulators[] = {0.0f};
  float& sum = accumulators[0];
  bool is_valid = true;
  for (int split = 0; split < static_cast<int>(problem.splits.divisor); ++split) {
    const float split_sum = problem.split_accumulators[split * problem.y_elements + at];
    if (__float_as_uint(split_sum) == kInvalidSumBits) is_valid = false;
    sum += split_sum;
  }
  if (!is_valid) [[unlikely]] {
    const int depth_row = element / problem.output_width, column = element - depth_row * problem.output_width;
    const int depth = depth_row / problem.output_height, row = depth_row - depth * problem.output_height;
    problem.y[at] = static_cast<Element>(
        naive_conv_value<Element, float>(problem, problem.naive_conv, image, filter, depth, row, column));
    return;
  }
  if (problem.b != nullptr) sum += Format::to_float(problem.b[filter]);
  if (problem.z != nullptr) sum += Format::to_float(problem.z[at]);
  apply_activation(problem.epilogue_params, accumulators);
  problem.y[at] = static_cast<Element>(sum);
}

}  // namespace convswap::many_channels
