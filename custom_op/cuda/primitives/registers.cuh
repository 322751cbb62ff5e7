#pragma once

namespace convswap {

// The value, such that what is computed from it is computed here and again, and not kept in registers from
// before a loop on: a kernel that needs all its registers elsewhere would store them in local memory.
__device__ inline unsigned optimization_barrier(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The address in global memory, such that what is added to it is added to it: the compiler would take sums
// apart that many addresses have in common, and compute each anew.
template <typename T>
__device__ inline T* optimization_barrier_global(T* address) {
  asm volatile("" : "+l"(address));
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(address));
#endif
  return address;
}

// Changes how many registers each thread of a warpgroup has, to a multiple of eight: to fewer, or to more,
// for which it waits until others have left them. An instruction of compute capability 9.0 alone.
template <int kRegisters>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace convswap
