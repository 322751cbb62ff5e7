#pragma once

// The way of the results: from the sums to y, with what follows the convolution.

#include "cuda/epilogue/activations.cuh"
#include "cuda/many_channels/share.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/primitives/nan_min_max.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"

namespace convswap::many_channels {

// What makes results of a row's sums.
template <typename Format>
struct Row {
  PowerOfTwo scale;
  float bias = 0.0f;

  // `row`: of those of the block; `exponent`: of the scales of the pixels and the windows of weights.
  template <typename Element>
  __device__ Row(const Arguments<Element>& problem, const Head& head, int row, int exponent) {
    const int of_group = head.filter_block * kRows + row;
    if (of_group >= problem.filters) return;
    if (problem.b != nullptr && problem.splits.divisor == 1) {
      bias = Format::to_float(problem.b[head.group * problem.filters + of_group]);
    }
    if constexpr (Format::kIsScaled) {
      scale = PowerOfTwo(-scale_exponent(problem.filter_ranges[head.first_row + row].top) - exponent);
    }
  }
};

// How the results of a column, a plane for each of its 16 rows, are stored: of which the first `rows` are
// filters.
template <typename Format, typename Stored, typename Element = typename Format::Element>
class Column {
 public:
  // `to`: y, or the sums of a split.
  __device__ Column(const Arguments<Element>& problem, Stored* to, long long at, int rows,
                    const float* staged)
      : residual_(global_address(problem.z + at)),
        to_(global_address(to + at)),
        plane_bytes_(problem.output_plane * static_cast<unsigned>(sizeof(Stored))),
        rows_(rows),
        staged_(staged) {}

  // Where the activation only limits.
  __device__ void store_limited(float least, float most) const {
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
      store(i, min_nan(max_nan(staged_[i * kStagedPitch], least), most));
    }
  }
  // Also with a residual, or with fewer rows: so many residuals are loaded before anything is stored, which
  // the compiler does not know to lie elsewhere.
  template <int kRowsAtOnce, typename Activate>
  __device__ void store_any(bool has_residual, Activate activate) const {
#pragma unroll 1
    for (int first = 0; first < min(rows_, kRowsOfWarp); first += kRowsAtOnce) {
      float values[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) values[i] = staged_[(first + i) * kStagedPitch];
      if (has_residual) {
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          if (first + i < rows_) {
            values[i] += Format::to_float(*optimization_barrier_global(
                reinterpret_cast<const Element*>(address_at(residual_, first + i, plane_bytes_))));
          }
        }
      }
      activate(values);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (first + i < rows_) store(first + i, values[i]);
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
  int rows_;
  const float* staged_;
};

// Stores what a warpgroup has summed up. Scales and bias are of a thread's two rows; all else is done where
// neighbouring lanes have neighbouring columns, which is how memory takes them best: part after part the
// results of a warp pass through `staged`, its part of shared memory.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void store_results(const Arguments<Element>& problem, const Head& head, int exponent,
                                     const int* outputs, float (&accumulators)[kTiles][4], float* staged) {
  constexpr int kTilesAtOnce = kStagedColumns / kTileColumns;
  constexpr int kParts = (kTiles + kTilesAtOnce - 1) / kTilesAtOnce;
  const int lane = threadIdx.x % 32;
  const int first_row = threadIdx.x % 128 / 32 * kRowsOfWarp;
  int own[kParts];  // outputs of the lane's columns
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int column = part * kStagedColumns + lane;
    own[part] = column < kTiles * kTileColumns ? outputs[column] : kNoOutput;
  }
  const Row<Format> rows_of_lane[2] = {{problem, head, first_row + lane / 4, exponent},
                                       {problem, head, first_row + lane / 4 + 8, exponent}};
  // Scales are seldom so far apart that one factor would leave float32.
  const bool are_near = __all_sync(~0u, rows_of_lane[0].scale.is_near && rows_of_lane[1].scale.is_near);
  if (Format::kIsScaled && !are_near) [[unlikely]] {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) accumulators[t][j] *= rows_of_lane[j / 2].scale.rest;
    }
  }
  const EpilogueParams& following = problem.following;
  const int first_filter = head.filter_block * kRows + first_row;
  const int rows = problem.filters - first_filter;
  const bool has_residual = problem.z != nullptr, is_split = problem.splits.divisor > 1;
  const bool is_plain = following.only_clamps && rows >= kRowsOfWarp && !has_residual;
  const long long plane = (head.image * problem.out_channels + head.group * problem.filters + first_filter) *
                          problem.output_plane;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    __syncwarp();
#pragma unroll
    for (int t = 0; t < kTilesAtOnce && part * kTilesAtOnce + t < kTiles; ++t) {
      const float (&of_tile)[4] = accumulators[part * kTilesAtOnce + t];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Row<Format>& row = rows_of_lane[i];
        const float factor = Format::kIsScaled ? row.scale.factor : 1.0f;
        const float pair[2] = {of_tile[2 * i] * factor + row.bias, of_tile[2 * i + 1] * factor + row.bias};
        *reinterpret_cast<uint2*>(staged + (lane / 4 + i * 8) * kStagedPitch + t * kTileColumns +
                                  lane % 4 * 2) = Float32Elements::pack(pair);
      }
    }
    __syncwarp();
    if (own[part] == kNoOutput) continue;
    const long long at = plane + own[part];
    if (is_split) {
      float* const sums_of_split = problem.partial_sums + head.split * problem.results;
      const Column<Format, float> column(problem, sums_of_split, at, rows, staged + lane);
      column.template store_any<8>(false, [](float (&)[8]) {});
      continue;
    }
    const Column<Format, Element> column(problem, problem.y, at, rows, staged + lane);
    if (is_plain) [[likely]] {
      column.store_limited(following.least, following.most);
    } else if (following.only_clamps) {
      column.template store_any<8>(has_residual,
                                   [&](float (&values)[8]) { limit_values(following, values); });
    } else if (is_swish(following.epilogue)) {
      column.template store_any<8>(has_residual,
                                   [&](float (&values)[8]) { activate_swish(following.epilogue, values); });
    } else {
      column.template store_any<1>(
          has_residual, [&](float (&values)[1]) { values[0] = activated(following.epilogue, values[0]); });
    }
  }
}

// A tile with infinities or NaN, or whose values span too much, by a warpgroup.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ void compute_as_defined(const Arguments<Element>& problem, const Head& head,
                                                const int* outputs, int columns) {
  const int image_size = problem.out_channels * problem.output_plane;
  for (int i = threadIdx.x % 128; i < kRows * columns; i += 128) {
    const int output = outputs[i % columns];
    const int filter = head.filter_block * kRows + i / columns;
    if (output == kNoOutput || filter >= problem.filters) continue;
    const int image = output / image_size, element = output - image * image_size;
    const int line = element / problem.output_width, column = element - line * problem.output_width;
    const int depth = line / problem.output_height, row = line - depth * problem.output_height;
    const long long n = head.image + image, k = head.group * problem.filters + filter;
    problem.y[(n * problem.out_channels + k) * problem.output_plane + element] = static_cast<Element>(
        naive_conv_value<Element, float>(problem, problem.definition, n, k, depth, row, column));
  }
}

// The same of a split, which has not all that the definition asks for: by a warpgroup.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ void leave_undefined(const Arguments<Element>& problem, const Head& head,
                                             const int* outputs, int columns) {
  float* const accumulators = problem.partial_sums + head.split * problem.results;
  for (int i = threadIdx.x % 128; i < kRows * columns; i += 128) {
    const int output = outputs[i % columns], filter = head.filter_block * kRows + i / columns;
    if (output == kNoOutput || filter >= problem.filters) continue;
    const long long plane = head.image * problem.out_channels + head.group * problem.filters + filter;
    accumulators[plane * problem.output_plane + output] = __uint_as_float(kUndefinedSum);
  }
}

// An element of y from the sums of the splits.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void combine_result(const Arguments<Element>& problem, long long at) {
  const long long plane = at / problem.output_plane;
  const int element = static_cast<int>(at - plane * problem.output_plane);
  const long long image = plane / problem.out_channels;
  const int filter = static_cast<int>(plane - image * problem.out_channels);
  float accumulators[] = {0.0f};
  float& sum = accumulators[0];
  bool is_defined = true;
  for (int split = 0; split < static_cast<int>(problem.splits.divisor); ++split) {
    const float own = problem.partial_sums[split * problem.results + at];
    if (__float_as_uint(own) == kUndefinedSum) is_defined = false;
    sum += own;
  }
  if (!is_defined) [[unlikely]] {
    const int line = element / problem.output_width, column = element - line * problem.output_width;
    const int depth = line / problem.output_height, row = line - depth * problem.output_height;
    problem.y[at] = static_cast<Element>(
        naive_conv_value<Element, float>(problem, problem.definition, image, filter, depth, row, column));
    return;
  }
  if (problem.b != nullptr) sum += Format::to_float(problem.b[filter]);
  if (problem.z != nullptr) sum += Format::to_float(problem.z[at]);
  finish_values(problem.following, accumulators);
  problem.y[at] = static_cast<Element>(sum);
}

}  // namespace convswap::many_channels
