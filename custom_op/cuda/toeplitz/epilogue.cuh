#pragma once

// What follows the convolution, computed of a tile's results in shared memory.

#include "conv/epilogue_math.h"
#include "cuda/toeplitz/results.cuh"

namespace convswap::toeplitz {

// Called for one value or for four, not inlined: the loops below for each activation, compiled into every
// kernel, took the compiler longer than all else.
template <typename Sum>
__device__ __noinline__ Sum activated(const Epilogue& epilogue, Sum value) {
  return activate<Sum>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
}
template <typename Sum>
__device__ __noinline__ float4 activated_four(const Epilogue& epilogue, float4 values) {
  const auto one = [&](Sum value) {
    return activate<Sum>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
  };
  return make_float4(one(values.x), one(values.y), one(values.z), one(values.w));
}

// Makes what goes to y of the convolution's results, row by row, a warp to a row.
template <typename Element>
__device__ inline void finish_everything(const Arguments<Element>& problem, const Results<Element>& results) {
  const Epilogue& epilogue = problem.definition.epilogue;
  const Pool& pool = epilogue.pool;
  const Tile& tile = results.tile;
  const bool has_residual = problem.z != nullptr;
  const bool activates_last = pool.kind == PoolKind::max && is_increasing(epilogue);
  const int kernel_height = static_cast<int>(pool.kernel[0]), kernel_width = static_cast<int>(pool.kernel[1]);
  const int stride_height = static_cast<int>(pool.stride[0]), stride_width = static_cast<int>(pool.stride[1]);
  const int pad_height = static_cast<int>(pool.pad_begin[0]), pad_width = static_cast<int>(pool.pad_begin[1]);
  const int rows = tile.images * results.filters * tile.y_rows;
  for (int i = thread_of_warpgroup() / 32; i < rows; i += kWarpgroupThreads / 32) {
    const int plane_index = i / tile.y_rows;
    const int y_row = i - plane_index * tile.y_rows;
    const int image = plane_index / results.filters;
    const int filter = plane_index - image * results.filters;
    const long long plane = (tile.n + image) * problem.out_channels + results.first_filter + filter;
    // From here a row and a column of the convolution's output count as they do there.
    const float* const from = static_cast<const float*>(results.waiting) + image * problem.results.image +
                              filter * problem.results.plane - tile.first_row * problem.results.row -
                              tile.first_column;
    const Element* const residual = has_residual ? problem.z + plane * problem.output_plane : nullptr;
    Element* const to = results.stored + image * problem.stored.image + filter * problem.stored.plane +
                        y_row * problem.stored.row;
    const auto sum_at = [&](int row, int column) {
      float value = from[row * problem.results.row + column];
      if (has_residual) value += static_cast<float>(residual[row * problem.output_width + column]);
      return value;
    };
    if (pool.kind == PoolKind::none) {
      const int row = tile.first_row + y_row;
      for (int column = threadIdx.x % 32; column < tile.columns; column += 32) {
        to[column] =
            static_cast<Element>(activated<float>(epilogue, sum_at(row, tile.first_column + column)));
      }
      continue;
    }
    const PoolWindow all_rows(pool, 0, tile.y_row + y_row, problem.output_height);
    const int first_row = (tile.y_row + y_row) * stride_height - pad_height;
    const int row_begin = max(first_row, 0), row_end = min(first_row + kernel_height, problem.output_height);
    for (int y_column = threadIdx.x % 32; y_column < tile.y_columns; y_column += 32) {
      const int first_column = y_column * stride_width - pad_width;
      const int column_begin = max(first_column, 0);
      const int column_end = min(first_column + kernel_width, problem.output_width);
      float value = pool.kind == PoolKind::max ? -infinity() : 0.0f;
      for (int row = row_begin; row < row_end; ++row) {
        for (int column = column_begin; column < column_end; ++column) {
          const float sum = sum_at(row, column);
          if (activates_last) {
            value = larger_or_nan(sum, value);
          } else if (pool.kind == PoolKind::max) {
            value = larger_or_nan(activated<float>(epilogue, sum), value);
          } else {
            value += activated<float>(epilogue, sum);
          }
        }
      }
      if (activates_last) value = activated<float>(epilogue, value);
      if (pool.kind == PoolKind::average) {
        const PoolWindow columns(pool, 1, y_column, problem.output_width);
        value /= static_cast<float>(all_rows.counted * columns.counted);
      }
      to[y_column] = static_cast<Element>(value);
    }
  }
}

// The activation of what waits, chunk by chunk; what lies between planes takes part and goes nowhere.
template <typename Element>
__device__ inline void activate_results(const Arguments<Element>& problem, const Results<Element>& results) {
  constexpr int kChunk = Results<Element>::kChunk;
  const Epilogue& epilogue = problem.definition.epilogue;
  const ResultPlaces& places = problem.stored;
  const int beyond = static_cast<int>(results.start) & (kChunk - 1);
  const int end = beyond + (results.tile.images - 1) * places.image + (results.filters - 1) * places.plane +
                  (results.tile.y_rows - 1) * places.row + results.tile.y_columns;
  const float4* const from = reinterpret_cast<const float4*>(static_cast<float*>(results.waiting) - beyond);
  Element* const to = results.stored - beyond;
  for (int i = thread_of_warpgroup(); 4 * i < end; i += kWarpgroupThreads) {
    const float4 four = activated_four<float>(epilogue, from[i]);
    if constexpr (sizeof(Element) == sizeof(float)) {
      reinterpret_cast<float4*>(to)[i] = four;
    } else {
      const float values[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) to[4 * i + j] = static_cast<Element>(values[j]);
    }
  }
}

// Called, not inlined: it would be compiled into every kernel.
template <typename Element>
__device__ __noinline__ void finish(const Arguments<Element>& problem, int index, int first_filter,
                                    int filters, unsigned char* own) {
  const Results<Element> results = Results<Element>::template of<true>(
      problem, Tile::of<true>(problem, index), first_filter, filters, own);
  if (problem.finish == Finish::everything) {
    finish_everything(problem, results);
  } else {
    activate_results(problem, results);
  }
}

}  // namespace convswap::toeplitz
