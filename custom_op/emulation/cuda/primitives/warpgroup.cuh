#pragma once

#include "cuda/primitives/warpgroup.h"
#include "cuda_emulation.h"

namespace convswap {

inline int warpgroup_index() { return static_cast<int>(threadIdx.x) / kWarpgroupThreads; }
inline int warpgroup_thread() { return static_cast<int>(threadIdx.x) % kWarpgroupThreads; }
inline void sync_warpgroup(int) { emulation::sync_warpgroup(); }
inline bool sync_warpgroup_all(int, bool predicate) { return emulation::sync_warpgroup_all(predicate); }

inline void named_barrier_sync(int barrier, int threads) {
  emulation::sync_named_barrier(barrier, threads, true);
}
inline bool named_barrier_sync_all(int barrier, int threads, bool predicate) {
  return emulation::sync_named_barrier(barrier, threads, predicate);
}

inline bool elect_one() { return threadIdx.x % 32 == 0; }

}  // namespace convswap
