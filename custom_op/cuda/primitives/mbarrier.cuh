#pragma once

#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// Mbarriers: the threads that arrive need not be those that wait. A phase
// ends after the given number of arrivals, and the next phase begins. Phases alternate between 0 and 1.

// Called by one thread. The other threads may use the barrier after a __syncthreads.
__device__ inline void mbarrier_init(Mbarrier* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

// Arrives, and publishes this thread's earlier writes to the threads that wait. One arrival per warp after a
// __syncwarp would be correct too, but it is slower and racecheck does not recognise it.
__device__ inline void mbarrier_arrive(Mbarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits until the phase with this parity has ended (compute capability 9.0 and newer; cp_async_mbarrier.cuh
// has the wait of older cards). On a new barrier phase 1 counts as ended.
__device__ inline void mbarrier_wait(Mbarrier* barrier, unsigned phase) {
  unsigned phase_ended;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(phase_ended)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
  } while (phase_ended == 0);
}

}  // namespace convswap
