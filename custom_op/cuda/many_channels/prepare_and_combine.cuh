#pragma once

// The kernels `prepare` and `combine` of the algorithm `many_channels`, before and after the multiplication
// by `kernel` or `mma_kernel`. many_channels.cc explains the algorithm and fills the arguments.

#include "cuda/many_channels/epilogue.cuh"
#include "cuda/many_channels/prepare.cuh"
#include "cuda/primitives/dependent_launch.cuh"

namespace convswap::many_channels {

// Prepares the weights or the pixels of the multiplication. A block converts the weights of one filter row,
// or a part of the K tiles of a prepared tile and conv group.
template <typename Format>
__global__ void __launch_bounds__(kPrepareThreads, kPrepareThreadsPerSm / kPrepareThreads)
    prepare(const __grid_constant__ Arguments<typename Format::Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  extern __shared__ __align__(128) unsigned char shared[];
  PrepareState& state = *reinterpret_cast<PrepareState*>(shared);
  if (threadIdx.x == 0) state.max_bits = 0u, state.min_bits_less_one = ~0u;
  __syncthreads();
  if (problem.prepares_weights) {
    prepare_filter<Format>(problem, blockIdx.x, state);
  } else {
    prepare_k_tiles<Format>(problem, blockIdx.x, state);
  }
}

// Adds the sums of split-K in the order of the splits and applies the epilogue.
template <typename Format>
__global__ void __launch_bounds__(kCombineThreads)
    combine(const __grid_constant__ Arguments<typename Format::Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const long long at = static_cast<long long>(blockIdx.x) * kCombineThreads + threadIdx.x;
  if (at < problem.y_elements) combine_split_sums<Format>(problem, at);
}

}  // namespace convswap::many_channels
