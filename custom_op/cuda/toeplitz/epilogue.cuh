#pragma once

// What follows the convolution, computed of a tile's results in shared memory.

#include "cuda/epilogue/activations.cuh"
#include "cuda/toeplitz/results.cuh"

namespace convswap::toeplitz {

// The commonest without a call.
template <int kCount>
__device__ inline void activate_commonest(const Epilogue& epilogue, float (&values)[kCount]) {
  activate_values<Activation::none, Activation::relu, Activation::tanh, Activation::silu,
                  Activation::hard_swish>(epilogue, values);
}

// The sums of a plane that wait in shared memory, with the residual; a row and a column count as they do in
// the convolution's output.
template <typename Element>
struct PlaneSums {
  const float* accumulators;
  int pitch;
  const Element* residual;  // null where there is none
  int height, width;        // of the output's plane

  __device__ float at(int row, int column) const {
    const float value = accumulators[row * pitch + column];
    return residual == nullptr ? value : value + static_cast<float>(residual[row * width + column]);
  }
};

// A window of a pool, cut off where the plane ends.
struct Window {
  int row, column;  // of its first, before the plane's first where negative
  int height, width;

  template <typename Element, typename Call>
  __device__ void for_each(const PlaneSums<Element>& plane, Call call) const {
    const int row_end = min(row + height, plane.height), column_end = min(column + width, plane.width);
    for (int h = max(row, 0); h < row_end; ++h) {
      for (int v = max(column, 0); v < column_end; ++v) call(plane.at(h, v));
    }
  }

  // The largest of a window of this size, all loaded at once; where the window leaves the plane, numbers at
  // its edge once more.
  template <int kSize, typename Element>
  __device__ float largest_at_once(const PlaneSums<Element>& plane) const {
    float largest = -infinity();
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
      const float* const accumulators =
          plane.accumulators + min(max(row + h, 0), plane.height - 1) * plane.pitch;
#pragma unroll
      for (int v = 0; v < kSize; ++v) {
        largest = max_nan(accumulators[min(max(column + v, 0), plane.width - 1)], largest);
      }
    }
    return largest;
  }

  template <typename Element>
  __device__ float largest(const PlaneSums<Element>& plane) const {
    const bool is_inside =
        row < plane.height && row + height > 0 && column < plane.width && column + width > 0;
    if (height == 2 && width == 2 && is_inside && plane.residual == nullptr) return largest_at_once<2>(plane);
    float largest = -infinity();
    for_each(plane, [&](float sum) { largest = max_nan(sum, largest); });
    return largest;
  }
};

// A pool whose activation does not go after the largest of a window alone.
template <typename Element>
__device__ inline float pooled_activations(const Epilogue& epilogue, const PlaneSums<Element>& plane,
                                           const Window& window) {
  if (epilogue.pool.kind == PoolKind::max) {
    float largest = -infinity();
    window.for_each(plane, [&](float sum) { largest = max_nan(activated(epilogue, sum), largest); });
    return largest;
  }
  float sum_of_all = 0.0f;
  window.for_each(plane, [&](float sum) { sum_of_all += activated(epilogue, sum); });
  return sum_of_all;
}

// Makes what goes to y of the convolution's results, row by row, a warp to a row.
template <typename Element>
__device__ inline void finish_everything(const Arguments<Element>& problem, const Results<Element>& results) {
  const Epilogue& epilogue = problem.definition.epilogue;
  const Pool& pool = epilogue.pool;
  const Tile& tile = results.tile;
  // The largest of what an increasing activation makes of each is that of the largest.
  const bool activates_last =
      pool.kind == PoolKind::none || (pool.kind == PoolKind::max && is_increasing(epilogue));
  const int rows = tile.images * results.filters * tile.y_rows;
  for (int i = warpgroup_thread() / 32; i < rows; i += kWarpgroupThreads / 32) {
    const int plane_index = i / tile.y_rows;
    const int y_row = i - plane_index * tile.y_rows;
    const int image = plane_index / results.filters;
    const int filter = plane_index - image * results.filters;
    const long long number = (tile.n + image) * problem.out_channels + results.first_filter + filter;
    const PlaneSums<Element> plane = {
        static_cast<const float*>(results.waiting) + image * problem.results.image +
            filter * problem.results.plane - tile.first_row * problem.results.row - tile.first_column,
        problem.results.row, problem.z == nullptr ? nullptr : problem.z + number * problem.output_plane,
        problem.output_height, problem.output_width};
    Element* const to = results.stored + image * problem.stored.image + filter * problem.stored.plane +
                        y_row * problem.stored.row;
    Window window = {};
    window.height = static_cast<int>(pool.kernel[0]), window.width = static_cast<int>(pool.kernel[1]);
    window.row =
        (tile.y_row + y_row) * static_cast<int>(pool.stride[0]) - static_cast<int>(pool.pad_begin[0]);
    const int stride = static_cast<int>(pool.stride[1]), pad = static_cast<int>(pool.pad_begin[1]);
    for (int column = threadIdx.x % 32; column < tile.y_columns; column += 32) {
      float value[1];
      window.column = column * stride - pad;
      if (pool.kind == PoolKind::none) {
        value[0] = plane.at(tile.first_row + y_row, tile.first_column + column);
      } else if (activates_last) {
        value[0] = window.largest(plane);
      } else {
        value[0] = pooled_activations(epilogue, plane, window);
      }
      if (activates_last) {
        activate_commonest(epilogue, value);
      } else if (pool.kind == PoolKind::average) {
        const PoolWindow counted_rows(pool, 0, tile.y_row + y_row, problem.output_height);
        const PoolWindow counted_columns(pool, 1, column, problem.output_width);
        value[0] /= static_cast<float>(counted_rows.counted * counted_columns.counted);
      }
      to[column] = static_cast<Element>(value[0]);
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
  for (int i = warpgroup_thread(); 4 * i < end; i += kWarpgroupThreads) {
    const float4 four = from[i];
    float values[] = {four.x, four.y, four.z, four.w};
    activate_commonest(epilogue, values);
    if constexpr (sizeof(Element) == sizeof(float)) {
      reinterpret_cast<float4*>(to)[i] = make_float4(values[0], values[1], values[2], values[3]);
    } else {
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
