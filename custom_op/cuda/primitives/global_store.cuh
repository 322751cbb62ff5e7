#pragma once

namespace convswap {

// Stores to global memory where a condition is not 0, as one predicated instruction each; around branches the
// compiler moves loads to where their latency shows. `address` is aligned to what is stored.
__device__ inline void store_global_if(unsigned condition, unsigned long long address, unsigned short a) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.u16 [%1], %2; }" ::"r"(condition),
               "l"(address), "h"(a)
               : "memory");
}
__device__ inline void store_global_if(unsigned condition, unsigned long long address, unsigned a) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.u32 [%1], %2; }" ::"r"(condition),
               "l"(address), "r"(a)
               : "memory");
}
__device__ inline void store_global_if(unsigned condition, unsigned long long address, uint2 a) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.v2.u32 [%1], {%2, %3}; }" ::"r"(condition),
               "l"(address), "r"(a.x), "r"(a.y)
               : "memory");
}
__device__ inline void store_global_if(unsigned condition, unsigned long long address, uint4 a) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.v4.u32 [%1], {%2, %3, %4, %5}; }" ::"r"(condition),
      "l"(address), "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w)
      : "memory");
}

// The address of what a pointer into global memory points at, such that sums with it are computed from the
// address, and not again from what the pointer was made of.
__device__ inline unsigned long long global_address(const void* pointer) {
  unsigned long long address = reinterpret_cast<unsigned long long>(pointer);
  asm("" : "+l"(address));
  return address;
}

// `address` and so many times `size` further on, as one instruction.
__device__ inline unsigned long long address_beyond(unsigned long long address, unsigned count,
                                                    unsigned size) {
  asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(address) : "r"(count), "r"(size));
  return address;
}

}  // namespace convswap
