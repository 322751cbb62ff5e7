#pragma once

#include <map>

#include "cuda/primitives/mbarrier.h"
#include "cuda_emulation.h"

namespace convswap {

struct MbarrierState {
  unsigned arrivals, arrived = 0;
  unsigned phases = 0;  // completed phases
};
inline std::map<const Mbarrier*, MbarrierState> mbarriers;
inline const bool clears_mbarriers_at_block_end = [] {
  emulation::block_end_checks.push_back([] { mbarriers.clear(); });
  return true;
}();

inline void mbarrier_init(Mbarrier* barrier, unsigned arrivals) {
  if (!mbarriers.insert({barrier, {arrivals}}).second)
    emulation::fail("an mbarrier that is initialised twice");
}
inline MbarrierState& state_of(Mbarrier* barrier) {
  const auto found = mbarriers.find(barrier);
  if (found == mbarriers.end()) emulation::fail("an mbarrier that is not initialised");
  return found->second;
}
inline void mbarrier_arrive(Mbarrier* barrier) {
  MbarrierState& state = state_of(barrier);
  if (++state.arrived < state.arrivals) return;
  state.arrived = 0;
  ++state.phases;
  emulation::made_progress = true;
}
inline void mbarrier_wait(Mbarrier* barrier, unsigned phase) {
  const MbarrierState& state = state_of(barrier);
  while (state.phases % 2 == phase) emulation::yield();
  emulation::made_progress = true;
}

}  // namespace convswap
