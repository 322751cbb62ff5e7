#pragma once

// LayerNormalization over the last axis; see layer_norm.cc.

#include "conv/small_floats.h"  // the element types of the instances' names
#include "cuda/layer_norm/arguments.h"
#include "cuda/primitives/chunk.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/primitives/registers.cuh"

namespace convswap::layer_norm {

constexpr int kWarpSize = 32;

// The index of this thread's warp in the grid, and the number of warps.
__device__ inline long long warp() {
  return blockIdx.x * static_cast<long long>(blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
}
__device__ inline long long warps() { return gridDim.x * static_cast<long long>(blockDim.x / kWarpSize); }

// The sum over the lanes of each team of a warp.
template <typename Sum>
__device__ inline Sum team_sum(Sum value, int team) {
  for (int distance = team / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

template <typename Sum>
__device__ inline Sum reciprocal_deviation(Sum variance, float epsilon) {
  return Sum(1) / sqrt(variance + Sum(epsilon));
}

// The elements of a vector, which the compiler would otherwise keep unpacked from one row to the next.
template <typename T>
__device__ inline Chunk<T> unpacked(uint4 words) {
  words = {optimization_barrier(words.x), optimization_barrier(words.y), optimization_barrier(words.z),
           optimization_barrier(words.w)};
  Chunk<T> elements;
  memcpy(&elements, &words, sizeof elements);
  return elements;
}

// A warp normalises as many rows at a time as it has teams. It loads the next rows before it computes, so
// that loads are always in flight.
template <typename T, int kVectors>
__device__ inline void normalise_vectors(const Arguments<T>& problem) {
  using Sum = typename AccumulatorOf<T>::Type;
  using Vector = Chunk<T>;
  // Scale and bias of more vectors are loaded for each row, and so are the next rows.
  constexpr bool kHasRegisters = kVectors <= 4;
  const int lane = static_cast<int>(threadIdx.x) & (problem.team - 1);
  const int row_of_team = static_cast<int>(threadIdx.x) % kWarpSize * problem.warp_rows / kWarpSize;
  const long long stride = warps() * problem.warp_rows;
  const auto length = static_cast<Sum>(problem.length);

  // Only the last vector of a lane may lie behind the row's end. It is loaded from the row's last vector.
  const bool holds_last = lane + (kVectors - 1) * problem.team < problem.row_vectors;
  const auto place = [&](int i) {
    return i + 1 < kVectors || holds_last ? lane + i * problem.team : problem.row_vectors - 1;
  };
  const auto load = [&](const T* from, uint4(&to)[kVectors]) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) to[i] = reinterpret_cast<const uint4*>(from)[place(i)];
  };
  // The row of this team among those from `first` on; behind the last row, the last one.
  const auto load_row = [&](long long first, uint4(&to)[kVectors]) {
    load(problem.x + min(first + row_of_team, problem.rows - 1) * problem.length, to);
  };
  // The sum over the row of `term`, a function of a held element.
  const auto row_sum = [&](const auto& term) {
    Sum sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Sum partial = 0;
#pragma unroll
      for (int c = 0; c < Vector::kSize; ++c) partial += term(i, c);
      if (i + 1 < kVectors || holds_last) sum += partial;
    }
    return team_sum(sum, problem.team);
  };

  uint4 scale[kVectors], bias[kVectors] = {}, held[kVectors], next[kVectors];
  const auto load_parameters = [&] {
    load(problem.w, scale);
    if (problem.b != nullptr) load(problem.b, bias);
  };
  if constexpr (kHasRegisters) load_parameters();

  // All lanes of a warp make the same number of passes, because they exchange sums.
  long long first = warp() * problem.warp_rows;
  if (kHasRegisters && first < problem.rows) load_row(first, next);
  for (; first < problem.rows; first += stride) {
    if constexpr (kHasRegisters) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) held[i] = next[i];
      if (first + stride < problem.rows) load_row(first + stride, next);
    } else {
      load_row(first, held);
    }
    Sum values[kVectors][Vector::kSize];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Vector elements = unpacked<T>(held[i]);
#pragma unroll
      for (int c = 0; c < Vector::kSize; ++c) values[i][c] = static_cast<Sum>(elements.values[c]);
    }
    const Sum mean = row_sum([&](int i, int c) { return values[i][c]; }) / length;
    const Sum squares = row_sum([&](int i, int c) {
      values[i][c] -= mean;
      return values[i][c] * values[i][c];
    });
    const Sum factor = reciprocal_deviation(squares / length, problem.epsilon);
    if constexpr (!kHasRegisters) load_parameters();
    const long long row = first + row_of_team;
    if (row >= problem.rows) continue;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (i + 1 == kVectors && !holds_last) continue;
      const Vector scales = unpacked<T>(scale[i]), biases = unpacked<T>(bias[i]);
      Vector result;
#pragma unroll
      for (int c = 0; c < Vector::kSize; ++c) {
        result.values[c] = static_cast<T>(values[i][c] * factor * static_cast<Sum>(scales.values[c]) +
                                          static_cast<Sum>(biases.values[c]));
      }
      reinterpret_cast<Vector*>(problem.y + row * problem.length)[place(i)] = result;
    }
  }
}

// A warp normalises a row at a time, of any length, and reads it once for each sum.
template <typename T>
__device__ inline void normalise_elements(const Arguments<T>& problem) {
  using Sum = typename AccumulatorOf<T>::Type;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto length = static_cast<Sum>(problem.length);
  for (long long row = warp(); row < problem.rows; row += warps()) {
    const T* const x = problem.x + row * problem.length;
    T* const y = problem.y + row * problem.length;
    const auto row_sum = [&](const auto& term) {
      Sum sum = 0;
#pragma unroll 2
      for (long long i = lane; i < problem.length; i += kWarpSize) sum += term(static_cast<Sum>(x[i]));
      return team_sum(sum, kWarpSize);
    };
    const Sum mean = row_sum([](Sum value) { return value; }) / length;
    const Sum squares = row_sum([&](Sum value) { return (value - mean) * (value - mean); });
    const Sum factor = reciprocal_deviation(squares / length, problem.epsilon);
#pragma unroll 2
    for (long long i = lane; i < problem.length; i += kWarpSize) {
      const Sum bias = problem.b == nullptr ? Sum(0) : static_cast<Sum>(problem.b[i]);
      y[i] = static_cast<T>((static_cast<Sum>(x[i]) - mean) * factor * static_cast<Sum>(problem.w[i]) + bias);
    }
  }
}

// kVectors: the vectors of a row that a lane holds if all tensors are aligned; 0 for rows of other lengths.
template <typename T, int kVectors>
__global__ void __launch_bounds__(kThreads, kMinBlocks) kernel(const Arguments<T> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if constexpr (kVectors > 0) {
    if (problem.row_vectors > 0) {
      normalise_vectors<T, kVectors>(problem);
      return;
    }
  }
  normalise_elements(problem);
}

}  // namespace convswap::layer_norm
