#pragma once

// The kernel of separable; see separable.cc.

#include "conv/small_floats.h"  // names of the instances' element types
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/separable/window.cuh"
#include "cuda/sliced_k/operands.cuh"

namespace convswap::separable {

// Stores two adjacent elements.
template <typename T>
__device__ inline void store_pair(bool is_wanted, unsigned long long to, float first, float second) {
  store_global_if(is_wanted, to, pack_rounded<T>(first, second));
}
template <>
__device__ inline void store_pair<float>(bool is_wanted, unsigned long long to, float first, float second) {
  store_global_if(is_wanted, to, make_uint2(__float_as_uint(first), __float_as_uint(second)));
}

// Epilogue of a warp's accumulators: bias, residual, activation and store.
template <typename T, typename S, int kFilterTiles>
__device__ inline void store_tile(const Arguments<T>& a, int image, int tile_row, int tile_column, int warp,
                                  int lane, const float (&accumulators)[kFilterTiles][S::kTiles][4]) {
  const long long plane = static_cast<long long>(a.output_height) * a.output_width;
#pragma unroll
  for (int f = 0; f < kFilterTiles; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int filter = f * kTileFilters + half * 8 + lane / 4;
      if (filter >= a.filters) continue;
      const float bias = a.b == nullptr ? 0.0f : static_cast<float>(a.b[filter]);
      const long long plane_offset = (static_cast<long long>(image) * a.filters + filter) * plane;
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
        const int pixel = (warp * S::kTiles + t) * kTilePixels + lane % 4 * 2;
        const int row = tile_row + pixel / S::kTileColumns, column = tile_column + pixel % S::kTileColumns;
        if (pixel >= S::kPixels || row >= a.output_height || column >= a.output_width) continue;
        const bool has_second = column + 1 < a.output_width;
        const long long at = plane_offset + static_cast<long long>(row) * a.output_width + column;
        float pair[] = {accumulators[f][t][2 * half] + bias, accumulators[f][t][2 * half + 1] + bias};
        if (a.z != nullptr) {
          pair[0] += static_cast<float>(a.z[at]);
          if (has_second) pair[1] += static_cast<float>(a.z[at + 1]);
        }
        apply_activation(a.pointwise_epilogue, pair);
        if (a.vectorizes_stores) {
          store_pair<T>(true, global_address(a.y) + at * static_cast<int>(sizeof(T)), pair[0], pair[1]);
        } else {
          a.y[at] = static_cast<T>(pair[0]);
          if (has_second) a.y[at + 1] = static_cast<T>(pair[1]);
        }
      }
    }
  }
}

// Offset of a channel's depthwise outputs in smem. Channels 0, 4, 8 and 12 come first, because an mma
// fragment holds four adjacent channels per lane.
template <typename S>
__device__ inline int smem_offset_of(int channel) {
  return (channel % 4 * 4 + channel / 4) * S::kPitch;
}

template <typename T, typename S, int kFilterTiles>
__device__ inline void multiply_add(
    float (&accumulators)[kFilterTiles][S::kTiles][4], const float* results, int warp, int lane,
    const typename sliced_k::FilterLoader<T, kFilterTiles>::Registers& weights) {
  using Operands = sliced_k::MmaOperands<T>;
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) {
    const float* const lane_values =
        results + lane % 4 * S::kPitch + (warp * S::kTiles + t) * kTilePixels + lane / 4;
    const float values[4] = {lane_values[0], lane_values[4 * S::kPitch], lane_values[8 * S::kPitch],
                             lane_values[12 * S::kPitch]};
    const typename Operands::Fragment pixel = Operands::fragment_of(values);
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) {
      Operands::multiply_add(accumulators[f][t], Operands::fragment_of(weights[2 * f]),
                             Operands::fragment_of(weights[2 * f + 1]), pixel);
    }
  }
}

template <typename T, int kStride, int kFilterTiles, int kRows, int kDown, int kAcross>
__global__ void __launch_bounds__((TileShape<kStride, kRows, kDown, kAcross>::kThreads),
                                  (min_blocks_per_sm(kStride, kRows, kFilterTiles)))
    kernel(const __grid_constant__ Arguments<T> a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "separable needs compute capability 8.0 or newer"
#else
  using S = TileShape<kStride, kRows, kDown, kAcross>;
  extern __shared__ __align__(16) unsigned char shared[];
  float* const buffers = reinterpret_cast<float*>(shared);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int image = a.tiles.quotient_of_any(blockIdx.x);
  const int tile = static_cast<int>(blockIdx.x - image * a.tiles.divisor);
  const int tile_down = a.tiles_across.quotient_of_any(tile);
  const int tile_row = tile_down * S::kTileRows;
  const int tile_column = (tile - tile_down * static_cast<int>(a.tiles_across.divisor)) * S::kTileColumns;
  const int channel = thread / S::kThreadsPerChannel, thread_of_channel = thread % S::kThreadsPerChannel;
  const int row = thread_of_channel / S::kAcross * kRows, column = thread_of_channel % S::kAcross * kColumns;
  const sliced_k::FilterLoader<T, kFilterTiles> filters(a, 0, 0, lane);
  Window<T, S> window(a, image, tile_row + row, tile_column + column, channel);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  float accumulators[kFilterTiles][S::kTiles][4] = {};
  window.load();
  float* const thread_outputs = buffers + smem_offset_of<S>(channel) + row * S::kTileColumns + column;
  int first = 0;
#pragma unroll 1
  for (int step = 0; first < a.k_size; ++step) {
    const int buffer = step % 2 * S::kStepFloats;
    window.store(a.depthwise_epilogue, thread_outputs + buffer);
    typename sliced_k::FilterLoader<T, kFilterTiles>::Registers weights;
    filters.load(step, weights);
    first += kStepChannels;
    if (first < a.k_size) window.load();
    // One barrier per step suffices: a thread that arrives has finished reading the other buffer, which the
    // next step overwrites.
    __syncthreads();
    multiply_add<T, S, kFilterTiles>(accumulators, buffers + buffer, warp, lane, weights);
  }
  store_tile<T, S, kFilterTiles>(a, image, tile_row, tile_column, warp, lane, accumulators);
#endif
}

}  // namespace convswap::separable
