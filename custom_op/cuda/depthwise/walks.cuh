#pragma once

// How a thread computes its outputs, one after the other, from the window.

#include "cuda/depthwise/results.cuh"

namespace convswap::depthwise {

// A filter of kRows x kWidth taps over neighbouring rows, of which each input row is read once: sums of the
// kRows output rows that it is part of are under way.
template <int kRows, int kWidth>
struct SlidingSums {
  float weights[kRows][kWidth];
  float bias;
  float sums[kRows] = {};  // of output row i in place i % kRows

  __device__ SlidingSums(const float* filter, float own_bias) : bias(own_bias) {
#pragma unroll
    for (int i = 0; i < kRows * kWidth; ++i) weights[i / kWidth][i % kWidth] = filter[i];
  }

  // Adds an input row whose number leaves that rest divided by kRows: to the output row that it ends, in
  // place (kRest + 1) % kRows, whose sum it returns, and to those up to the one that it begins, in place
  // kRest.
  template <int kRest>
  __device__ float add_row(const float* row) {
    sums[kRest] = bias;
#pragma unroll
    for (int s = 0; s < kWidth; ++s) {
      const float pixel = row[s];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[(kRest - r + kRows) % kRows] += pixel * weights[r][s];
    }
    return sums[(kRest + 1) % kRows];
  }
};

// The rows from the kStep-th of kSteps on, of which the first leaves the rest kFirst divided by kRows; `then`
// is told of each and its sum, and whether to go on.
template <int kFirst, int kStep, int kSteps, int kRows, int kWidth, typename Then>
__device__ inline void add_rows(SlidingSums<kRows, kWidth>& sums, const float* row, int pitch, Then then) {
  if constexpr (kStep < kSteps) {
    if (!then(kStep, sums.template add_row<(kFirst + kStep) % kRows>(row))) return;
    add_rows<kFirst, kStep + 1, kSteps>(sums, row + pitch, pitch, then);
  }
}

template <int kRows, int kWidth, typename T>
__device__ inline void walk_down(const Arguments<T>& a, int outputs, const float* corner, const float* filter,
                                 float bias, const Results<T>& results) {
  SlidingSums<kRows, kWidth> sums(filter, bias);
  // The first rows end no output's sum.
  add_rows<0, 0, kRows - 1>(sums, corner, a.window_pitch, [](int, float) { return true; });
  const float* row = corner + (kRows - 1) * a.window_pitch;
  int offset = 0;
#pragma unroll 1
  for (; outputs > 0; outputs -= kRows, row += kRows * a.window_pitch) {
    add_rows<kRows - 1, 0, kRows>(sums, row, a.window_pitch, [&](int step, float sum) {
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
    float sums[kAtATime];
    const float* pixels[kAtATime];
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      sums[j] = bias;
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
          for (int j = 0; j < kAtATime; ++j) sums[j] += pixels[j][offset] * weight;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      if (first + j < outputs) results.write(sums[j], (first + j) * next_y);
    }
  }
}

}  // namespace convswap::depthwise
