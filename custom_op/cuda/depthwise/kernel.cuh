#pragma once

// The kernel of depthwise; see depthwise.cc.

#include "conv/small_floats.h"  // what its instances are named by
#include "cuda/depthwise/filters.cuh"
#include "cuda/depthwise/walks.cuh"
#include "cuda/depthwise/window.cuh"
#include "cuda/primitives/dependent_launch.cuh"

namespace convswap::depthwise {

extern __shared__ __align__(16) float shared[];

// What a thread computes: where it begins in the block's tile, and how many outputs.
struct Strip {
  int plane, row, column, outputs;

  template <typename T>
  __device__ Strip(const Arguments<T>& a, const Tile& tile, int number) {
    const int line = static_cast<int>(a.strips_across.quotient(number));
    const int band = static_cast<int>(a.strip_planes.quotient(line));
    plane = line - band * a.block_planes;
    row = band * (a.step_columns > 0 ? 1 : a.strip_steps);
    column = number - line * static_cast<int>(a.strips_across.divisor);
    const int rows = min(a.tile_rows, a.output_height - tile.row) - row;
    const int columns = min(a.tile_columns, a.output_width - tile.column) - column;
    outputs = 0;
    if (tile.plane + plane >= a.planes || rows <= 0 || columns <= 0) return;
    outputs = a.step_columns > 0 ? (columns + a.step_columns - 1) / a.step_columns : rows;
    outputs = min(outputs, a.strip_steps);
  }
};

// kRows x kWidth taps, or any where they are 0; kSlides: of unit stride and dilation, which walks down.
template <typename T, int kRows, int kWidth, bool kSlides>
__global__ void __launch_bounds__(kMostThreads) kernel(const __grid_constant__ Arguments<T> a) {
  const Tile tile(a);
  const BlockMemory memory(a, shared);
  wait_for_weights(a.weights_stay);
  const Filters<T> filters(a, tile);
  wait_for_kernels_before();
  load_window(a, tile, memory);
  filters.store(memory);
  __syncthreads();
  let_next_kernel_start();
  for (int number = static_cast<int>(threadIdx.x); number < a.strips;
       number += static_cast<int>(blockDim.x)) {
    const Strip strip(a, tile, number);
    if (strip.outputs == 0) continue;
    const long long row =
        static_cast<long long>(tile.plane + strip.plane) * a.output_height + (tile.row + strip.row);
    const Results<T> results(a, row * a.output_width + (tile.column + strip.column));
    const float* const corner = memory.window + strip.plane * a.filter_depth * a.window_plane +
                                strip.row * a.stride_height * a.window_pitch + strip.column * a.stride_width +
                                a.window_left;
    const float* const filter = memory.weights + strip.plane * static_cast<int>(a.taps.divisor);
    const float bias = memory.bias[strip.plane];
    if constexpr (kSlides) {
      walk_down<kRows, kWidth>(a, strip.outputs, corner, filter, bias, results);
    } else if constexpr (kRows > 0) {
      walk_apart<kRows, kWidth>(a, strip.outputs, corner, filter, bias, results);
    } else {
      walk_any(a, strip.outputs, corner, filter, bias, results);
    }
  }
}

}  // namespace convswap::depthwise
