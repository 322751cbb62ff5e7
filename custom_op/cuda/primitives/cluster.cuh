#pragma once

#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// Clusters: blocks that run at the same time and write to each other's shared memory, compute capability 9.0
// and newer. Launch::cluster_blocks (host/launch.h) is their number. The shared memory of all blocks of a
// cluster has the same layout.

__device__ inline int cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// Every thread of a cluster arrives once and waits once. After the wait all blocks have begun, and the
// mbarriers that a thread initialised for TMA loads before it arrived are visible; other writes need not be.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Writes 16 bytes to the block `rank`, at the address that `target` has in this block, without waiting. The
// bytes count for `barrier` there, to which they were announced by mbarrier_arrive_expect_tx.
__device__ inline void store_to_block(int rank, void* target, const unsigned (&words)[4],
                                      TmaMbarrier* barrier) {
  unsigned to, at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(target)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(barrier)), "r"(rank));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(at)
      : "memory");
}

// Waits for the stores of other blocks that were announced to a barrier: mbarrier_wait for a cluster.
__device__ inline void wait_for_blocks(TmaMbarrier* barrier, unsigned phase) {
  unsigned phase_ended;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, "
        "1, "
        "0, p; }"
        : "=r"(phase_ended)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
  } while (phase_ended == 0);
}

}  // namespace convswap
