#pragma once

namespace convswap {

// Asks for a line of global memory to be brought into the second-level cache.
__device__ inline void prefetch(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// The same into the first-level cache of the multiprocessor.
__device__ inline void prefetch_near(const void* global) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(global));
}

}  // namespace convswap
