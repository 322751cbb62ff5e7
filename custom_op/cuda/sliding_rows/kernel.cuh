#pragma once

// The kernel of sliding_rows; see sliding_rows.cc.

#include "conv/small_floats.h"  // what its instances are named by
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/sliding_rows/strip.cuh"

namespace convswap::sliding_rows {

// kTogether: columns of x that are one load.
template <typename T, int kTaps, int kStride, int kLeft, int kOutputs, int kTogether>
__global__ void __launch_bounds__(kBlockWarps* kWarp, blocks_at_once(kTaps))
    kernel(const __grid_constant__ Arguments<T> a) {
  using S = Slide<kTaps, kStride, kLeft, kOutputs>;
  const Lane<S> at(a);
  wait_for_weights(a.weights_stay);
  const Filter<T, S> filter(a, at);
  wait_for_kernels_before();
  if (kTogether == 1 || a.loads_together) {
    Strip<T, S, kTogether, rows_ahead(kTaps, S::period, sizeof(T))> strip(a, at, filter);
    let_next_kernel_start();
    strip.run();
  } else {  // where a user's x begins between two columns that would be loaded together
    Strip<T, S, 1, 1> strip(a, at, filter);
    let_next_kernel_start();
    strip.run();
  }
}

}  // namespace convswap::sliding_rows
