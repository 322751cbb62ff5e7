#pragma once

// The kernel of the algorithm `naive`; see naive.cc.

#include "conv/small_floats.h"  // what its instances are named by
#include "cuda/naive/arguments.h"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"

namespace convswap::naive {

template <typename T>
__global__ void kernel(Arguments<T> problem) {
  griddepcontrol_wait();
  const NaiveConv& definition = problem.definition;
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < problem.outputs;
       i += threads) {
    const long long q = i % definition.result[2];
    const long long p = i / definition.result[2] % definition.result[1];
    long long rest = i / (definition.result[2] * definition.result[1]);
    const long long o = rest % definition.result[0];
    rest /= definition.result[0];
    const long long k = rest % definition.out_channels;
    const long long n = rest / definition.out_channels;

    problem.y[i] = static_cast<T>(
        naive_conv_output<T, typename AccumulatorOf<T>::Type>(problem, definition, n, k, o, p, q));
  }
}

}  // namespace convswap::naive
