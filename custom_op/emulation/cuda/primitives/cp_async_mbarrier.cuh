#pragma once

#include "cuda/primitives/cp_async.cuh"
#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda_emulation.h"

namespace convswap {

inline void cp_async_mbarrier_init(TmaMbarrier* barrier, unsigned arrivals) {
  tma_mbarrier_init(barrier, static_cast<int>(arrivals));
}

// Like TMA loads, the copies complete as late as possible: when the first thread waits for the barrier.
inline void cp_async_mbarrier_arrive(TmaMbarrier* barrier) {
  CpAsyncGroups& copies = async_copies[emulation::current];
  copies.groups.push_back(std::move(copies.open));
  copies.open.clear();
  TmaLoads& loads = loads_of(barrier);
  for (const auto& group : copies.groups) {
    for (const CpAsync& copy : group) {
      loads.issued.push_back(
          {[copy] { std::memcpy(copy.target, copy.source, static_cast<std::size_t>(copy.bytes)); }});
    }
  }
  copies.groups.clear();
  mbarrier_arrive(barrier);
}

inline void mbarrier_poll(Mbarrier* barrier, unsigned phase) { mbarrier_wait(barrier, phase); }
inline void mbarrier_poll(TmaMbarrier* barrier, unsigned phase) { mbarrier_wait(barrier, phase); }

}  // namespace convswap
