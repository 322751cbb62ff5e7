#pragma once

namespace convswap {

// Makes `value` opaque to the compiler, so that expressions of it are computed again at this point. Otherwise
// the compiler hoists them out of a loop into registers, and a kernel short of registers spills those to
// local memory.
__device__ inline unsigned optimization_barrier(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Makes a global address opaque to the compiler, so that offsets are added to this very address. Otherwise
// the compiler splits a subexpression that many addresses share, and computes each address anew.
template <typename T>
__device__ inline T* optimization_barrier_global(T* address) {
  asm volatile("" : "+l"(address));
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(address));
#endif
  return address;
}

// Sets the number of registers per thread of a warpgroup, a multiple of eight: `dec` releases registers,
// `inc` waits until enough are free (`setmaxnreg`). For compute capability 9.0 only.
template <int kRegisters>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace convswap
