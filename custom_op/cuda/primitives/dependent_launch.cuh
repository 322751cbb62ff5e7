#pragma once

namespace convswap {

// What a kernel that `launch` may start early begins with, in every thread and before it touches global
// memory: waits until all kernels before it in the stream have ended and their writes are there.
__device__ inline void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace convswap
