#pragma once

#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// TMA copies from global to shared memory (`cp.async.bulk`), compute capability 9.0 and newer. A phase of the
// mbarrier ends when all threads have arrived and all announced bytes have been written.

// Called by one thread. The other threads may use the barrier after a __syncthreads.
__device__ inline void tma_mbarrier_init(TmaMbarrier* barrier, int arrivals = 1) {
  mbarrier_init(barrier, arrivals);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives and announces `bytes`, less than 1 MiB, for TMA loads that are issued next.
__device__ inline void mbarrier_arrive_expect_tx(TmaMbarrier* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Issues a TMA load. `bytes` was announced to the barrier and is a multiple of 16; both addresses are
// multiples of 16.
__device__ inline void tma_load_1d(void* shared, const void* global, unsigned bytes, TmaMbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Announces `bytes` and issues the TMA load, in a thread that arrives later or before another thread of its
// warp arrives.
__device__ inline void tma_load_1d_expect_tx(void* shared, const void* global, unsigned bytes,
                                             TmaMbarrier* barrier) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
  tma_load_1d(shared, global, bytes, barrier);
}

// TMA copies from shared to global memory, compute capability 9.0 and newer. Other threads' writes are
// included if those threads called fence_proxy_async and then synchronised with this thread.

// Issues a TMA store. `bytes` and both addresses are multiples of 16. With `evict_first`, L2 evicts the
// stored data first.
__device__ inline void tma_store_1d(void* global, const void* shared, unsigned bytes, bool evict_first) {
  const unsigned from = shared_address(shared);
  if (evict_first) {
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(global),
        "r"(from), "r"(bytes), "l"(policy)
        : "memory");
  } else {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(from),
                 "r"(bytes)
                 : "memory");
  }
}

// Adds `bytes` of float32 to global memory. `bytes` and both addresses are multiples of 16. By the PTX
// documentation subnormal numbers may be flushed to zero; an H200 keeps them.
__device__ inline void tma_reduce_add_1d(float* global, const float* shared, unsigned bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}

// Closes the group of copies that this thread has issued since the last call.
__device__ inline void tma_store_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until this thread's copies have read their shared memory, which may then be overwritten.
__device__ inline void tma_store_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until this thread's copies have completed, so that its later copies see the stored data.
__device__ inline void tma_store_wait_group() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes this thread's writes to shared memory visible to TMA copies and wgmma that are issued after the next
// barrier.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Makes this thread's writes to global memory visible to TMA reductions that are issued after the next
// barrier.
__device__ inline void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace convswap
