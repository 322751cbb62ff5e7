#pragma once

#include "cuda/primitives/arrival_barrier.cuh"
#include "cuda/primitives/transaction_barrier.h"

namespace convswap {

// Bulk copies from global to shared memory, of compute capability 9.0 and newer. A phase of their barrier
// ends when so many threads have arrived, which says that these are all, and so have their bytes.

// By one thread, before any other may use it, which all see after they have met.
__device__ inline void make_transaction_barrier(TransactionBarrier* barrier, int arrivals = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(barrier))),
               "r"(arrivals)
               : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives for copies of so many bytes altogether, less than a megabyte, which are then started.
__device__ inline void arrive_for_loads(TransactionBarrier* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(barrier))),
               "r"(bytes)
               : "memory");
}
// Starts the copy of `bytes`, a multiple of 16, both sides aligned to 16, for which one has arrived.
__device__ inline void start_load(void* shared, const void* global, unsigned bytes,
                                  TransactionBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(bytes), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier)))
      : "memory");
}

// The same by a thread that will arrive, or before one of its warp does.
__device__ inline void bulk_load(void* shared, const void* global, unsigned bytes,
                                 TransactionBarrier* barrier) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(barrier))),
               "r"(bytes)
               : "memory");
  start_load(shared, global, bytes, barrier);
}

}  // namespace convswap
