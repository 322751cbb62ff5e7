#pragma once

namespace convswap {

// Loads from global memory where a condition holds, as one predicated instruction each; where it does not,
// `to` stays what it is. `address` is aligned to what is loaded. They are not read-only loads (.nc): those
// are for what no kernel writes while this one is there, and a kernel that starts early is there while the
// one before it writes.
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
// Of 16 bits, into a word whose upper half they clear.
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
__device__ inline unsigned long long address_at(unsigned long long address, unsigned count, unsigned size) {
  asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(address) : "r"(count), "r"(size));
  return address;
}

// Asks for a line of global memory to be brought into the second-level cache.
__device__ inline void prefetch(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// The same into the first-level cache of the multiprocessor.
__device__ inline void prefetch_l1(const void* global) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(global));
}

}  // namespace convswap
