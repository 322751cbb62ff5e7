#pragma once

#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// Copies 16 bytes from global to shared memory without a detour through registers (`cp.async.cg`). Both
// addresses are multiples of 16. Needs compute capability 8.0.
__device__ inline void cp_async_16(void* shared, const void* global) {
  const unsigned target = shared_address(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(global) : "memory");
}

// Copies 4, 8 or 16 bytes through the L1 cache (`cp.async.ca`); writes zeros if not `in_bounds`.
template <int kBytes>
__device__ inline void cp_async_zfill(SharedAddress target, const void* global, bool in_bounds) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(global), "n"(kBytes),
               "r"(in_bounds ? kBytes : 0)
               : "memory");
}

template <int kBytes>
__device__ inline void cp_async_zfill(void* shared, const void* global, bool in_bounds) {
  cp_async_zfill<kBytes>(shared_address(shared), global, in_bounds);
}

// Closes the group of copies that this thread has issued since the last call.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are in flight.
template <int kPending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace convswap
