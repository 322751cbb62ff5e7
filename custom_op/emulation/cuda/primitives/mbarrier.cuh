#pragma once

#include <map>

#include "cuda/primitives/mbarrier.h"
#include "cuda_emulation.h"

namespace convswap {

struct Arrivals {
  unsigned arrivals, arrived = 0;
  unsigned phases = 0;  // that have ended
};
inline std::map<const Mbarrier*, Arrivals> arrival_barriers;
inline const bool arrival_barriers_end_with_the_block = [] {
  emulation::block_ends.push_back([] { arrival_barriers.clear(); });
  return true;
}();

inline void mbarrier_init(Mbarrier* barrier, unsigned arrivals) {
  if (!arrival_barriers.insert({barrier, {arrivals}}).second) emulation::fail("a barrier that is made twice");
}
inline Arrivals& arrivals_of(Mbarrier* barrier) {
  const auto found = arrival_barriers.find(barrier);
  if (found == arrival_barriers.end()) emulation::fail("a barrier that nobody has made");
  return found->second;
}
inline void mbarrier_arrive(Mbarrier* barrier) {
  Arrivals& own = arrivals_of(barrier);
  if (++own.arrived < own.arrivals) return;
  own.arrived = 0;
  ++own.phases;
  emulation::has_moved = true;
}
inline void mbarrier_wait(Mbarrier* barrier, unsigned phase) {
  const Arrivals& own = arrivals_of(barrier);
  while (own.phases % 2 == phase) emulation::yield();
  emulation::has_moved = true;
}

}  // namespace convswap
