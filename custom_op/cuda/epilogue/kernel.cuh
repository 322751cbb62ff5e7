#pragma once

// What follows a convolution, as kernels of their own; see epilogue.cc.

#include "conv/epilogue_math.h"
#include "conv/small_floats.h"  // what its instances are named by
#include "conv/with_activation.h"
#include "cuda/definition.cuh"
#include "cuda/epilogue/arguments.h"
#include "cuda/primitives/dependent_launch.cuh"

namespace convswap::epilogue {

// So many neighbours are one load or store.
template <typename T>
struct alignas(16) Chunk {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

template <typename T>
__device__ inline bool is_aligned(const T* pointer) {
  return reinterpret_cast<unsigned long long>(pointer) % 16 == 0;
}

// Without a pool: y lies as x does. y may be x, since each element is read by the thread that writes it.
template <Activation kActivation, typename T, typename Sum>
__device__ inline void activate_all(const Arguments<T>& problem) {
  const Epilogue& epilogue = problem.epilogue;
  const auto result_of = [&](T x, T z) {
    const Sum residual = problem.z == nullptr ? Sum(0) : static_cast<Sum>(z);
    return static_cast<T>(
        activate<Sum>(kActivation, epilogue.alpha, epilogue.beta, static_cast<Sum>(x) + residual));
  };
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long thread = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  const bool has_chunks = is_aligned(problem.x) && is_aligned(problem.y) && is_aligned(problem.z);
  const long long chunks = has_chunks ? problem.elements / Chunk<T>::kSize : 0;
  for (long long i = thread; i < chunks; i += threads) {
    Chunk<T> chunk = reinterpret_cast<const Chunk<T>*>(problem.x)[i];
    Chunk<T> residual{};
    if (problem.z != nullptr) residual = reinterpret_cast<const Chunk<T>*>(problem.z)[i];
#pragma unroll
    for (int j = 0; j < Chunk<T>::kSize; ++j)
      chunk.values[j] = result_of(chunk.values[j], residual.values[j]);
    reinterpret_cast<Chunk<T>*>(problem.y)[i] = chunk;
  }
  for (long long i = chunks * Chunk<T>::kSize + thread; i < problem.elements; i += threads) {
    problem.y[i] = result_of(problem.x[i], problem.z == nullptr ? T(0.0f) : problem.z[i]);
  }
}

// Neighbouring threads take neighbouring elements of y, of some planes at once where they are small.
template <Activation kActivation, typename T, typename Sum>
__device__ inline void pool_all(const Arguments<T>& problem) {
  const Epilogue& epilogue = problem.epilogue;
  const Pool& pool = epilogue.pool;
  const int kernel_height = static_cast<int>(pool.kernel[0]), kernel_width = static_cast<int>(pool.kernel[1]);
  const int stride_height = static_cast<int>(pool.stride[0]), stride_width = static_cast<int>(pool.stride[1]);
  const int pad_height = static_cast<int>(pool.pad_begin[0]), pad_width = static_cast<int>(pool.pad_begin[1]);
  const bool takes_largest = pool.kind == PoolKind::max;
  const bool activates_last = takes_largest && is_increasing(epilogue);
  const auto activated = [&](Sum value) {
    return activate<Sum>(kActivation, epilogue.alpha, epilogue.beta, value);
  };
  const int y_plane = static_cast<int>(problem.y_plane.divisor);
  const int at_once = problem.planes_at_once * y_plane;
  for (long long first = static_cast<long long>(blockIdx.x) * at_once; first < problem.elements;
       first += static_cast<long long>(gridDim.x) * at_once) {
    const int count = static_cast<int>(min(static_cast<long long>(at_once), problem.elements - first));
    const long long first_input = first / y_plane * problem.plane_input;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      const int plane = problem.y_plane.quotient_of_any(i);
      const int within = i - plane * y_plane;
      const int row = problem.y_width.quotient_of_any(within);
      const int column = within - row * static_cast<int>(problem.y_width.divisor);
      const long long input = first_input + static_cast<long long>(plane) * problem.plane_input;
      const T* const x = problem.x + input;
      const T* const z = problem.z == nullptr ? nullptr : problem.z + input;
      const int first_row = row * stride_height - pad_height,
                first_column = column * stride_width - pad_width;
      const int row_begin = max(first_row, 0), row_end = min(first_row + kernel_height, problem.height);
      const int column_begin = max(first_column, 0);
      const int column_end = min(first_column + kernel_width, problem.width);
      Sum result = takes_largest ? -static_cast<Sum>(infinity()) : Sum(0);
      for (int h = row_begin; h < row_end; ++h) {
        for (int v = column_begin; v < column_end; ++v) {
          Sum value = static_cast<Sum>(x[h * problem.width + v]);
          if (z != nullptr) value += static_cast<Sum>(z[h * problem.width + v]);
          if (!activates_last) value = activated(value);
          if (!takes_largest) {
            result += value;
          } else if (value > result || value != value) {  // a NaN stays
            result = value;
          }
        }
      }
      if (activates_last) result = activated(result);
      if (!takes_largest) {
        const PoolWindow rows(pool, 0, row, problem.height), columns(pool, 1, column, problem.width);
        result /= static_cast<Sum>(rows.counted * columns.counted);
      }
      problem.y[first + i] = static_cast<T>(result);
    }
  }
}

// kPools: the problem has a pool.
template <typename T, bool kPools>
__global__ void kernel(const Arguments<T> problem) {
  using Sum = typename SumOf<T>::Type;
  wait_for_kernels_before();
  with_activation(problem.epilogue.activation, [&](auto activation) {
    if constexpr (kPools) {
      pool_all<decltype(activation)::value, T, Sum>(problem);
    } else {
      activate_all<decltype(activation)::value, T, Sum>(problem);
    }
  });
}

}  // namespace convswap::epilogue
