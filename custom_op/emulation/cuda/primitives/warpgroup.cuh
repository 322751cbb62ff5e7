#pragma once

#include "cuda/primitives/warpgroup.h"
#include "cuda_emulation.h"

namespace convswap {

inline int warpgroup_of_block() { return static_cast<int>(threadIdx.x) / kWarpgroupThreads; }
inline int thread_of_warpgroup() { return static_cast<int>(threadIdx.x) % kWarpgroupThreads; }
inline void sync_warpgroup(int) { emulation::meet_warpgroup(); }
inline bool sync_warpgroup_and(int, bool agrees) { return emulation::meet_warpgroup_and(agrees); }

inline void sync_threads(int barrier, int threads) { emulation::meet_named(barrier, threads, true); }
inline bool sync_threads_and(int barrier, int threads, bool agrees) {
  return emulation::meet_named(barrier, threads, agrees);
}

inline bool is_elected() { return threadIdx.x % 32 == 0; }

}  // namespace convswap
