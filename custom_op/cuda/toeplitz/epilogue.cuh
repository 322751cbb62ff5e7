#pragma once

// Second pass of the epilogue: residual, activation and pool of a tile's results in shared memory.

#include "cuda/epilogue/activations.cuh"
#include "cuda/toeplitz/results.cuh"

namespace convswap::toeplitz {

// Applies the activation. The most common ones are inlined, others are function calls.
template <int kCount>
__device__ inline void activate_common(const Epilogue& epilogue, float (&values)[kCount]) {
  activate_values<Activation::none, Activation::relu, Activation::tanh, Activation::silu,
                  Activation::hard_swish>(epilogue, values);
}

// A plane of the Conv output: results in shared memory plus the residual. Row and column are coordinates of
// the Conv output.
template <typename Element>
struct ConvPlane {
  const float* conv_results;
  int pitch;
  const Element* residual;  // null if there is none
  int height, width;        // of the Conv output

  __device__ float at(int row, int column) const {
    const float value = conv_results[row * pitch + column];
    return residual == nullptr ? value : value + static_cast<float>(residual[row * width + column]);
  }
};

// A pool window, clipped at the plane's edges.
struct ClippedPoolWindow {
  int row, column;  // first row and column; negative in the padding
  int height, width;

  template <typename Element, typename Call>
  __device__ void for_each(const ConvPlane<Element>& plane, Call call) const {
    const int row_end = min(row + height, plane.height), column_end = min(column + width, plane.width);
    for (int h = max(row, 0); h < row_end; ++h) {
      for (int v = max(column, 0); v < column_end; ++v) call(plane.at(h, v));
    }
  }

  // Maximum of a pool window of fixed size. All loads are issued at once; coordinates outside the plane are
  // clamped to the edge.
  template <int kSize, typename Element>
  __device__ float largest_unrolled(const ConvPlane<Element>& plane) const {
    float largest = -infinity();
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
      const float* const row_results =
          plane.conv_results + min(max(row + h, 0), plane.height - 1) * plane.pitch;
#pragma unroll
      for (int v = 0; v < kSize; ++v) {
        largest = max_nan(row_results[min(max(column + v, 0), plane.width - 1)], largest);
      }
    }
    return largest;
  }

  template <typename Element>
  __device__ float largest(const ConvPlane<Element>& plane) const {
    const bool is_inside =
        row < plane.height && row + height > 0 && column < plane.width && column + width > 0;
    if (height == 2 && width == 2 && is_inside && plane.residual == nullptr)
      return largest_unrolled<2>(plane);
    float largest = -infinity();
    for_each(plane, [&](float sum) { largest = max_nan(sum, largest); });
    return largest;
  }
};

// Pools activated values, for activations that cannot follow the pool. Returns the maximum or, for an average
// pool, the sum.
template <typename Element>
__device__ inline float pool_activations(const Epilogue& epilogue, const ConvPlane<Element>& plane,
                                         const ClippedPoolWindow& window) {
  if (epilogue.pool.kind == PoolKind::max) {
    float largest = -infinity();
    window.for_each(plane, [&](float sum) { largest = max_nan(activated(epilogue, sum), largest); });
    return largest;
  }
  float sum_of_all = 0.0f;
  window.for_each(plane, [&](float sum) { sum_of_all += activated(epilogue, sum); });
  return sum_of_all;
}

// Computes y from the Conv output, one row of y per warp at a time.
template <typename Element>
__device__ inline void run_full_post_pass(const Arguments<Element>& problem,
                                          const Results<Element>& results) {
  const Epilogue& epilogue = problem.naive_conv.epilogue;
  const Pool& pool = epilogue.pool;
  const Tile& tile = results.tile;
  // An increasing activation commutes with the maximum.
  const bool activates_last =
      pool.kind == PoolKind::none || (pool.kind == PoolKind::max && is_increasing(epilogue));
  const int rows = tile.images * results.filters * tile.y_rows;
  for (int i = warpgroup_thread() / 32; i < rows; i += kWarpgroupThreads / 32) {
    const int plane_index = i / tile.y_rows;
    const int y_row = i - plane_index * tile.y_rows;
    const int image = plane_index / results.filters;
    const int filter = plane_index - image * results.filters;
    const long long y_plane_index = (tile.n + image) * problem.out_channels + results.first_filter + filter;
    const ConvPlane<Element> plane = {
        static_cast<const float*>(results.conv_output) + image * problem.conv_strides.image +
            filter * problem.conv_strides.plane - tile.first_row * problem.conv_strides.row -
            tile.first_column,
        problem.conv_strides.row,
        problem.z == nullptr ? nullptr : problem.z + y_plane_index * problem.output_plane,
        problem.output_height, problem.output_width};
    Element* const to = results.y_staging + image * problem.y_strides.image +
                        filter * problem.y_strides.plane + y_row * problem.y_strides.row;
    ClippedPoolWindow window = {};
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
        value[0] = pool_activations(epilogue, plane, window);
      }
      if (activates_last) {
        activate_common(epilogue, value);
      } else if (pool.kind == PoolKind::average) {
        const PoolWindow counted_rows(pool, 0, tile.y_row + y_row, problem.output_height);
        const PoolWindow counted_columns(pool, 1, column, problem.output_width);
        value[0] /= static_cast<float>(counted_rows.divisor * counted_columns.divisor);
      }
      to[column] = static_cast<Element>(value[0]);
    }
  }
}

// Applies the activation to the Conv output, four results per thread at a time. Gaps between planes are
// computed and written to y_staging, too, but not copied to y.
template <typename Element>
__device__ inline void activate_results(const Arguments<Element>& problem, const Results<Element>& results) {
  constexpr int kAlignmentElements = Results<Element>::kAlignmentElements;
  const Epilogue& epilogue = problem.naive_conv.epilogue;
  const ResultStrides& strides = problem.y_strides;
  const int misalignment = static_cast<int>(results.start) & (kAlignmentElements - 1);
  const int end = misalignment + (results.tile.images - 1) * strides.image +
                  (results.filters - 1) * strides.plane + (results.tile.y_rows - 1) * strides.row +
                  results.tile.y_columns;
  const float4* const from =
      reinterpret_cast<const float4*>(static_cast<float*>(results.conv_output) - misalignment);
  Element* const to = results.y_staging - misalignment;
  for (int i = warpgroup_thread(); 4 * i < end; i += kWarpgroupThreads) {
    const float4 four = from[i];
    float values[] = {four.x, four.y, four.z, four.w};
    activate_common(epilogue, values);
    if constexpr (sizeof(Element) == sizeof(float)) {
      reinterpret_cast<float4*>(to)[i] = make_float4(values[0], values[1], values[2], values[3]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) to[4 * i + j] = static_cast<Element>(values[j]);
    }
  }
}

// Second pass of the epilogue. Not inlined, because a kernel calls it from two places.
template <typename Element>
__device__ __noinline__ void run_post_pass(const Arguments<Element>& problem, int index, int first_filter,
                                           int filters, unsigned char* warpgroup_shared) {
  const Results<Element> results = Results<Element>::template of<true>(
      problem, Tile::of<true>(problem, index), first_filter, filters, warpgroup_shared);
  if (problem.post_pass == PostPass::full) {
    run_full_post_pass(problem, results);
  } else {
    activate_results(problem, results);
  }
}

}  // namespace convswap::toeplitz
