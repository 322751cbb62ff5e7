#pragma once

#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// Starts a copy of 16 bytes, both sides aligned to them, from global to shared memory that passes the
// registers by. Needs compute capability 8.0.
__device__ inline void cp_async_16(void* shared, const void* global) {
  const unsigned target = shared_address(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(global) : "memory");
}

// The same of so few bytes, 4 or 8, by way of the first-level cache; where they are not there, of zeros.
template <int kBytes>
__device__ inline void cp_async_zfill(void* shared, const void* global, bool is_there) {
  static_assert(kBytes == 4 || kBytes == 8);
  const unsigned target = shared_address(shared);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(global), "n"(kBytes),
               "r"(is_there ? kBytes : 0)
               : "memory");
}

// Closes the group of copies this thread has started since the last call.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace convswap
