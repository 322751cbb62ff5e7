#pragma once

#include <map>

#include "cuda/primitives/hand_over.h"
#include "cuda_emulation.h"

namespace convswap {

struct HandOvers {
  unsigned arrivals, arrived = 0;
  unsigned phases = 0;  // that have ended
};
inline std::map<const HandOver*, HandOvers> hand_overs;
inline const bool hand_overs_end_with_the_block = [] {
  emulation::block_ends.push_back([] { hand_overs.clear(); });
  return true;
}();

inline void make_hand_over(HandOver* barrier, unsigned arrivals) {
  if (!hand_overs.insert({barrier, {arrivals}}).second) emulation::fail("a barrier that is made twice");
}
inline HandOvers& hand_overs_of(HandOver* barrier) {
  const auto found = hand_overs.find(barrier);
  if (found == hand_overs.end()) emulation::fail("a barrier that nobody has made");
  return found->second;
}
inline void hand_over(HandOver* barrier) {
  HandOvers& own = hand_overs_of(barrier);
  if (++own.arrived < own.arrivals) return;
  own.arrived = 0;
  ++own.phases;
  emulation::has_moved = true;
}
inline void take_over(HandOver* barrier, unsigned phase) {
  const HandOvers& own = hand_overs_of(barrier);
  while (own.phases % 2 == phase) emulation::yield();
  emulation::has_moved = true;
}

}  // namespace convswap
