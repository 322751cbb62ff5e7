#pragma once

namespace convswap {

// What a kernel that `launch` may start early begins with, in every thread and before it touches global
// memory: waits until all kernels before it in the stream have ended and their writes are there.
__device__ inline void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The same ahead of reading weights and bias, where a kernel before may still write them. Where none does,
// the kernel reads them while those before it end, and waits behind.
__device__ inline void wait_for_weights(bool weights_stay) {
  if (!weights_stay) wait_for_kernels_before();
}

// Lets the kernel behind this one start as soon as all blocks have said so, and not only when they have
// ended; what this one writes is there for it once it has waited.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace convswap
