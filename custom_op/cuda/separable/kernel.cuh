#pragma once

// The kernel of separable; see separable.cc.

#include "conv/small_floats.h"  // what its instances are named by
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/separable/window.cuh"
#include "cuda/sliced_k/operands.cuh"

namespace convswap::separable {

// Two neighbours as they lie in memory.
template <typename T>
__device__ inline void store_pair(bool is_wanted, unsigned long long to, float first, float second) {
  store_global_if(is_wanted, to, pack_rounded<T>(first, second));
}
template <>
__device__ inline void store_pair<float>(bool is_wanted, unsigned long long to, float first, float second) {
  store_global_if(is_wanted, to, make_uint2(__float_as_uint(first), __float_as_uint(second)));
}

// Bias, residual and activation of a warp's sums, and out they go.
template <typename T, typename S, int kFilterTiles>
__device__ inline void write(const Arguments<T>& a, int image, int tile_row, int tile_column, int warp,
                             int lane, const float (&accumulators)[kFilterTiles][S::kTiles][4]) {
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
        float pair[] = {accumulators[f][t][2 * half] + bias, accumulators[f][t][2 * half + 1] + bias};
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

// Where in shared memory the results of a step's channel begin: those of channels 0, 4, 8 and 12 come first,
// since a lane multiplies four neighbours.
template <typename S>
__device__ inline int place_of(int channel) {
  return (channel % 4 * 4 + channel / 4) * S::kPitch;
}

template <typename T, typename S, int kFilterTiles>
__device__ inline void multiply_add(float (&accumulators)[kFilterTiles][S::kTiles][4], const float* results,
                                    int warp, int lane,
                                    const typename sliced_k::Filters<T, kFilterTiles>::Step& weights) {
  using Of = sliced_k::Numbers<T>;
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) {
    const float* const own = results + lane % 4 * S::kPitch + (warp * S::kTiles + t) * kTilePixels + lane / 4;
    const float numbers[4] = {own[0], own[4 * S::kPitch], own[8 * S::kPitch], own[12 * S::kPitch]};
    const typename Of::Four pixel = Of::four_of(numbers);
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) {
      Of::multiply_add(accumulators[f][t], Of::four_of(weights[2 * f]), Of::four_of(weights[2 * f + 1]),
                       pixel);
    }
  }
}

template <typename T, int kStride, int kFilterTiles, int kRows, int kDown, int kAcross>
__global__ void __launch_bounds__((Shape<kStride, kRows, kDown, kAcross>::kThreads),
                                  (blocks_at_once(kStride, kRows, kFilterTiles)))
    kernel(const __grid_constant__ Arguments<T> a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "separable needs compute capability 8.0 or newer"
#else
  using S = Shape<kStride, kRows, kDown, kAcross>;
  extern __shared__ __align__(16) unsigned char shared[];
  float* const both = reinterpret_cast<float*>(shared);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int image = a.tiles.quotient_of_any(blockIdx.x);
  const int tile = static_cast<int>(blockIdx.x - image * a.tiles.divisor);
  const int tile_down = a.tiles_across.quotient_of_any(tile);
  const int tile_row = tile_down * S::kTileRows;
  const int tile_column = (tile - tile_down * static_cast<int>(a.tiles_across.divisor)) * S::kTileColumns;
  const int channel = thread / S::kOfChannel, of_channel = thread % S::kOfChannel;
  const int row = of_channel / S::kAcross * kRows, column = of_channel % S::kAcross * kColumns;
  const sliced_k::Filters<T, kFilterTiles> filters(a, 0, 0, lane);
  Window<T, S> window(a, image, tile_row + row, tile_column + column, channel);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  float accumulators[kFilterTiles][S::kTiles][4] = {};
  window.load();
  float* const own = both + place_of<S>(channel) + row * S::kTileColumns + column;
  int first = 0;
#pragma unroll 1
  for (int step = 0; first < a.depth; ++step) {
    const int half = step % 2 * S::kStepFloats;
    window.put(a.between, own + half);
    typename sliced_k::Filters<T, kFilterTiles>::Step weights;
    filters.load(step, weights);
    first += kStepChannels;
    if (first < a.depth) window.load();
    // Of the half that is written next all have read, since they have waited for each other once more.
    __syncthreads();
    multiply_add<T, S, kFilterTiles>(accumulators, both + half, warp, lane, weights);
  }
  write<T, S, kFilterTiles>(a, image, tile_row, tile_column, warp, lane, accumulators);
#endif
}

}  // namespace convswap::separable
