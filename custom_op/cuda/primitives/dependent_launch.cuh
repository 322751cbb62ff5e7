#pragma once

namespace convswap {

// What a kernel that `launch` may start early begins with, in every thread and before it touches global
// memory: waits until all kernels before it in the stream have ended and their writes are there.
__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The same ahead of reading weights and bias, where a kernel before may still write them. Where none does,
// the kernel reads them while those before it end, and waits behind.
__device__ inline void griddepcontrol_wait_unless(bool weights_are_constant) {
  if (!weights_are_constant) griddepcontrol_wait();
}

// Lets the kernel behind this one start as soon as all blocks have said so, and not only when they have
// ended; what this one writes is there for it once it has waited.
__device__ inline void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace convswap
