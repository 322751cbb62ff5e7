#pragma once

// The kernel of the algorithm `quantised`; see quantised.cc.

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_quantised_conv.cuh"
#include "cuda/quantised/arguments.h"

namespace convswap::quantised {

template <typename X>
__global__ void __launch_bounds__(kThreads) kernel(const __grid_constant__ Arguments<X> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const long long threads = static_cast<long long>(gridDim.x) * kThreads;
  for (long long i = blockIdx.x * static_cast<long long>(kThreads) + threadIdx.x; i < problem.outputs;
       i += threads) {
    naive_quantised_output<X>(problem.conv, i);
  }
}

}  // namespace convswap::quantised
