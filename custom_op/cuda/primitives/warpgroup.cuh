#pragma once

#include "cuda/primitives/warpgroup.h"

namespace convswap {

// Named barriers for parts of a block. Barrier 0 belongs to __syncthreads, barrier i + 1 to warpgroup i.

// The shuffle tells the compiler that the index is uniform in a warp.
__device__ inline int warpgroup_index() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroupThreads, 0);
}
__device__ inline int warpgroup_thread() { return static_cast<int>(threadIdx.x) % kWarpgroupThreads; }

__device__ inline void sync_warpgroup(int warpgroup) {
  asm volatile("bar.sync %0, %1;" ::"r"(warpgroup + 1), "n"(kWarpgroupThreads) : "memory");
}

// Synchronises the warpgroup; true if `predicate` is true in all of its threads.
__device__ inline bool sync_warpgroup_all(int warpgroup, bool predicate) {
  unsigned all;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.and.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
      : "=r"(all)
      : "r"(static_cast<unsigned>(predicate)), "r"(warpgroup + 1), "n"(kWarpgroupThreads)
      : "memory");
  return all != 0;
}

// Synchronises `threads` threads, a multiple of 32, at a barrier that belongs to no warpgroup.
__device__ inline void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline bool named_barrier_sync_all(int barrier, int threads, bool predicate) {
  unsigned all;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.and.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
      : "=r"(all)
      : "r"(static_cast<unsigned>(predicate)), "r"(barrier), "r"(threads)
      : "memory");
  return all != 0;
}

// True in exactly one lane of a converged warp (`elect.sync`, compute capability 9.0 and newer). The compiler
// then knows that one lane executes the branch. Otherwise it repeats, once per lane, instructions whose
// operands must be warp-uniform.
__device__ inline bool elect_one() {
  unsigned elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }"
               : "=r"(elected)::"memory");
  return elected != 0;
}

}  // namespace convswap
