#pragma once

#include <cstring>

#include "cuda/primitives/tma.cuh"
#include "cuda_emulation.h"

namespace convswap {

inline int cluster_rank() { return emulation::rank(); }
inline void cluster_arrive() { emulation::arrive_at_cluster(); }
inline void cluster_wait() { emulation::wait_for_cluster(); }

inline void store_to_block(int rank, void* target, const unsigned (&words)[4], TmaMbarrier* barrier) {
  if (reinterpret_cast<uintptr_t>(target) % sizeof words != 0) {
    emulation::fail("a misaligned store to another block");
  }
  const auto distance = static_cast<std::ptrdiff_t>(rank - emulation::rank()) *
                        static_cast<std::ptrdiff_t>(emulation::kSharedBytes);
  void* const there = static_cast<char*>(target) + distance;
  TmaMbarrier* const its_barrier =
      reinterpret_cast<TmaMbarrier*>(reinterpret_cast<char*>(barrier) + distance);
  issue_load(there, sizeof words, its_barrier,
             [there, four = std::to_array(words)] { std::memcpy(there, four.data(), sizeof four); });
}

inline void wait_for_blocks(TmaMbarrier* barrier, unsigned phase) { mbarrier_wait(barrier, phase); }

}  // namespace convswap
