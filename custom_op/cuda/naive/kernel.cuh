#pragma once

// The kernel of the algorithm `naive`; see naive.cc.

#include "conv/small_floats.h"  // the element types of the instances' names
#include "cuda/naive/arguments.h"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"

namespace convswap::naive {

template <typename T>
__global__ void kernel(Arguments<T> problem) {
  griddepcontrol_wait();
  const NaiveConv& naive_conv = problem.naive_conv;
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < problem.outputs;
       i += threads) {
    const long long q = i % naive_conv.result[2];
    const long long p = i / naive_conv.result[2] % naive_conv.result[1];
    long long quotient = i / (naive_conv.result[2] * naive_conv.result[1]);
    const long long o = quotient % naive_conv.result[0];
    quotient /= naive_conv.result[0];
    const long long k = quotient % naive_conv.out_channels;
    const long long n = quotient / naive_conv.out_channels;

    problem.y[i] = static_cast<T>(
        naive_conv_output<T, typename AccumulatorOf<T>::Type>(problem, naive_conv, n, k, o, p, q));
  }
}

}  // namespace convswap::naive
