#pragma once

// Loads of stages into shared memory, by TMA or by cp.async. Producers and consumers have one of the two
// structs as template parameter `Loads`. A *full barrier* signals that a stage is loaded.

#include "cuda/many_channels/arguments.h"
#include "cuda/primitives/cp_async_mbarrier.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"

namespace convswap::many_channels {

// TMA, from compute capability 9.0 on. One lane issues all loads.
struct TmaLoads {
  static __device__ void init_full(TmaMbarrier* barrier) { tma_mbarrier_init(barrier); }

  template <typename Barrier>
  static __device__ void wait(Barrier* barrier, unsigned phase) {
    mbarrier_wait(barrier, phase);
  }

  // Called by all lanes of a producer warp. `describe()` writes the description of the stage.
  // `for_each_copy(copy)` calls copy(shared, global, bytes) for each contiguous part, `bytes` in total.
  template <typename Describe, typename Copies>
  static __device__ void load(TmaMbarrier* full, unsigned bytes, Describe describe, Copies for_each_copy) {
    if (elect_one()) {
      describe();
      mbarrier_arrive_expect_tx(full, bytes);
      for_each_copy(
          [&](void* shared, const void* global, unsigned part) { tma_load_1d(shared, global, part, full); });
    }
  }

  // Signals a stage that the producers have written without copies. Called by all lanes of one producer warp
  // after a barrier of the producers.
  template <typename Describe>
  static __device__ void publish(TmaMbarrier* full, Describe describe) {
    if (threadIdx.x % 32 == 0) {
      describe();
      mbarrier_arrive(full);
    }
  }

  // Orders a thread's reads and writes of shared memory before later loads, and before wgmmas that read what
  // it wrote.
  static __device__ void fence() { fence_proxy_async(); }
};

// cp.async, from compute capability 8.0 on. Each lane copies its part, and arrives when its copies are
// written. The first lane also arrives itself, which publishes the description.
struct CpAsyncLoads {
  static __device__ void init_full(TmaMbarrier* barrier) { cp_async_mbarrier_init(barrier, 32 + 1); }

  template <typename Barrier>
  static __device__ void wait(Barrier* barrier, unsigned phase) {
    mbarrier_poll(barrier, phase);
  }

  template <typename Describe, typename Copies>
  static __device__ void load(TmaMbarrier* full, unsigned, Describe describe, Copies for_each_copy) {
    const int lane = threadIdx.x % 32;
    for_each_copy([&](void* shared, const void* global, unsigned part) {
      unsigned char* const to = static_cast<unsigned char*>(shared);
      const unsigned char* const from = static_cast<const unsigned char*>(global);
      for (unsigned at = lane * 16; at < part; at += 32 * 16) cp_async_16(to + at, from + at);
    });
    cp_async_mbarrier_arrive(full);
    if (lane == 0) {
      describe();
      mbarrier_arrive(full);
    }
  }

  template <typename Describe>
  static __device__ void publish(TmaMbarrier* full, Describe describe) {
    load(full, 0, describe, [](auto) {});
  }

  static __device__ void fence() {}
};

}  // namespace convswap::many_channels
