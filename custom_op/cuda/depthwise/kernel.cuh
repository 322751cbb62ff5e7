#pragma once

// The kernel of depthwise; see depthwise.cc.

#include "conv/small_floats.h"  // the element types of the instances' names
#include "cuda/depthwise/arguments.h"
#include "cuda/depthwise/window.cuh"
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"

namespace convswap::depthwise {

// Adds the residual to the results of a strip, applies the activation, and stores them.
template <typename T>
struct ResultWriter {
  const Arguments<T>& a;
  unsigned long long y;  // global address of the strip's first output
  const T* z;            // the residual of that output, or null

  __device__ ResultWriter(const Arguments<T>& arguments, long long first)
      : a(arguments), y(global_address(a.y + first)), z(a.z == nullptr ? nullptr : a.z + first) {}

  // `offset` is in elements, from the strip's first output.
  __device__ void write(float sum, int offset) const {
    float values[] = {sum};
    float& value = values[0];
    if (z != nullptr) value += static_cast<float>(z[offset]);
    apply_activation(a.epilogue, values);
    const unsigned long long to = y + static_cast<long long>(offset) * int(sizeof(T));
    if constexpr (kAreSame<T, float>) {
      store_global_if(1, to, __float_as_uint(value));
    } else {
      store_global_if(1, to, T(value).bits);
    }
  }
};

// Accumulators of a strip that slides down a column with a filter of kRows x kWidth taps. Each input row is
// read once and added to the kRows output rows that it contributes to.
template <int kRows, int kWidth>
struct SlidingAccumulators {
  float weights[kRows][kWidth];
  float bias;
  float accumulators[kRows] = {};  // output row i has slot i % kRows

  __device__ SlidingAccumulators(const float* filter, float filter_bias) : bias(filter_bias) {
#pragma unroll
    for (int i = 0; i < kRows * kWidth; ++i) weights[i / kWidth][i % kWidth] = filter[i];
  }

  // Adds an input row whose index is kSlot modulo kRows. The row is the first one of the output row in slot
  // kSlot and the last one of the output row in slot (kSlot + 1) % kRows. Returns the sum of the latter.
  template <int kSlot>
  __device__ float add_row(const float* row) {
    accumulators[kSlot] = bias;
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      const float pixel = row[s];
#pragma unroll
      for (int r = 0; r < kRows; ++r) accumulators[(kSlot - r + kRows) % kRows] += pixel * weights[r][s];
    }
    return accumulators[(kSlot + 1) % kRows];
  }
};

// Adds input rows kInputRow to kEndInputRow - 1, and calls `on_row` with the index of each and the sum that
// the row completes, until `on_row` returns false. kFirstSlot is the slot of row 0.
template <int kFirstSlot, int kInputRow, int kEndInputRow, int kRows, int kWidth, typename OnRow>
__device__ inline void for_each_row(SlidingAccumulators<kRows, kWidth>& accumulators, const float* row,
                                    int pitch, OnRow on_row) {
  if constexpr (kInputRow < kEndInputRow) {
    if (!on_row(kInputRow, accumulators.template add_row<(kFirstSlot + kInputRow) % kRows>(row))) return;
    for_each_row<kFirstSlot, kInputRow + 1, kEndInputRow>(accumulators, row + pitch, pitch, on_row);
  }
}

// Computes a strip down a column, with unit stride and dilation. `corner`, here and in the functions below,
// is the first window element that the first output reads.
template <int kRows, int kWidth, typename T>
__device__ inline void compute_sliding(const Arguments<T>& a, int outputs, const float* corner,
                                       const float* filter, float bias, const ResultWriter<T>& results) {
  SlidingAccumulators<kRows, kWidth> accumulators(filter, bias);
  // The first kRows - 1 rows complete no output.
  for_each_row<0, 0, kRows - 1>(accumulators, corner, a.window_pitch, [](int, float) { return true; });
  const float* row = corner + (kRows - 1) * a.window_pitch;
  int offset = 0;
#pragma unroll 1
  for (; outputs > 0; outputs -= kRows, row += kRows * a.window_pitch) {
    for_each_row<kRows - 1, 0, kRows>(accumulators, row, a.window_pitch, [&](int input_row, float sum) {
      results.write(sum, offset);
      offset += a.output_width;
      return input_row + 1 < outputs;
    });
  }
}

// Computes a strip of any stride and dilation, with kRows x kWidth taps.
template <int kRows, int kWidth, typename T>
__device__ inline void compute_unrolled(const Arguments<T>& a, int outputs, const float* corner,
                                        const float* filter, float bias, const ResultWriter<T>& results) {
  float weights[kRows][kWidth];
#pragma unroll
  for (int i = 0; i < kRows * kWidth; ++i) weights[i / kWidth][i % kWidth] = filter[i];
  const int input_step =
      a.column_step > 0 ? a.column_step * a.stride_width : a.stride_height * a.window_pitch;
  const int output_step = a.column_step > 0 ? a.column_step : a.output_width;
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
    results.write(sum, i * output_step);
    corner += input_step;
  }
}

// Computes a strip with any filter, four outputs at a time, so that each tap is read once for all four.
template <typename T>
__device__ inline void compute_generic(const Arguments<T>& a, int outputs, const float* corner,
                                       const float* filter, float bias, const ResultWriter<T>& results) {
  constexpr int kOutputsAtOnce = 4;
  const int input_step =
      a.column_step > 0 ? a.column_step * a.stride_width : a.stride_height * a.window_pitch;
  const int output_step = a.column_step > 0 ? a.column_step : a.output_width;
#pragma unroll 1
  for (int first = 0; first < outputs; first += kOutputsAtOnce) {
    float accumulators[kOutputsAtOnce];
    const float* pixels[kOutputsAtOnce];
#pragma unroll
    for (int j = 0; j < kOutputsAtOnce; ++j) {
      accumulators[j] = bias;
      pixels[j] = corner + min(first + j, outputs - 1) * input_step;
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
          for (int j = 0; j < kOutputsAtOnce; ++j) accumulators[j] += pixels[j][offset] * weight;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kOutputsAtOnce; ++j) {
      if (first + j < outputs) results.write(accumulators[j], (first + j) * output_step);
    }
  }
}

extern __shared__ __align__(16) float shared[];

// Position of a strip in the block's tile, and its number of outputs inside the image.
struct Strip {
  int plane, row, column, outputs;

  template <typename T>
  __device__ Strip(const Arguments<T>& a, const Tile& tile, int number) {
    const int line = static_cast<int>(a.strips_across.quotient(number));
    const int band = static_cast<int>(a.strip_planes.quotient(line));
    plane = line - band * a.block_planes;
    row = band * (a.column_step > 0 ? 1 : a.strip_outputs);
    column = number - line * static_cast<int>(a.strips_across.divisor);
    const int rows = min(a.tile_rows, a.output_height - tile.row) - row;
    const int columns = min(a.tile_columns, a.output_width - tile.column) - column;
    outputs = 0;
    if (tile.plane + plane >= a.planes || rows <= 0 || columns <= 0) return;
    outputs = a.column_step > 0 ? (columns + a.column_step - 1) / a.column_step : rows;
    outputs = min(outputs, a.strip_outputs);
  }
};

// Template parameters as in Instance (family.h).
template <typename T, int kRows, int kWidth, bool kSlides>
__global__ void __launch_bounds__(kMaxThreads) kernel(const __grid_constant__ Arguments<T> a) {
  const Tile tile(a);
  const BlockMemory memory(a, shared);
  griddepcontrol_wait_unless(a.weights_are_constant);
  const FilterLoader<T> filters(a, tile);
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
    const ResultWriter<T> results(a, row * a.output_width + (tile.column + strip.column));
    const float* const corner = memory.window + strip.plane * a.filter_depth * a.window_plane +
                                strip.row * a.stride_height * a.window_pitch + strip.column * a.stride_width +
                                a.alignment_columns;
    const float* const filter = memory.weights + strip.plane * static_cast<int>(a.taps.divisor);
    const float bias = memory.bias[strip.plane];
    if constexpr (kSlides) {
      compute_sliding<kRows, kWidth>(a, strip.outputs, corner, filter, bias, results);
    } else if constexpr (kRows > 0) {
      compute_unrolled<kRows, kWidth>(a, strip.outputs, corner, filter, bias, results);
    } else {
      compute_generic(a, strip.outputs, corner, filter, bias, results);
    }
  }
}

}  // namespace convswap::depthwise
