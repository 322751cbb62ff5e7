#pragma once

namespace convswap {

// Predicated loads from global memory, one instruction each; `to` keeps its value if the condition is false.
// `address` is a multiple of the size of `to`. They are not read-only loads (.nc): those require that no
// kernel writes the data during this kernel, but with PDL the preceding kernel may still be writing.
__device__ inline void load_global_if(bool condition, unsigned long long address, unsigned short& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.global.u16 %0, [%2]; }"
               : "+h"(to)
               : "r"(static_cast<unsigned>(condition)), "l"(address));
}
__device__ inline void load_global_if(bool condition, unsigned long long address, unsigned& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.global.u32 %0, [%2]; }"
               : "+r"(to)
               : "r"(static_cast<unsigned>(condition)), "l"(address));
}
// Loads 16 bits into a 32-bit register and clears its upper half.
__device__ inline void load_global_16_if(bool condition, unsigned long long address, unsigned& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.global.u16 %0, [%2]; }"
               : "+r"(to)
               : "r"(static_cast<unsigned>(condition)), "l"(address));
}
__device__ inline void load_global_if(bool condition, unsigned long long address, uint2& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.v2.u32 {%0, %1}, [%3]; }"
               : "+r"(to.x), "+r"(to.y)
               : "r"(static_cast<unsigned>(condition)), "l"(address));
}
__device__ inline void load_global_if(bool condition, unsigned long long address, uint4& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%5]; }"
               : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
               : "r"(static_cast<unsigned>(condition)), "l"(address));
}

// Predicated stores to global memory, one instruction each: around branches the compiler moves loads to
// places that expose their latency. `address` is a multiple of the size of `a`.
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

// The address of a global pointer, opaque to the compiler: addresses derived from it are computed from the
// result and not again from the pointer's own terms.
__device__ inline unsigned long long global_address(const void* pointer) {
  unsigned long long address = reinterpret_cast<unsigned long long>(pointer);
  asm("" : "+l"(address));
  return address;
}

// `address` + `count` * `size`, as one instruction.
__device__ inline unsigned long long address_at(unsigned long long address, unsigned count, unsigned size) {
  asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(address) : "r"(count), "r"(size));
  return address;
}

// Prefetches a line of global memory into the L2 cache.
__device__ inline void prefetch(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// Prefetches a line of global memory into the multiprocessor's L1 cache.
__device__ inline void prefetch_l1(const void* global) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(global));
}

}  // namespace convswap
