#pragma once

#include "cuda/primitives/warpgroup.h"

namespace convswap {

// Barriers for parts of a block. Barrier 0 is that of __syncthreads, and barrier i + 1 that of warpgroup i.

// The shuffle tells the compiler that it is the same in all lanes.
__device__ inline int warpgroup_index() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroupThreads, 0);
}
__device__ inline int warpgroup_thread() { return static_cast<int>(threadIdx.x) % kWarpgroupThreads; }

__device__ inline void sync_warpgroup(int warpgroup) {
  asm volatile("bar.sync %0, %1;" ::"r"(warpgroup + 1), "n"(kWarpgroupThreads) : "memory");
}

// Whether all threads of the warpgroup agree.
__device__ inline bool sync_warpgroup_all(int warpgroup, bool agrees) {
  unsigned all;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.and.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
      : "=r"(all)
      : "r"(static_cast<unsigned>(agrees)), "r"(warpgroup + 1), "n"(kWarpgroupThreads)
      : "memory");
  return all != 0;
}

// The same for so many threads, whole warps, by a barrier of no warpgroup.
__device__ inline void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline bool named_barrier_sync_all(int barrier, int threads, bool agrees) {
  unsigned all;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.and.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
      : "=r"(all)
      : "r"(static_cast<unsigned>(agrees)), "r"(barrier), "r"(threads)
      : "memory");
  return all != 0;
}

// Whether this thread is the one of its warp, all of which are here, that does what one is to do: an
// instruction of compute capability 9.0 and newer. The compiler sees that no other lane comes with values of
// its own, for which it would repeat instructions that take what a warp has in common.
__device__ inline bool elect_one() {
  unsigned is;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(is)::"memory");
  return is != 0;
}

}  // namespace convswap
