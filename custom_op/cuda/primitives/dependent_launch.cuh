#pragma once

namespace convswap {

// Programmatic dependent launch (PDL), on compute capability 9.0 and newer. A kernel with Start::early
// (host/launch.h) may start while the preceding kernel of the stream still runs. griddepcontrol_wait blocks
// the thread until that kernel has completed and its memory operations are visible. Every thread of an early
// kernel calls it before it reads memory that a preceding kernel writes, and before it writes memory that a
// preceding kernel reads or writes. Each kernel then completes after those before it, so all preceding
// kernels have completed. Without an early start the call returns at once.
__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Waits before weights and bias are read, unless they are constant: no preceding kernel still writes constant
// weights. The kernel then calls griddepcontrol_wait after it has read them.
__device__ inline void griddepcontrol_wait_unless(bool weights_are_constant) {
  if (!weights_are_constant) griddepcontrol_wait();
}

// Allows an early start of the next kernel of the stream as soon as every block has called this or has
// exited. One thread's call counts for its block, and further calls do nothing. An early start is not
// guaranteed. The next kernel sees this kernel's writes only after its own griddepcontrol_wait.
__device__ inline void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace convswap
