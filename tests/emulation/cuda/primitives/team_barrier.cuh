#pragma once

#include "cuda_emulation.h"

namespace convswap {

constexpr int kTeamThreads = 128;

inline int team_of_block() { return static_cast<int>(threadIdx.x) / kTeamThreads; }
inline int thread_of_team() { return static_cast<int>(threadIdx.x) % kTeamThreads; }
inline void meet_team(int) { emulation::meet_warpgroup(); }
inline bool meet_team_and(int, bool agrees) { return emulation::meet_warpgroup_and(agrees); }

inline void meet_threads(int barrier, int threads) { emulation::meet_named(barrier, threads, true); }
inline bool meet_threads_and(int barrier, int threads, bool agrees) {
  return emulation::meet_named(barrier, threads, agrees);
}

}  // namespace convswap
