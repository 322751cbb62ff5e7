#pragma once

#include "cuda/primitives/cp_async.cuh"
#include "cuda/primitives/mbarrier.cuh"

namespace convswap {

// Mbarriers for copies by cp.async, from compute capability 8.0 on. They have no transaction count: each
// thread arrives once its copies have been written.

// Called by one thread. The other threads may use the barrier after a __syncthreads.
__device__ inline void cp_async_mbarrier_init(TmaMbarrier* barrier, unsigned arrivals) {
  mbarrier_init(barrier, arrivals);
}

// Arrives as soon as all earlier copies of this thread have been written, without waiting for them. The
// thread's other writes are not published.
__device__ inline void cp_async_mbarrier_arrive(TmaMbarrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// mbarrier_wait for compute capability 8.0: it asks again and again, without suspending the thread.
__device__ inline void mbarrier_poll(Mbarrier* barrier, unsigned phase) {
  unsigned phase_ended;
  do {
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(phase_ended)
                 : "r"(shared_address(barrier)), "r"(phase)
                 : "memory");
  } while (phase_ended == 0);
}

}  // namespace convswap
