#pragma once

namespace convswap {

// Programmatic dependent launch (PDL). A kernel that `launch` may start early calls griddepcontrol_wait in
// every thread before it touches global memory. The call waits until all preceding kernels of the stream have
// ended and their writes are visible.
__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Waits before weights and bias are read, unless they are constant. Constant weights are read while the
// preceding kernels end; the kernel waits afterwards.
__device__ inline void griddepcontrol_wait_unless(bool weights_are_constant) {
  if (!weights_are_constant) griddepcontrol_wait();
}

// Lets the next kernel start once all blocks have called this, not only once all have ended. The next kernel
// sees this kernel's writes after its own griddepcontrol_wait.
__device__ inline void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace convswap
