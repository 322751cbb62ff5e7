#pragma once

// The kernel of depthwise; see depthwise.cc.

#include "conv/small_floats.h"  // what its instances are named by
#include "cuda/depthwise/arguments.h"
#include "cuda/depthwise/window.cuh"
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"

namespace convswap::depthwise {

// Results from sums: residual, activation, and out they go.

template <typename T>
struct Results {
  const Arguments<T>& a;
  unsigned long long y;  // the address of a strip's first output
  const T* z;            // the same of the residual; null where there is none

  __device__ Results(const Arguments<T>& arguments, long long first)
      : a(arguments), y(global_address(a.y + first)), z(a.z == nullptr ? nullptr : a.z + first) {}

  // `offset`: from the first.
  __device__ void write(float sum, int offset) const {
    float values[] = {sum};
    float& value = values[0];
    if (z != nullptr) value += static_cast<float>(z[offset]);
    apply_activation(a.following, values);
    const unsigned long long to = y + static_cast<long long>(offset) * int(sizeof(T));
    if constexpr (kAreSame<T, float>) {
      store_global_if(1, to, __float_as_uint(value));
    } else {
      store_global_if(1, to, T(value).bits);
    }
  }
};

// How a thread computes its outputs, one after the other, from the window.

// A filter of kRows x kWidth taps over neighbouring rows, of which each input row is read once: sums of the
// kRows output rows that it is part of are under way.
template <int kRows, int kWidth>
struct SlidingSums {
  float weights[kRows][kWidth];
  float bias;
  float accumulators[kRows] = {};  // of output row i in place i % kRows

  __device__ SlidingSums(const float* filter, float own_bias) : bias(own_bias) {
#pragma unroll
    for (int i = 0; i < kRows * kWidth; ++i) weights[i / kWidth][i % kWidth] = filter[i];
  }

  // Adds an input row whose number leaves that rest divided by kRows: to the output row that it ends, in
  // place (kRest + 1) % kRows, whose sum it returns, and to those up to the one that it begins, in place
  // kRest.
  template <int kRest>
  __device__ float add_row(const float* row) {
    accumulators[kRest] = bias;
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      const float pixel = row[s];
#pragma unroll
      for (int r = 0; r < kRows; ++r) accumulators[(kRest - r + kRows) % kRows] += pixel * weights[r][s];
    }
    return accumulators[(kRest + 1) % kRows];
  }
};

// The rows from the kStep-th of kSteps on, of which the first leaves the rest kFirst divided by kRows; `then`
// is told of each and its sum, and whether to go on.
template <int kFirst, int kStep, int kSteps, int kRows, int kWidth, typename Then>
__device__ inline void add_rows(SlidingSums<kRows, kWidth>& accumulators, const float* row, int pitch,
                                Then then) {
  if constexpr (kStep < kSteps) {
    if (!then(kStep, accumulators.template add_row<(kFirst + kStep) % kRows>(row))) return;
    add_rows<kFirst, kStep + 1, kSteps>(accumulators, row + pitch, pitch, then);
  }
}

template <int kRows, int kWidth, typename T>
__device__ inline void walk_down(const Arguments<T>& a, int outputs, const float* corner, const float* filter,
                                 float bias, const Results<T>& results) {
  SlidingSums<kRows, kWidth> accumulators(filter, bias);
  // The first rows end no output's sum.
  add_rows<0, 0, kRows - 1>(accumulators, corner, a.window_pitch, [](int, float) { return true; });
  const float* row = corner + (kRows - 1) * a.window_pitch;
  int offset = 0;
#pragma unroll 1
  for (; outputs > 0; outputs -= kRows, row += kRows * a.window_pitch) {
    add_rows<kRows - 1, 0, kRows>(accumulators, row, a.window_pitch, [&](int step, float sum) {
      results.write(sum, offset);
      offset += a.output_width;
      return step + 1 < outputs;
    });
  }
}

// Outputs each by itself, of kRows x kWidth taps.
template <int kRows, int kWidth, typename T>
__device__ inline void walk_apart(const Arguments<T>& a, int outputs, const float* corner,
                                  const float* filter, float bias, const Results<T>& results) {
  float weights[kRows][kWidth];
#pragma unroll
  for (int i = 0; i < kRows * kWidth; ++i) weights[i / kWidth][i % kWidth] = filter[i];
  const int next = a.step_columns > 0 ? a.step_columns * a.stride_width : a.stride_height * a.window_pitch;
  const int next_y = a.step_columns > 0 ? a.step_columns : a.output_width;
#pragma unroll 2
  for (int i = 0; i < outputs; ++i) {
    float sum = bias;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int s = 0; s < kWidth; ++s) {
        sum += corner[r * a.dilation_height * a.window_pitch + s * a.dilation_width] * weights[r][s];
      }
    }
    results.write(sum, i * next_y);
    corner += next;
  }
}

// The same of any filter: some outputs at a time, so that a tap is read once for all of them.
template <typename T>
__device__ inline void walk_any(const Arguments<T>& a, int outputs, const float* corner, const float* filter,
                                float bias, const Results<T>& results) {
  constexpr int kAtATime = 4;
  const int next = a.step_columns > 0 ? a.step_columns * a.stride_width : a.stride_height * a.window_pitch;
  const int next_y = a.step_columns > 0 ? a.step_columns : a.output_width;
#pragma unroll 1
  for (int first = 0; first < outputs; first += kAtATime) {
    float accumulators[kAtATime];
    const float* pixels[kAtATime];
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      accumulators[j] = bias;
      pixels[j] = corner + min(first + j, outputs - 1) * next;
    }
    const float* tap = filter;
#pragma unroll 1
    for (int t = 0; t < a.filter_depth; ++t) {
#pragma unroll 1
      for (int r = 0; r < a.filter_height; ++r) {
        int offset = t * a.window_plane + r * a.dilation_height * a.window_pitch;
#pragma unroll 4
        for (int s = 0; s < a.filter_width; ++s, offset += a.dilation_width) {
          const float weight = *tap++;
#pragma unroll
          for (int j = 0; j < kAtATime; ++j) accumulators[j] += pixels[j][offset] * weight;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      if (first + j < outputs) results.write(accumulators[j], (first + j) * next_y);
    }
  }
}

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
  griddepcontrol_wait_unless(a.weights_are_constant);
  const Filters<T> filters(a, tile);
  griddepcontrol_wait();
  load_window(a, tile, memory);
  filters.store(memory);
  __syncthreads();
  griddepcontrol_launch_dependents();
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
