#pragma once

// The kernel of the algorithm `naive`; see naive.cu.

#include "conv/epilogue_math.h"
#include "cuda/naive_sum.cuh"
#include "cuda/primitives/dependent_launch.cuh"

namespace convswap {

// An output of the convolution with all that follows but the pool.
template <typename T, typename Sum>
__device__ inline Sum naive_value(const NaiveArguments<T>& problem, long long n, long long k, long long o,
                                  long long p, long long q) {
  Sum value = naive_sum<T, Sum>(problem, n, k, o, p, q, 0, problem.channels_per_group);
  if (problem.b != nullptr) value += static_cast<Sum>(problem.b[k]);
  if (problem.z != nullptr) {
    const long long plane = (n * problem.out_channels + k) * problem.output[0] + o;
    value += static_cast<Sum>(problem.z[(plane * problem.output[1] + p) * problem.output[2] + q]);
  }
  const Epilogue& epilogue = problem.epilogue;
  return activate<Sum>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
}

// An element of y.
template <typename T, typename Sum>
__device__ inline Sum naive_result(const NaiveArguments<T>& problem, long long n, long long k, long long o,
                                   long long p, long long q) {
  const Pool& pool = problem.epilogue.pool;
  if (pool.kind == PoolKind::none) return naive_value<T, Sum>(problem, n, k, o, p, q);
  return pooled<Sum>(
      pool.kind, PoolWindow(pool, 0, p, problem.output[1]), PoolWindow(pool, 1, q, problem.output[2]),
      [&](int64_t row, int64_t column) { return naive_value<T, Sum>(problem, n, k, o, row, column); });
}

template <typename T, typename Sum>
__global__ void naive_kernel(NaiveArguments<T> problem) {
  wait_for_kernels_before();
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < problem.outputs;
       i += threads) {
    const long long q = i % problem.result[2];
    const long long p = i / problem.result[2] % problem.result[1];
    long long rest = i / (problem.result[2] * problem.result[1]);
    const long long o = rest % problem.result[0];
    rest /= problem.result[0];
    const long long k = rest % problem.out_channels;
    const long long n = rest / problem.out_channels;

    problem.y[i] = static_cast<T>(naive_result<T, Sum>(problem, n, k, o, p, q));
  }
}

}  // namespace convswap
