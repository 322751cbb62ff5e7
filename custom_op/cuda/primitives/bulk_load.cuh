#pragma once

#include "cuda/primitives/copy_barrier.h"

namespace convswap {

// Bulk copies from global to shared memory, whose arrival a barrier there counts: of compute capability 9.0
// and newer.

// By one thread, before any other may use it, which all see after they have met.
__device__ inline void make_copy_barrier(CopyBarrier* barrier) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier)))
      : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Starts the copy of `bytes`, a multiple of 16, both sides aligned to 16; by the thread that will say that
// these are all.
__device__ inline void bulk_load(void* shared, const void* global, unsigned bytes, CopyBarrier* barrier) {
  const unsigned counter = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(counter), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(bytes), "r"(counter)
      : "memory");
}

// Says that the copies started since the last call are all of a phase.
__device__ inline void commit_bulk_loads(CopyBarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(barrier)))
               : "memory");
}

// Waits until all copies of a phase have arrived; phases are 0 and 1 in turns.
__device__ inline void wait_for_bulk_loads(CopyBarrier* barrier, unsigned phase) {
  unsigned have_arrived;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(have_arrived)
        : "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(phase)
        : "memory");
  } while (have_arrived == 0);
}

}  // namespace convswap
