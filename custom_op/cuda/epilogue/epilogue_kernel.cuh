#pragma once

// What follows a convolution, as a kernel of its own; see epilogue_kernel.cu.

#include "conv/epilogue_math.h"

namespace convswap {

template <typename T>
struct EpilogueArguments {
  const T* x;  // the convolution's output
  const T* z;  // null without residual
  T* y;
  long long planes;         // images times channels
  long long plane_input;    // elements
  long long height, width;  // of the convolution's output
  long long y_height, y_width;
  Epilogue epilogue;
};

template <typename T, typename Sum>
__device__ inline Sum activated(const EpilogueArguments<T>& problem, long long index) {
  Sum value = static_cast<Sum>(problem.x[index]);
  if (problem.z != nullptr) value += static_cast<Sum>(problem.z[index]);
  const Epilogue& epilogue = problem.epilogue;
  return activate<Sum>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
}

// Without a pool: y lies as x does. y may be x, since each element is read by the thread that writes it.
template <typename T, typename Sum>
__global__ void activation_kernel(const EpilogueArguments<T> problem) {
  const long long elements = problem.planes * problem.plane_input;
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < elements;
       i += threads) {
    problem.y[i] = static_cast<T>(activated<T, Sum>(problem, i));
  }
}

// A warp takes a row of y, so that it divides once for all of it.
template <typename T, typename Sum>
__global__ void pool_kernel(const EpilogueArguments<T> problem) {
  const Pool& pool = problem.epilogue.pool;
  const long long rows = problem.planes * problem.y_height;
  const int warps = static_cast<int>(blockDim.x / 32);
  for (long long i = static_cast<long long>(blockIdx.x) * warps + threadIdx.x / 32; i < rows;
       i += static_cast<long long>(gridDim.x) * warps) {
    const long long plane = i / problem.y_height;
    const PoolWindow window_rows(pool, 0, i - plane * problem.y_height, problem.height);
    for (long long q = threadIdx.x % 32; q < problem.y_width; q += 32) {
      const Sum value = pooled<Sum>(
          pool.kind, window_rows, PoolWindow(pool, 1, q, problem.width), [&](int64_t row, int64_t column) {
            return activated<T, Sum>(problem, plane * problem.plane_input + row * problem.width + column);
          });
      problem.y[i * problem.y_width + q] = static_cast<T>(value);
    }
  }
}

}  // namespace convswap
