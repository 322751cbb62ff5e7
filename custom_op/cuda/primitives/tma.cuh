#pragma once

#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// Bulk copies from global to shared memory, of compute capability 9.0 and newer. A phase of their barrier
// ends when so many threads have arrived, which says that these are all, and so have their bytes.

// By one thread, before any other may use it, which all see after they have met.
__device__ inline void tma_mbarrier_init(TmaMbarrier* barrier, int arrivals = 1) {
  mbarrier_init(barrier, arrivals);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives for copies of so many bytes altogether, less than a megabyte, which are then started.
__device__ inline void mbarrier_arrive_expect_tx(TmaMbarrier* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Starts the copy of `bytes`, a multiple of 16, both sides aligned to 16, for which one has arrived.
__device__ inline void tma_load_1d(void* shared, const void* global, unsigned bytes, TmaMbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// The same by a thread that will arrive, or before one of its warp does.
__device__ inline void tma_load_1d_expect_tx(void* shared, const void* global, unsigned bytes,
                                             TmaMbarrier* barrier) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
  tma_load_1d(shared, global, bytes, barrier);
}

// Bulk copies from shared to global memory, of compute capability 9.0 and newer. What other threads have
// written is copied after they showed it and met or arrived at a barrier.

// Starts the copy of `bytes`, a multiple of 16, both sides aligned to 16. `leaves_first`: what is
// stored leaves the second-level cache before all other data.
__device__ inline void tma_store_1d(void* global, const void* shared, unsigned bytes, bool leaves_first) {
  const unsigned from = shared_address(shared);
  if (leaves_first) {
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

// Adds `bytes` of float32 to what is there, both sides aligned to 16, `bytes` a multiple of it. Subnormal
// numbers may count as zeros, and become such, by the documentation; an H200 keeps them.
__device__ inline void tma_reduce_add_1d(float* global, const float* shared, unsigned bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}

// Closes the group of copies that this thread has started since the last call.
__device__ inline void tma_store_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all that this thread's copies take has been read, so that it may be overwritten.
__device__ inline void tma_store_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until all that this thread's copies store is there for copies that it starts later.
__device__ inline void tma_store_wait_group() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Lets copies started after the next barrier, and products of warpgroups, see what this thread has written to
// shared memory.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Lets copies started after the next barrier add to what this thread has written to global memory.
__device__ inline void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace convswap
