#pragma once

#include "cuda/separable/window.cuh"

namespace convswap::separable {

// Two neighbours as they lie in memory.
template <typename T>
__device__ inline void store_pair(bool is_wanted, unsigned long long to, float first, float second) {
  store_global_if(is_wanted, to, rounded_pair<T>(first, second));
}
template <>
__device__ inline void store_pair<float>(bool is_wanted, unsigned long long to, float first, float second) {
  store_global_if(is_wanted, to, make_uint2(__float_as_uint(first), __float_as_uint(second)));
}

// Bias, residual and activation of a warp's sums, and out they go.
template <typename T, typename S, int kFilterTiles>
__device__ inline void write(const Arguments<T>& a, int image, int tile_row, int tile_column, int warp,
                             int lane, const float (&sums)[kFilterTiles][S::kTiles][4]) {
  const long long plane = static_cast<long long>(a.output_height) * a.output_width;
#pragma unroll
  for (int f = 0; f < kFilterTiles; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int filter = f * kTileFilters + half * 8 + lane / 4;
      if (filter >= a.filters) continue;
      const float bias = a.b == nullptr ? 0.0f : static_cast<float>(a.b[filter]);
      const long long of_plane = (static_cast<long long>(image) * a.filters + filter) * plane;
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
        const int pixel = (warp * S::kTiles + t) * kTilePixels + lane % 4 * 2;
        const int row = tile_row + pixel / S::kTileColumns, column = tile_column + pixel % S::kTileColumns;
        if (pixel >= S::kPixels || row >= a.output_height || column >= a.output_width) continue;
        const bool has_second = column + 1 < a.output_width;
        const long long at = of_plane + static_cast<long long>(row) * a.output_width + column;
        float pair[] = {sums[f][t][2 * half] + bias, sums[f][t][2 * half + 1] + bias};
        if (a.z != nullptr) {
          pair[0] += static_cast<float>(a.z[at]);
          if (has_second) pair[1] += static_cast<float>(a.z[at + 1]);
        }
        finish_values(a.behind, pair);
        if (a.stores_together) {
          store_pair<T>(true, global_address(a.y) + at * static_cast<int>(sizeof(T)), pair[0], pair[1]);
        } else {
          a.y[at] = static_cast<T>(pair[0]);
          if (has_second) a.y[at + 1] = static_cast<T>(pair[1]);
        }
      }
    }
  }
}

}  // namespace convswap::separable
