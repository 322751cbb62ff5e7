#pragma once

#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// Barriers at which those who wait are not those who arrive, of compute capability 9.0 and newer. A phase
// ends when so many have arrived, and the next begins; phases are 0 and 1 in turns.

// By one thread, before any other may use it, which all see after they have met.
__device__ inline void mbarrier_init(Mbarrier* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

// Arrives: what this thread has done before is seen by those who wait. One arrival for a warp, behind a
// __syncwarp, would do for the hardware, but it takes longer, and racecheck does not see it.
__device__ inline void mbarrier_arrive(Mbarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits until a phase of that number has ended. Of a new barrier, phase 1 counts as the one that has.
__device__ inline void mbarrier_wait(Mbarrier* barrier, unsigned phase) {
  unsigned has_ended;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(has_ended)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
  } while (has_ended == 0);
}

}  // namespace convswap
