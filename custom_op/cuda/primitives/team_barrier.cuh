#pragma once

#include "cuda/primitives/team.h"

namespace convswap {

// Barriers for parts of a block. Barrier 0 is that of __syncthreads, and barrier i + 1 that of team i.

// The shuffle tells the compiler that it is the same in all lanes.
__device__ inline int team_of_block() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kTeamThreads, 0);
}
__device__ inline int thread_of_team() { return static_cast<int>(threadIdx.x) % kTeamThreads; }

__device__ inline void meet_team(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kTeamThreads) : "memory");
}

// Whether all threads of the team agree.
__device__ inline bool meet_team_and(int team, bool agrees) {
  unsigned all;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.and.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
      : "=r"(all)
      : "r"(static_cast<unsigned>(agrees)), "r"(team + 1), "n"(kTeamThreads)
      : "memory");
  return all != 0;
}

// The same for so many threads, whole warps, that name a barrier of no team.
__device__ inline void meet_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline bool meet_threads_and(int barrier, int threads, bool agrees) {
  unsigned all;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.and.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
      : "=r"(all)
      : "r"(static_cast<unsigned>(agrees)), "r"(barrier), "r"(threads)
      : "memory");
  return all != 0;
}

}  // namespace convswap
